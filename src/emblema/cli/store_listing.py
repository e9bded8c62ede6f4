"""How `emblema store …` shows what it found: tables, lines, JSON, and a bar while it works."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from emblema.store.disk import CollectReport, DiskTier, Entry, VerifyReport


def show_json(value: Any) -> None:
    """Print a value as JSON; a list may hold dataclasses."""
    typer.echo(json.dumps(value, indent=2, default=asdict))


def show_entries(found: "Sequence[Entry]", plain: bool) -> None:
    """A table of pieces, and their sum."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("id", "kind", "owner", "bytes", "created", "used", "terms"):
        table.add_column(name, justify="right" if name == "bytes" else "left", no_wrap=True)
    for entry in found:
        moments = (_moment(entry.created), _moment(entry.accessed))
        table.add_row(entry.id[:16], entry.kind, entry.owner[:12], f"{entry.bytes:,}", *moments, _terms(entry))
    screen = _screen(plain)
    screen.print(table)
    screen.print(f"{len(found)} pieces, {sum(entry.bytes for entry in found):,} bytes")


def show_fields(fields: Mapping[str, Any]) -> None:
    """One piece, a line for each field; what is within a field is indented."""
    for key, value in fields.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for inner, held in value.items():
                typer.echo(f"  {inner}: {held if isinstance(held, int | str | float) else json.dumps(held)}")
        else:
            typer.echo(f"{key}: {', '.join(value) if isinstance(value, tuple | list) else value}")


def show_verified(report: "VerifyReport", plain: bool) -> None:
    """What reading everything found."""
    screen = _screen(plain)
    screen.print(f"{report.checked} pieces read, {report.bytes:,} bytes verified, {len(report.damaged)} damaged")
    for id, reason in report.damaged:
        screen.print(f"  {id[:16]}: {reason}")


def show_collected(report: "CollectReport") -> None:
    """What tidying up removed."""
    typer.echo(
        f"{report.expired} expired pieces and {report.quarantined} quarantined files deleted, "
        f"{report.bytes:,} bytes freed"
    )
    typer.echo(str(report.scan))


def statistics_of(tier: "DiskTier") -> dict[str, Any]:
    """How much a store holds, and by whom."""
    held: dict[str, dict[str, int]] = {}
    for entry in tier.entries():
        owned = held.setdefault(entry.owner, {"chunks": 0, "patches": 0, "pinned": 0, "bytes": 0})
        owned["chunks" if entry.kind == "chunk" else "patches"] += 1
        owned["pinned"] += entry.terms.pinned
        owned["bytes"] += entry.bytes
    return {"pieces": tier.count(), "bytes": tier.bytes, "owners": held, "scan": asdict(tier.report)}


def show_statistics(told: Mapping[str, Any], opened: str) -> None:
    """What `statistics_of` found."""
    typer.echo(f"{told['pieces']} pieces, {told['bytes']:,} bytes")
    typer.echo(f"opened: {opened}")
    for owner, owned in sorted(told["owners"].items()):
        typer.echo(
            f"  {owner[:16]}: {owned['chunks']} chunks, {owned['patches']} patches, {owned['pinned']} pinned, "
            f"{owned['bytes']:,} bytes"
        )


@contextmanager
def bar(plain: bool, what: str, total: int) -> Iterator[Any]:
    """A progress bar on a terminal; gives what is called with how far it is."""
    from rich.progress import Progress

    screen = _screen(plain)
    if plain or not screen.is_terminal:
        yield lambda done: None
        return
    with Progress(console=screen, transient=True) as progress:
        task = progress.add_task(what, total=max(total, 1))
        yield lambda done: progress.update(task, completed=done)


def _terms(entry: "Entry") -> str:
    terms = entry.terms
    words = ["pinned"] if terms.pinned else []
    words += [f"priority {terms.priority}"] if terms.priority else []
    words += [f"{terms.seconds:g} s"] if terms.seconds is not None else []
    words += [f"{terms.idle_seconds:g} s idle"] if terms.idle_seconds is not None else []
    return ", ".join(words)


def _moment(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _screen(plain: bool) -> "Console":
    from emblema.cli.screen import console

    return console(plain)

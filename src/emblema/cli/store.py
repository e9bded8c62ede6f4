"""`emblema store …`: what a folder of stored pieces holds, and keeping it in order."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from emblema.cli.options import Plain
from emblema.errors import EmblemaError, LoadError, StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from emblema.store.disk import DiskTier
    from emblema.store.disk.entry import Entry

app = typer.Typer(
    help="A folder of stored chunks and patches: what is in it, and keeping it in order.", no_args_is_help=True
)

Folder = Annotated[
    Path, typer.Option("--store", envvar="EMBLEMA_STORE", help="The store's folder; EMBLEMA_STORE in the environment.")
]
Names = Annotated[list[str], typer.Argument(help="Ids, or beginnings of them that only one piece has.")]
UNBOUNDED = 2**62
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


@app.command()
def ls(
    store: Folder,
    owner: Annotated[str | None, typer.Option(help="One owner's pieces only: a digest's beginning, or shared.")] = None,
    kind: Annotated[str | None, typer.Option(help="chunk or patch.")] = None,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """List pieces, the last used first."""
    with _open(store) as tier:
        if kind not in (None, "chunk", "patch"):
            raise EmblemaError(f"--kind {kind}: choose chunk or patch")
        wanted: Literal["chunk", "patch"] | None = kind  # type: ignore[assignment]
        found = [entry for entry in tier.entries(kind=wanted) if owner is None or entry.owner.startswith(owner)]
    found.sort(key=lambda entry: -entry.accessed)
    if as_json:
        _print(found)
        return
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


@app.command()
def show(store: Folder, name: Annotated[str, typer.Argument(metavar="ID")], as_json: Json = False) -> None:
    """Show one piece: what it is, and every tensor of its file."""
    with _open(store) as tier:
        entry = _one(tier, name)
        reader = tier.open(entry.id, entry.owner)
        if reader is None:
            raise LoadError(entry.id, "it went while it was looked at")
        header = reader.header
        reader.close()
        patches = tier.patches_of(entry.id)
    told = {**asdict(entry), "meta": dict(header.meta), "tensors": dict(header.sizes), "patches": patches}
    if as_json:
        typer.echo(json.dumps(told, indent=2))
        return
    for key, value in told.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for inner, held in value.items():
                typer.echo(f"  {inner}: {held if isinstance(held, int | str | float) else json.dumps(held)}")
        else:
            typer.echo(f"{key}: {', '.join(value) if isinstance(value, tuple | list) else value}")


@app.command()
def verify(
    store: Folder,
    repair: Annotated[bool, typer.Option(help="Put what is damaged in quarantine.")] = True,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Read every piece to its end and compare its checksums; leaves with 1 where one is damaged."""
    with _open(store) as tier:
        with _bar(plain or as_json, "verifying", tier.bytes) as step:
            report = tier.verify(lambda done, total: step(done), repair)
        if as_json:
            _print(asdict(report))
        else:
            screen = _screen(plain)
            screen.print(
                f"{report.checked} pieces read, {report.bytes:,} bytes verified, {len(report.damaged)} damaged"
            )
            for id, reason in report.damaged:
                screen.print(f"  {id[:16]}: {reason}")
    if report.damaged:
        raise typer.Exit(1)


@app.command()
def gc(store: Folder, as_json: Json = False) -> None:
    """Delete what has expired, what dead writers left behind, and what is in quarantine."""
    with _open(store) as tier:
        report = tier.gc()
    if as_json:
        _print(asdict(report))
        return
    typer.echo(
        f"{report.expired} expired pieces and {report.quarantined} quarantined files deleted, "
        f"{report.bytes:,} bytes freed"
    )
    typer.echo(str(report.scan))


@app.command()
def pin(store: Folder, names: Names) -> None:
    """Keep pieces from being evicted."""
    _set_pin(store, names, True)


@app.command()
def unpin(store: Folder, names: Names) -> None:
    """Let pieces be evicted again."""
    _set_pin(store, names, False)


@app.command()
def rm(store: Folder, names: Names) -> None:
    """Delete pieces; with a chunk goes every patch made from it."""
    with _open(store) as tier:
        for entry in _all(tier, names):
            tier.delete(entry.id, entry.owner)
            typer.echo(f"deleted {entry.kind} {entry.id}")


@app.command("export")
def export_(
    store: Folder,
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Ids, or their beginnings; every piece if left out.")
    ] = None,
    plain: Plain = False,
) -> None:
    """Copy pieces to a folder, each verified, as files that other programs can read."""
    from emblema.store.exchange import export_piece

    with _open(store) as tier:
        chosen = list(_all(tier, names)) if names else list(tier.entries())
        with _bar(plain, "exporting", sum(entry.bytes for entry in chosen)) as step:
            done = 0
            for entry in chosen:
                export_piece(tier, entry.id, out)
                done += entry.bytes
                step(done)
    typer.echo(f"{len(chosen)} pieces in {out}")


@app.command("import")
def import_(
    store: Folder,
    source: Annotated[Path, typer.Argument(help="A file, or a folder that `export` wrote.")],
    plain: Plain = False,
) -> None:
    """Take files into the store, each verified; leaves with 1 where one was refused."""
    from emblema.store.exchange import import_piece, piece_files

    files = list(piece_files(source))
    refused = []
    with _open(store) as tier, _bar(plain, "importing", len(files)) as step:
        for index, path in enumerate(files):
            try:
                import_piece(tier, path)
            except EmblemaError as error:
                refused.append(f"{path}: {error}")
            step(index + 1)
    typer.echo(f"{len(files) - len(refused)} pieces taken, {len(refused)} refused")
    for line in refused:
        typer.echo(line, err=True)
    if refused:
        raise typer.Exit(1)


@app.command()
def stats(store: Folder, as_json: Json = False) -> None:
    """Say how much is held, and by whom."""
    with _open(store) as tier:
        held: dict[str, dict[str, int]] = {}
        for entry in tier.entries():
            owned = held.setdefault(entry.owner, {"chunks": 0, "patches": 0, "pinned": 0, "bytes": 0})
            owned["chunks" if entry.kind == "chunk" else "patches"] += 1
            owned["pinned"] += entry.terms.pinned
            owned["bytes"] += entry.bytes
        told = {
            "folder": str(store), "pieces": tier.count(), "bytes": tier.bytes,
            "owners": held, "scan": asdict(tier.report),
        }  # fmt: skip
    if as_json:
        _print(told)
        return
    typer.echo(f"{told['pieces']} pieces, {told['bytes']:,} bytes")
    typer.echo(f"opened: {tier.report}")
    for owner, owned in sorted(held.items()):
        typer.echo(
            f"  {owner[:16]}: {owned['chunks']} chunks, {owned['patches']} patches, {owned['pinned']} pinned, "
            f"{owned['bytes']:,} bytes"
        )


def _set_pin(store: Path, names: list[str], pinned: bool) -> None:
    with _open(store) as tier:
        for entry in _all(tier, names):
            tier.set_pin(entry.id, pinned)
            typer.echo(f"{'pinned' if pinned else 'unpinned'} {entry.id}")


@contextmanager
def _open(folder: Path) -> "Iterator[DiskTier]":
    from emblema.store.disk import DiskTier

    if not folder.is_dir():
        raise StoreError(f"--store {folder}: there is no such folder")
    if not (folder / "FORMAT").exists():
        raise StoreError(f"--store {folder}: this folder is no store: it has no file FORMAT")
    # No budget of its own: looking at a store evicts nothing from it.
    tier = DiskTier(folder, UNBOUNDED)
    try:
        yield tier
    finally:
        tier.close()


def _all(tier: "DiskTier", names: Iterable[str]) -> "list[Entry]":
    return [_one(tier, name) for name in names]


def _one(tier: "DiskTier", name: str) -> "Entry":
    if len(name) == 64:
        found = tier.entry(name)
        matching = [] if found is None else [found]
    else:
        matching = [entry for entry in tier.entries() if name and entry.id.startswith(name)]
    if len(matching) != 1:
        what = "no piece" if not matching else f"{len(matching)} pieces"
        raise EmblemaError(f"{what} in the store begins with {name!r}: give an id, or more of it")
    return matching[0]


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


@contextmanager
def _bar(plain: bool, what: str, total: int) -> Iterator[Any]:
    """A progress bar on a terminal; gives what is called with how far it is."""
    from rich.progress import Progress

    screen = _screen(plain)
    if plain or not screen.is_terminal:
        yield lambda done: None
        return
    with Progress(console=screen, transient=True) as progress:
        task = progress.add_task(what, total=max(total, 1))
        yield lambda done: progress.update(task, completed=done)


def _print(value: Any) -> None:
    typer.echo(json.dumps([asdict(one) for one in value] if isinstance(value, list) else value, indent=2))

"""`emblema store …`: what a folder of stored pieces holds, and keeping it in order."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emblema.cli.interrupt import raise_on_interrupt
from emblema.cli.options import STORE, Json, Plain, StoreFolder
from emblema.cli.screen import console, show, show_json, table
from emblema.errors import EmblemaError, LoadError, StoreError

if TYPE_CHECKING:
    from emblema.store.disk import DiskEntry, DiskTier

Names = Annotated[list[str], typer.Argument(help="Ids, or beginnings of them that only one piece has.")]
UNBOUNDED = 2**62
"""No budget: looking at a store evicts nothing from it."""

app = typer.Typer(
    help="A folder of stored chunks and patches: what is in it, and keeping it in order.", no_args_is_help=True
)


@app.command()
def ls(
    store: StoreFolder = STORE,
    owner: Annotated[str | None, typer.Option(help="One owner's pieces only: a digest's beginning, or shared.")] = None,
    kind: Annotated[str | None, typer.Option(help="chunk or patch.")] = None,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """List pieces, the last used first.

    Opening a store, here and in every other command, checks it against its files: what is damaged goes to quarantine,
    and what killed writers left half-written is deleted.
    """
    with open_store(store) as tier:
        if kind not in (None, "chunk", "patch"):
            raise EmblemaError(f"--kind {kind}: choose chunk or patch")
        found = [
            entry for entry in tier.entries() if kind in (None, entry.kind) and entry.owner.startswith(owner or "")
        ]
    found.sort(key=lambda entry: -entry.accessed)
    if as_json:
        show_json(found)
        return
    shown = table("id", "kind", "owner", "bytes", "created", "used", "terms", right=("bytes",), no_wrap=True)
    for entry in found:
        moments = (datetime.fromtimestamp(seconds, UTC) for seconds in (entry.created, entry.accessed))
        times = (moment.strftime("%Y-%m-%d %H:%M:%S") for moment in moments)
        shown.add_row(entry.id[:16], entry.kind, entry.owner[:12], f"{entry.bytes:,}", *times, _terms(entry))
    screen = console(plain)
    screen.print(shown)
    screen.print(f"{len(found)} pieces, {sum(entry.bytes for entry in found):,} bytes")


@app.command("show")
def show_piece(
    name: Annotated[str, typer.Argument(metavar="ID")], store: StoreFolder = STORE, as_json: Json = False
) -> None:
    """Show one piece: what it is, and every tensor of its file."""
    with open_store(store) as tier:
        entry = find_piece(tier, name)
        reader = tier.open(entry.id, entry.owner)
        if reader is None:
            raise LoadError(entry.id, "it went while it was looked at")
        header = reader.header
        reader.close()
        patches = tier.patches_of(entry.id)
    fields = {**asdict(entry), "meta": dict(header.meta), "tensors": dict(header.sizes), "patches": patches}
    if as_json:
        show_json(fields)
        return
    for key, value in fields.items():
        if isinstance(value, dict):
            typer.echo(f"{key}:")
            for inner, held in value.items():
                typer.echo(f"  {inner}: {held if isinstance(held, int | str | float) else json.dumps(held)}")
        else:
            typer.echo(f"{key}: {', '.join(value) if isinstance(value, tuple | list) else value}")


@app.command()
def verify(
    store: StoreFolder = STORE,
    repair: Annotated[bool, typer.Option(help="Put what is damaged in quarantine.")] = True,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Read every piece to its end and compare its checksums; leaves with 1 where one is damaged."""
    from emblema.store.disk.upkeep import verify_pieces

    with open_store(store) as tier, bar(plain or as_json, "verifying", tier.bytes) as step:
        report = verify_pieces(tier, lambda done, total: step(done), repair)
    said = f"{report.checked} pieces read, {report.bytes:,} bytes verified, {len(report.damaged)} damaged"
    show(report, as_json, "\n".join([said, *(f"  {id[:16]}: {reason}" for id, reason in report.damaged)]))
    if report.damaged:
        raise typer.Exit(1)


@app.command()
def gc(store: StoreFolder = STORE, as_json: Json = False, plain: Plain = False) -> None:
    """Delete what has expired, what writers that crashed have left, and what is in quarantine."""
    from emblema.store.disk.upkeep import collect

    with open_store(store) as tier, bar(plain or as_json, "comparing with the files", 1) as step:
        report = collect(tier, lambda done, total: step(done / total))
    said = f"{report.expired} expired pieces and {report.quarantined} quarantined files deleted"
    show(report, as_json, f"{said}, {report.bytes:,} bytes freed\n{report.scan}")


@app.command()
def pin(names: Names, store: StoreFolder = STORE, as_json: Json = False) -> None:
    """Keep pieces from being evicted."""
    _set_pin(store, names, True, as_json)


@app.command()
def unpin(names: Names, store: StoreFolder = STORE, as_json: Json = False) -> None:
    """Let pieces be evicted again."""
    _set_pin(store, names, False, as_json)


@app.command()
def rm(names: Names, store: StoreFolder = STORE, as_json: Json = False) -> None:
    """Delete pieces; with a chunk goes every patch made from it."""
    gone: list[str] = []
    with open_store(store) as tier:
        entries = [find_piece(tier, name) for name in names]
        for entry in entries:
            going = [*tier.patches_of(entry.id), entry.id]
            gone += going if tier.delete(entry.id, entry.owner) else []
    show(list(dict.fromkeys(gone)), as_json, "\n".join(f"deleted {entry.kind} {entry.id}" for entry in entries))


@app.command("export")
def export_(
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    store: StoreFolder = STORE,
    names: Annotated[
        list[str] | None, typer.Argument(help="Ids, or their beginnings; every piece if left out.")
    ] = None,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Copy pieces to a folder, each verified, as files that other programs can read."""
    from emblema.store.exchange import export_piece

    with open_store(store) as tier:
        chosen = [find_piece(tier, name) for name in names] if names else list(tier.entries())
        with bar(plain or as_json, "exporting", sum(entry.bytes for entry in chosen)) as step:
            done = 0
            for entry in chosen:
                export_piece(tier, entry.id, out)
                done += entry.bytes
                step(done)
    show([entry.id for entry in chosen], as_json, f"{len(chosen)} pieces in {out}")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A file, or a folder that `export` wrote.")],
    store: StoreFolder = STORE,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write pieces that are here again, as the files have them.")
    ] = False,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Take files into the store, each verified; leaves with 1 where one was refused.

    A piece that is here already and verifies stays as it is. One of another owner is never replaced.
    """
    from emblema.store.exchange import import_piece, piece_files

    files = list(piece_files(source))
    taken: list[str] = []
    kept: list[str] = []
    refused: dict[str, str] = {}
    with open_store(store) as tier, bar(plain or as_json, "importing", len(files)) as step:
        for index, path in enumerate(files):
            try:
                header, came = import_piece(tier, path, replace)
                (taken if came else kept).append(header.id)
            except EmblemaError as error:
                refused[str(path)] = str(error)
            step(index + 1)
    said = f"{len(taken)} pieces taken, {len(kept)} kept, {len(refused)} refused"
    show({"taken": taken, "kept": kept, "refused": refused}, as_json, said)
    for name, reason in refused.items() if not as_json else ():
        typer.echo(f"{name}: {reason}", err=True)
    if refused:
        raise typer.Exit(1)


@app.command()
def stats(store: StoreFolder = STORE, as_json: Json = False) -> None:
    """Say how much is held, and by whom."""
    held: dict[str, dict[str, int]] = {}
    with open_store(store) as tier:
        count, size, scan = tier.count(), tier.bytes, tier.report
        for entry in tier.entries():
            owned = held.setdefault(entry.owner, {"chunks": 0, "patches": 0, "pinned": 0, "bytes": 0})
            owned["chunks" if entry.kind == "chunk" else "patches"] += 1
            owned["pinned"] += entry.terms.pinned
            owned["bytes"] += entry.bytes
    lines = [
        f"  {owner[:16]}: {owned['chunks']} chunks, {owned['patches']} patches, {owned['pinned']} pinned, "
        f"{owned['bytes']:,} bytes"
        for owner, owned in sorted(held.items())
    ]
    found = {"folder": str(store), "pieces": count, "bytes": size, "owners": held, "scan": scan}
    show(found, as_json, "\n".join([f"{count} pieces, {size:,} bytes", f"opened: {scan}", *lines]))


def _set_pin(store: Path, names: list[str], pinned: bool, as_json: bool) -> None:
    with open_store(store) as tier:
        entries = [find_piece(tier, name) for name in names]
        for entry in entries:
            tier.set_pin(entry.id, pinned)
    done = "pinned" if pinned else "unpinned"
    show([entry.id for entry in entries], as_json, "\n".join(f"{done} {entry.id}" for entry in entries))


@contextmanager
def open_store(folder: Path) -> "Iterator[DiskTier]":
    """Open the disk tier of a folder, which has to be a store's already.

    Raises:
        StoreError: it is not there, or no store.
    """
    from emblema.store.disk import DiskTier

    if not folder.is_dir():
        raise StoreError(f"--store {folder}: there is no such folder")
    if not (folder / "FORMAT").exists():
        raise StoreError(f"--store {folder}: this folder is no store: it has no file FORMAT")
    raise_on_interrupt()
    tier = DiskTier(folder, UNBOUNDED)
    try:
        yield tier
    finally:
        tier.close()


def find_piece(tier: "DiskTier", name: str) -> "DiskEntry":
    """Return the piece of an id, or of the beginning of an id.

    Raises:
        EmblemaError: there is none, or more than one.
    """
    if len(name) == 64:
        found = tier.entry(name)
        matching = [] if found is None else [found]
    else:
        matching = [entry for entry in tier.entries() if name and entry.id.startswith(name)]
    if len(matching) != 1:
        what = "no piece" if not matching else f"{len(matching)} pieces"
        raise EmblemaError(f"{what} in the store begins with {name!r}: give an id, or more of it")
    return matching[0]


@contextmanager
def bar(hidden: bool, what: str, total: int) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on a terminal; yields what to call with the progress so far."""
    from rich.progress import Progress

    screen = console(hidden)
    with Progress(console=screen, transient=True, disable=hidden or not screen.is_terminal) as progress:
        task = progress.add_task(what, total=max(total, 1))
        yield lambda done: progress.update(task, completed=done)


def _terms(entry: "DiskEntry") -> str:
    terms = entry.terms
    words = ["pinned"] if terms.pinned else []
    words += [f"priority {terms.priority}"] if terms.priority else []
    words += [f"{terms.seconds:g} s"] if terms.seconds is not None else []
    words += [f"{terms.idle_seconds:g} s idle"] if terms.idle_seconds is not None else []
    return ", ".join(words)

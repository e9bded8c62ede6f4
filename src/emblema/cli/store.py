"""`emblema store …`: what a folder of stored pieces holds, and keeping it in order."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from emblema.cli.options import Plain
from emblema.cli.store_folder import Folder, Names, find_piece, find_pieces, open_store
from emblema.cli.store_listing import (
    bar,
    show_collected,
    show_entries,
    show_fields,
    show_json,
    show_statistics,
    show_verified,
    statistics_of,
)
from emblema.errors import EmblemaError, LoadError

app = typer.Typer(
    help="A folder of stored chunks and patches: what is in it, and keeping it in order.", no_args_is_help=True
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


@app.command()
def ls(
    store: Folder,
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
        wanted: Literal["chunk", "patch"] | None = kind  # type: ignore[assignment]
        found = [entry for entry in tier.entries(kind=wanted) if owner is None or entry.owner.startswith(owner)]
    found.sort(key=lambda entry: -entry.accessed)
    if as_json:
        show_json(found)
    else:
        show_entries(found, plain)


@app.command()
def show(store: Folder, name: Annotated[str, typer.Argument(metavar="ID")], as_json: Json = False) -> None:
    """Show one piece: what it is, and every tensor of its file."""
    with open_store(store) as tier:
        entry = find_piece(tier, name)
        reader = tier.open(entry.id, entry.owner)
        if reader is None:
            raise LoadError(entry.id, "it went while it was looked at")
        header = reader.header
        reader.close()
        patches = tier.patches_of(entry.id)
    told = {**asdict(entry), "meta": dict(header.meta), "tensors": dict(header.sizes), "patches": patches}
    (show_json if as_json else show_fields)(told)


@app.command()
def verify(
    store: Folder,
    repair: Annotated[bool, typer.Option(help="Put what is damaged in quarantine.")] = True,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Read every piece to its end and compare its checksums; leaves with 1 where one is damaged."""
    with open_store(store) as tier, bar(plain or as_json, "verifying", tier.bytes) as step:
        report = tier.verify(lambda done, total: step(done), repair)
    if as_json:
        show_json(report)
    else:
        show_verified(report, plain)
    if report.damaged:
        raise typer.Exit(1)


@app.command()
def gc(store: Folder, as_json: Json = False, plain: Plain = False) -> None:
    """Delete what has expired, what dead writers left behind, and what is in quarantine."""
    with open_store(store) as tier, bar(plain or as_json, "comparing with the files", 1) as step:
        report = tier.gc(lambda done, total: step(done / total))
    (show_json if as_json else show_collected)(report)


@app.command()
def pin(store: Folder, names: Names, as_json: Json = False) -> None:
    """Keep pieces from being evicted."""
    _set_pin(store, names, True, as_json)


@app.command()
def unpin(store: Folder, names: Names, as_json: Json = False) -> None:
    """Let pieces be evicted again."""
    _set_pin(store, names, False, as_json)


@app.command()
def rm(store: Folder, names: Names, as_json: Json = False) -> None:
    """Delete pieces; with a chunk goes every patch made from it."""
    gone: list[str] = []
    with open_store(store) as tier:
        for entry in find_pieces(tier, names):
            going = [*tier.patches_of(entry.id), entry.id]
            if tier.delete(entry.id, entry.owner):
                gone += going
            if not as_json:
                typer.echo(f"deleted {entry.kind} {entry.id}")
    if as_json:
        show_json(list(dict.fromkeys(gone)))


@app.command("export")
def export_(
    store: Folder,
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Ids, or their beginnings; every piece if left out.")
    ] = None,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Copy pieces to a folder, each verified, as files that other programs can read."""
    from emblema.store.exchange import export_piece

    with open_store(store) as tier:
        chosen = find_pieces(tier, names) if names else list(tier.entries())
        with bar(plain or as_json, "exporting", sum(entry.bytes for entry in chosen)) as step:
            done = 0
            for entry in chosen:
                export_piece(tier, entry.id, out)
                done += entry.bytes
                step(done)
    if as_json:
        show_json([entry.id for entry in chosen])
    else:
        typer.echo(f"{len(chosen)} pieces in {out}")


@app.command("import")
def import_(
    store: Folder,
    source: Annotated[Path, typer.Argument(help="A file, or a folder that `export` wrote.")],
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
    if as_json:
        show_json({"taken": taken, "kept": kept, "refused": refused})
    else:
        typer.echo(f"{len(taken)} pieces taken, {len(kept)} kept, {len(refused)} refused")
        for name, reason in refused.items():
            typer.echo(f"{name}: {reason}", err=True)
    if refused:
        raise typer.Exit(1)


@app.command()
def stats(store: Folder, as_json: Json = False) -> None:
    """Say how much is held, and by whom."""
    with open_store(store) as tier:
        told = {"folder": str(store), **statistics_of(tier)}
    if as_json:
        show_json(told)
    else:
        show_statistics(told, str(tier.report))


def _set_pin(store: Path, names: list[str], pinned: bool, as_json: bool) -> None:
    with open_store(store) as tier:
        entries = find_pieces(tier, names)
        for entry in entries:
            tier.set_pin(entry.id, pinned)
            if not as_json:
                typer.echo(f"{'pinned' if pinned else 'unpinned'} {entry.id}")
    if as_json:
        show_json([entry.id for entry in entries])

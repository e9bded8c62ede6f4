"""The folder and the pieces that a command of `emblema store …` is about."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from emblema.errors import EmblemaError, StoreError

if TYPE_CHECKING:
    from emblema.store.disk import DiskTier, Entry

Folder = Annotated[
    Path, typer.Option("--store", envvar="EMBLEMA_STORE", help="The store's folder; EMBLEMA_STORE in the environment.")
]
Names = Annotated[list[str], typer.Argument(help="Ids, or beginnings of them that only one piece has.")]
UNBOUNDED = 2**62


@contextmanager
def open_store(folder: Path) -> "Iterator[DiskTier]":
    """The disk tier of a folder, which has to be a store's already.

    Raises:
        StoreError: it is not there, or no store.
    """
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


def find_pieces(tier: "DiskTier", names: Iterable[str]) -> "list[Entry]":
    """The pieces of some ids or beginnings of ids; errors as `find_piece`."""
    return [find_piece(tier, name) for name in names]


def find_piece(tier: "DiskTier", name: str) -> "Entry":
    """The piece of an id, or of the beginning of one.

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

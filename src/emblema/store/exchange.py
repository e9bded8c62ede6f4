"""Export of pieces from a store and import into another, as files: `docs/store-format.md`."""

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from emblema.errors import LoadError, StoreError
from emblema.store import format
from emblema.store.disk import DiskTier
from emblema.store.disk.entry import DiskEntry, entry_of, without_terms
from emblema.store.disk.upkeep import verify_piece
from emblema.store.files import make_folder, write_whole
from emblema.store.record import Record, RecordHeader, RecordReader, Terms

_LOG = logging.getLogger(__name__)
SUFFIX = ".safetensors"


def export_piece(tier: DiskTier, id: str, folder: Path) -> Path:
    """Copy one piece, verified, to `folder` under its id; returns the file's path.

    Raises:
        LoadError: the piece is not here, or damaged.
        StoreError: the file cannot be written; nothing of it is left.
    """
    entry = tier.entry(id)
    reader = None if entry is None else tier.open(id, entry.owner)
    if reader is None:
        raise LoadError(id, "it is not in the store")
    with closing(reader):
        record = _read(reader)
    path = folder / f"{id}{SUFFIX}"
    try:
        make_folder(folder)
        write_whole(path, format.buffers(record))
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}; give another folder") from error
    return path


def import_piece(tier: DiskTier, path: Path, replace: bool = False) -> tuple[RecordHeader, bool]:
    """Import one file, every tensor verified; a piece that is here already and verifies stays.

    The piece keeps its owner: ids and owners are digests that only the same salt makes again. It keeps a pin too.

    Args:
        tier: of the store.
        path: of the file.
        replace: replace a piece that is here already.

    Returns:
        The file's header, and whether it was taken.

    Raises:
        LoadError: the file is damaged, or no piece.
        StoreError: it cannot be kept: another owner's piece has its id, or there is no room.
    """
    with format.open_file(path) as reader:
        record = _read(reader)
    header = record.header
    here = tier.entry(header.id)
    if here is not None and here.owner != header.owner:
        raise StoreError(f"{path}: {header.id[:12]} belongs to another owner here, whose piece stays")
    try:
        pinned = here is not None and here.terms.pinned
        terms: Terms = entry_of(header, bytes=0, accessed=header.created, pinned=pinned).terms
    except ValueError as error:
        raise LoadError(header.id, str(error)) from error
    if here is not None and not replace and _verifies(tier, here):
        return header, False
    tier.write(Record(without_terms(header), record.arrays), terms)
    return header, True


def _read(reader: RecordReader) -> Record:
    return Record(reader.header, {name: reader.read(name) for name in reader.header.sizes})


def _verifies(tier: DiskTier, entry: DiskEntry) -> bool:
    try:
        verify_piece(tier, entry)
    except (LoadError, OSError) as error:
        _LOG.warning("%s: %s; it is taken from the file instead", entry.id[:12], error)
        return False
    return True


def piece_files(source: Path) -> Iterator[Path]:
    """Iterate over the piece files of a folder and its subfolders, or over the one file that was given.

    Raises:
        StoreError: there is no such file or folder.
    """
    if source.is_dir():
        yield from sorted(path for path in source.rglob(f"*{SUFFIX}") if path.is_file() and not path.is_symlink())
    elif source.is_file():
        yield source
    else:
        raise StoreError(f"{source} is neither a file nor a folder: give what `emblema store export` wrote")

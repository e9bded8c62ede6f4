"""The folder of a disk tier: where its files are, and how they are written and deleted so that a crash tears none.

    FORMAT                      what this folder is, and its version
    catalogue.sqlite            what is known of the pieces
    lock                        held while the catalogue is opened
    pieces/ab/<id>.safetensors  the pieces, by the first two digits of their id
    temporary/                  a piece while it is written, within a change of the catalogue
    quarantine/                 the last file that did not verify

Every name is resolved within its own folder and no link is followed.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from xxhash import xxh3_64

from emblema.errors import StoreError
from emblema.store.catalogue import COMPANIONS, FILE, LOCK
from emblema.store.files import clear, make_folder, sync_folder
from emblema.store.files import written as write_aside
from emblema.store.record import check_id, is_id

VERSION = 1
SUFFIX = ".safetensors"
FORMAT, PIECES, TEMPORARY, QUARANTINE = "FORMAT", "pieces", "temporary", "quarantine"
_FOLDERS = (PIECES, TEMPORARY, QUARANTINE)
_OLD_INDEX, _OLD_PINS = "index.sqlite", "pinned"
"""What folders had before there was a catalogue; until 0.2."""
_BESIDE = ("libraries", "streams", "policy", "pairs", "serve", "deletions-read")
"""What others keep beside the pieces."""
_DATABASES = (FILE, f"{FILE}.damaged", "deletions.sqlite", _OLD_INDEX)
KNOWN = frozenset(
    {FORMAT, LOCK, _OLD_PINS, *_FOLDERS, *_BESIDE, *(name + end for name in _DATABASES for end in ("", *COMPANIONS))}
)
_FORMAT_LINE = re.compile(rb"emblema store, format (\d{1,9}), checksum ([0-9a-f]{16})\n")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def prepare(path: Path) -> list[str]:
    """Make a folder and those in it that are missing; return what was put in order, in words.

    Raises:
        StoreError: it is a file, cannot be made, or was written by a later version of the program.
    """
    notes: list[str] = []
    try:
        make_folder(path, mode=0o700)
        for name in _FOLDERS:
            make_own(path / name, notes)
        # A process that was killed may have made folders whose names are not durable yet.
        with suppress(PermissionError):
            sync_folder(path.parent)
        for folder in (path, path / PIECES):
            sync_folder(folder)
        if not _has_format(path, notes):
            line = b"emblema store, format %d, checksum %s\n" % (VERSION, _checksum(VERSION))
            with write_aside(path / FORMAT, [line], path / TEMPORARY) as name_it:
                clear(path / FORMAT)
                name_it()
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreError(f"{error.filename or path} is not a folder: give the store one of its own") from error
    except OSError as error:
        # What is already there can still be read.
        if not (path / PIECES).is_dir():
            raise StoreError(f"{path} cannot hold a store: {error.strerror or error}") from error
        _has_format(path, notes)
    return notes


def make_own(path: Path, notes: list[str] | None = None) -> None:
    """Make one of the store's own folders, durably, where it is missing.

    Raises:
        FileExistsError: the pieces' folder is none.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if stat.S_ISDIR(path.lstat().st_mode):
            return
        if path.name not in (TEMPORARY, QUARANTINE):
            raise FileExistsError(17, "not a folder", str(path)) from None
        # The store can do without the contents of these.
        clear(path)
        path.mkdir(mode=0o700)
        if notes is not None:
            notes.append(f"{path.name} was no folder and was made again")
    try:
        sync_folder(path.parent)
    except OSError:
        # Made again by the next write, which makes its name durable.
        with suppress(OSError):
            path.rmdir()
        raise


def _has_format(folder: Path, notes: list[str]) -> bool:
    """Return whether a folder says that it is a store of this version.

    Raises:
        StoreError: it is one of a later version.
    """
    try:
        descriptor = os.open(folder / FORMAT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with closing(os.fdopen(descriptor, "rb")) as file:
            match = _FORMAT_LINE.fullmatch(file.read(4096))
    except FileNotFoundError:
        return False
    except OSError:
        match = None
    if match is None or match[2] != _checksum(int(match[1])):
        notes.append(f"{FORMAT} was damaged and was written again")
        return False
    if int(match[1]) > VERSION:
        raise StoreError(
            f"{folder} has format {int(match[1])}, this program knows {VERSION}: upgrade it, or give the store "
            "another folder"
        )
    return True


def _checksum(version: int) -> bytes:
    return xxh3_64(b"emblema store %d" % version).hexdigest().encode()


def piece_path(folder: Path, id: str) -> Path:
    """Return the file of a piece, whether it is there or not.

    Raises:
        StoreError: the id is none.
    """
    return folder / PIECES / id[:2] / (check_id(id) + SUFFIX)


@contextmanager
def written(folder: Path, id: str, buffers: Iterable[bytes | memoryview]) -> Iterator[Callable[[], os.stat_result]]:
    """Write a piece's file without its name; yields what gives it that and returns its status; as `files.written`."""
    path = piece_path(folder, id)
    for part in (folder / TEMPORARY, path.parent.parent, path.parent):
        make_own(part)
    with write_aside(path, buffers, folder / TEMPORARY) as name_it:

        def place() -> os.stat_result:
            if path.is_dir() and not path.is_symlink():
                clear(path)
            name_it()
            return path.lstat()

        yield place


def delete_pieces(folder: Path, ids: Collection[str]) -> None:
    """Delete pieces' files; no power cut brings them back once this returns."""
    for id in ids:
        with suppress(FileNotFoundError), open_folder(piece_path(folder, id).parent) as shard:
            os.unlink(id + SUFFIX, dir_fd=shard)
    for name in {id[:2] for id in ids}:
        with suppress(FileNotFoundError):
            sync_folder(folder / PIECES / name)


def set_aside(folder: Path, id: str, inode: int | None) -> bool:
    """Take a piece's file out of `pieces/` for inspection, in place of the last one; return whether it was there.

    Args:
        inode: of the file, so that another of the same id stays; None for any file.
    """
    path = piece_path(folder, id)
    try:
        if inode is not None and path.lstat().st_ino != inode:
            return False
        make_own(folder / QUARANTINE)
        with open_folder(path.parent) as shard, open_folder(folder / QUARANTINE) as quarantine:
            os.rename(path.name, path.name, src_dir_fd=shard, dst_dir_fd=quarantine)
            os.fsync(shard)
        clear_quarantine(folder, keep=path.name)
    except FileNotFoundError:
        return False
    return True


def clear_quarantine(folder: Path, keep: str = "") -> tuple[int, int]:
    """Delete the files in quarantine but one; return how many, and their bytes."""
    count = freed = 0
    for name, status in list(list_files(folder / QUARANTINE)):
        if name != keep:
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(folder / QUARANTINE / name)
                count, freed = count + 1, freed + status.st_size
    return count, freed


def remove_abandoned(folder: Path) -> int:
    """Delete, within a change, the files that writers left half-written when they ended; return how many there were."""
    removed = 0
    for name, status in list(list_files(folder / TEMPORARY)):
        if stat.S_ISREG(status.st_mode):
            with suppress(OSError):
                os.unlink(folder / TEMPORARY / name)
                removed += 1
    return removed


def old_pins(folder: Path) -> frozenset[str]:
    """Return the ids that were pinned before there was a catalogue."""
    return frozenset(name for name, _ in list_files(folder / _OLD_PINS) if is_id(name))


def forget_old(folder: Path) -> None:
    """Delete what folders had before there was a catalogue."""
    with suppress(OSError):
        for end in ("", *COMPANIONS):
            clear(folder / f"{_OLD_INDEX}{end}")
        if (folder / _OLD_PINS).is_dir() and not (folder / _OLD_PINS).is_symlink():
            shutil.rmtree(folder / _OLD_PINS)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Yield a descriptor of a folder that is no link."""
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def list_files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names in a folder with their status; none where there is no folder, or a link."""
    if path.is_symlink():
        return
    try:
        entries = os.scandir(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)

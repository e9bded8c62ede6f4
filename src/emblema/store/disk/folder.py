"""The folder of a disk tier: where its files are, and how they are written and deleted so that a crash tears none.

    FORMAT                      what this folder is, and its version
    lock                        held by the process that changes the folder
    index.sqlite                the index of the pieces; can be rebuilt from the files
    pieces/ab/<id>.safetensors  the pieces, by the first two digits of their id
    pinned/<id>                 an empty file for every pinned piece
    temporary/                  pieces while they are written, each locked by its writer
    quarantine/                 the last files that did not verify
    libraries/, streams/        files of `emblema.library` and `emblema.stream`, not of this tier

Every name is resolved within its own folder and no link is followed.
"""

import fcntl
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from xxhash import xxh3_64

from emblema.errors import StoreError
from emblema.store.files import hold_lock, make_folder, sync_folder
from emblema.store.record import check_id, is_id

VERSION = 1
SUFFIX = ".safetensors"
FORMAT, LOCK, INDEX = "FORMAT", "lock", "index.sqlite"
PIECES, PINNED, TEMPORARY, QUARANTINE = "pieces", "pinned", "temporary", "quarantine"
_FOLDERS = (PIECES, PINNED, TEMPORARY, QUARANTINE)
_COMPANIONS = ("libraries", "streams", "policy", "pairs", "deletions-read")
"""What others keep beside the pieces."""
_INDEXES = (INDEX, f"{INDEX}-wal", f"{INDEX}-shm", f"{INDEX}-journal")
KNOWN = frozenset({FORMAT, LOCK, *_INDEXES, *_FOLDERS, *_COMPANIONS})

_REMOVED = range(1, 33)
"""Bytes of the lock file: a bit for each folder of pieces; the byte before them says that a change is unfinished."""
_FORMAT_LINE = re.compile(rb"emblema store, format (\d{1,9}), checksum ([0-9a-f]{16})\n")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Temporary:
    """A new file in a folder. Leaving the context without `place` deletes it.

    Its lock ends with the writer's process, so that others know whether the file is still being written.

    Args:
        folder: where it is made.
        bytes: that it will have; it has this length at once.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, bytes: int) -> None:
        self.bytes = bytes
        while True:
            self._path = folder / secrets.token_hex(16)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            self.file = open(descriptor, "wb", buffering=2**20)  # noqa: SIM115
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.ftruncate(descriptor, bytes)
                status = os.fstat(descriptor)
            except BaseException:
                self.discard()
                raise
            self.inode = status.st_ino
            if status.st_nlink:
                return
            # Another process deleted it before it was locked, as a crashed writer's.
            self.discard()

    def place(self, folder: int, name: str) -> None:
        """Make it the file `name` of an open folder, contents and name durable when this returns."""
        os.rename(self._path, name, dst_dir_fd=folder)
        os.fsync(folder)
        self.discard()

    def finish(self, accessed: float | None = None) -> None:
        """Make its contents durable once they are written; they do not change any more.

        Args:
            accessed: Unix time that its modification time is set to.

        Raises:
            OSError: they did not all reach the disk.
        """
        self.file.flush()
        if accessed is not None:
            os.utime(self.file.fileno(), ns=(round(accessed * 1e9), round(accessed * 1e9)))
        os.fsync(self.file.fileno())

    def discard(self) -> None:
        """Delete it unless it has been put in its place; may be called more than once.

        Where it cannot be deleted, the next scan does it: nobody holds its lock by then.
        """
        with suppress(OSError):
            os.unlink(self._path)
        # A full disk makes closing fail again on what could not be written; the descriptor is closed even then.
        with suppress(OSError):
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    @staticmethod
    def abandon(path: Path) -> bool:
        """Delete a file whose writer has ended; return False where it is still being written."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True


class Folder:
    """The files of a disk tier. Makes the folder and those in it that are missing; `close` releases its lock.

    Args:
        path: of the folder; may be a link to one.

    Raises:
        StoreError: it is a file, cannot be made, or was written by a later version of the program.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.realpath(path))
        self.notes: list[str] = []
        self.read_only: str | None = None
        self._lock: int | None = None
        try:
            make_folder(self.path, mode=0o700)
            self._prepare()
        except (FileExistsError, NotADirectoryError) as error:
            raise StoreError(f"{error.filename or self.path} is not a folder: give the store one of its own") from error
        except OSError as error:
            raise StoreError(f"{self.path} cannot hold a store: {error.strerror or error}") from error

    def _prepare(self) -> None:
        try:
            self._lock = self._open_lock()
            with self.locked():
                for name in _FOLDERS:
                    self._make(self.path / name)
                # A process that was killed may have made folders whose names are not durable yet.
                with suppress(PermissionError):
                    sync_folder(self.path.parent)
                sync_folder(self.path)
                sync_folder(self.path / PIECES)
                self._check_format()
        except (FileExistsError, NotADirectoryError):
            raise
        except OSError as error:
            # What is already there can still be read.
            if not (self.path / PIECES).is_dir():
                raise
            self.read_only = f"{self.path} cannot be written: {error.strerror or error}"
            self.notes.append(self.read_only)
            self._check_format()

    def _open_lock(self) -> int:
        path = self.path / LOCK
        if path.is_symlink() or (path.exists() and not path.is_file()):
            # No process can have locked it.
            clear(path)
            self.notes.append(f"{LOCK} was no file and was made again")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _make(self, path: Path) -> None:
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if stat.S_ISDIR(path.lstat().st_mode):
                return
            if path.name == PIECES:
                raise FileExistsError(17, "not a folder", str(path)) from None
            # The store can do without the contents of the others.
            clear(path)
            path.mkdir(mode=0o700)
            self.notes.append(f"{path.name} was no folder and was made again")
        sync_folder(self.path)

    def _check_format(self) -> None:
        path = self.path / FORMAT
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                found = os.read(descriptor, 4096)
            finally:
                os.close(descriptor)
        except OSError as error:
            found = b""
            if not isinstance(error, FileNotFoundError):
                self.notes.append(f"{FORMAT} could not be read ({error.strerror}) and was written again")
        else:
            match = _FORMAT_LINE.fullmatch(found)
            if match and match[2] == _checksum(int(match[1])):
                if int(match[1]) > VERSION:
                    raise StoreError(
                        f"{self.path} has format {int(match[1])}, this program knows {VERSION}: upgrade it, or give "
                        "the store another folder"
                    )
                return
            self.notes.append(f"{FORMAT} was damaged and was written again")
        if self.read_only is None:
            line = b"emblema store, format %d, checksum %s\n" % (VERSION, _checksum(VERSION))
            with Temporary(self.path / TEMPORARY, len(line)) as temporary, open_folder(self.path) as folder:
                temporary.file.write(line)
                clear(path)
                temporary.finish()
                temporary.place(folder, FORMAT)

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def piece(self, id: str) -> Path:
        return self.path / PIECES / id[:2] / (check_id(id) + SUFFIX)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, which every change in any process takes; one thread of a process at a time.

        Raises:
            TimeoutError: another process keeps it.
        """
        if self._lock is None:
            raise StoreError(self.read_only or f"{self.path}: the store is closed")
        with hold_lock(self._lock, self.path / LOCK):
            yield

    @property
    def unfinished(self) -> bool:
        """Whether a change of the files was begun and not finished, so that the index may differ from them."""
        return self._lock is not None and os.pread(self._lock, 1, 0) == b"1"

    @unfinished.setter
    def unfinished(self, value: bool) -> None:
        if self._lock is not None:
            os.pwrite(self._lock, b"1" if value else b"0", 0)

    def temporary(self, bytes: int) -> Temporary:
        """Return a file to write a piece to; all its bytes count towards the budget from now on."""
        with self._own(TEMPORARY):
            return Temporary(self.path / TEMPORARY, bytes)

    @contextmanager
    def _own(self, name: str) -> Iterator[int]:
        """Yield a descriptor of one of the store's folders, which is made again if it was deleted."""
        if (self.path / FORMAT).exists():
            self._make(self.path / name)
        with open_folder(self.path / name) as folder:
            yield folder

    def place(self, temporary: Temporary, id: str) -> None:
        """Make a written file the piece of an id, durably."""
        path = self.piece(id).parent
        try:
            with self._own(PIECES):
                path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        else:
            try:
                sync_folder(path.parent)
            except OSError:
                # Made again by the next write, which makes its name durable.
                with suppress(OSError):
                    path.rmdir()
                raise
        if self.piece(id).is_dir():
            clear(self.piece(id))
        with open_folder(path) as folder:
            temporary.place(folder, id + SUFFIX)

    def remove(self, ids: Collection[str], durable: bool = True) -> int:
        """Delete the files of pieces, in this order, with the folder locked; return how many there were.

        If not durable, they may come back after a power cut; if it is, neither these do nor any that were deleted
        before, by any process. Their pins go last: a piece that a power cut brings back has its own.
        """
        self._removed |= sum(1 << number for number in {int(id[:2], 16) for id in ids})
        removed = sum(map(self._unlink, ids))
        if durable:
            self._sync_removed()
        for id in ids:
            self.pin(id, False)
        return removed

    def _unlink(self, id: str) -> bool:
        """Delete a piece's file; return whether there was one."""
        with suppress(FileNotFoundError), open_folder(self.piece(id).parent) as folder:
            os.unlink(id + SUFFIX, dir_fd=folder)
            return True
        return False

    @property
    def _removed(self) -> int:
        """Which folders of pieces have had files deleted that may still come back: a bit each, for all processes."""
        return (
            0 if self._lock is None else int.from_bytes(os.pread(self._lock, len(_REMOVED), _REMOVED.start), "little")
        )

    @_removed.setter
    def _removed(self, bits: int) -> None:
        if self._lock is not None and bits != self._removed:
            os.pwrite(self._lock, bits.to_bytes(len(_REMOVED), "little"), _REMOVED.start)

    def _sync_removed(self) -> None:
        bits = self._removed
        for number in range(256):
            if bits >> number & 1:
                with suppress(FileNotFoundError):
                    sync_folder(self.path / PIECES / f"{number:02x}")
        self._removed = 0

    def withdraw(self, id: str, inode: int) -> None:
        """Delete a piece's file if it has this inode; errors are ignored."""
        with suppress(OSError):
            if self.piece(id).lstat().st_ino == inode and self._unlink(id):
                sync_folder(self.piece(id).parent)
                self.pin(id, False)

    def set_accessed(self, id: str, moment: float) -> None:
        """Set a piece's last use as its file's modification time, which outlasts the index."""
        with suppress(FileNotFoundError), open_folder(self.piece(id).parent) as folder:
            nanoseconds = round(moment * 1e9)
            os.utime(id + SUFFIX, ns=(nanoseconds, nanoseconds), dir_fd=folder, follow_symlinks=False)

    def pin(self, id: str, pinned: bool) -> None:
        """Write durably whether a piece is pinned."""
        with self._own(PINNED) as folder:
            try:
                if pinned:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                    os.close(os.open(check_id(id), flags, 0o600, dir_fd=folder))
                else:
                    os.unlink(check_id(id), dir_fd=folder)
            except (FileExistsError, FileNotFoundError):
                return
            os.fsync(folder)

    def pins(self) -> set[str]:
        """Return the ids that are pinned."""
        return {name for name in self._pinned() if is_id(name)}

    def _pinned(self) -> list[str]:
        try:
            with open_folder(self.path / PINNED) as folder:
                return sorted(os.listdir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def under_way(self) -> int:
        """Return the bytes of files that are being written or kept for inspection."""
        return sum(status.st_size for name in (TEMPORARY, QUARANTINE) for _, status in files(self.path / name))

    def remove_temporary(self) -> int:
        """Delete the files that crashed writers left; return how many there were."""
        removed = 0
        for name, status in list(files(self.path / TEMPORARY)):
            if stat.S_ISREG(status.st_mode) and Temporary.abandon(self.path / TEMPORARY / name):
                removed += 1
        return removed

    def quarantine(self, id: str, inode: int | None, limit: int) -> bool:
        """Take a file out of `pieces/`, for inspection where all of quarantine stays within `limit` bytes.

        Args:
            id: of the piece.
            inode: of the file, so that another of the same id stays; None for any file.
            limit: bytes.
        """
        try:
            with open_folder(self.piece(id).parent) as folder, self._own(QUARANTINE) as quarantine:
                status = os.stat(id + SUFFIX, dir_fd=folder, follow_symlinks=False)
                if inode is not None and status.st_ino != inode:
                    return False
                if status.st_size > limit:
                    os.unlink(id + SUFFIX, dir_fd=folder)
                else:
                    name = f"{id}-{secrets.token_hex(4)}{SUFFIX}"
                    os.rename(id + SUFFIX, name, src_dir_fd=folder, dst_dir_fd=quarantine)
                os.fsync(folder)
        except FileNotFoundError:
            return False
        self.shrink_quarantine(limit)
        return True

    def shrink_quarantine(self, limit: int) -> tuple[int, int]:
        """Delete the oldest files in quarantine beyond `limit` bytes; return how many, and their bytes."""
        found = sorted(files(self.path / QUARANTINE), key=lambda file: file[1].st_ctime_ns, reverse=True)
        total = count = freed = 0
        for name, status in found:
            total += status.st_size
            if total > limit or limit == 0:
                with suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(self.path / QUARANTINE / name)
                    count, freed = count + 1, freed + status.st_size
        return count, freed

    def foreign(self) -> Iterator[tuple[str, str]]:
        """Yield the files in the folder that are not the store's, each with the reason; they are left alone."""
        for name in sorted(os.listdir(self.path)):
            if name not in KNOWN:
                yield name, "not the store's"
        for name in self._pinned():
            if not is_id(name):
                yield f"{PINNED}/{name}", "not a piece's name"


def _checksum(version: int) -> bytes:
    return xxh3_64(b"emblema store %d" % version).hexdigest().encode()


def clear(path: Path) -> None:
    """Clear a path for a file of the store: delete a file or link there, rename a folder."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if not path.is_dir():
            raise
        path.rename(path.with_name(f"{path.name}.aside-{secrets.token_hex(4)}"))


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Yield a descriptor of a folder that is no link."""
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the names in a folder with their status; none where there is no folder."""
    try:
        entries = os.scandir(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)

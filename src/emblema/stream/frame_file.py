"""A file with one record for each frame, all of one length: what is kept of it, each column with a checksum.

    16 bytes   MAGIC
    16 bytes   the stream's identity, by chance
    8 bytes    the frame of the first record
    then       records: for each column 8 bytes checksum, the line

The checksum is XXH3-64, little-endian, of the identity, the column (4 bytes), the frame (8 bytes) and the line: so a
line that is damaged, of another stream or in another place is told. Which records are complete is not in the file: the
saved stream says it. Files are named `NAME~<32 digits>.frames`; without a name no saved stream needs it.

Whoever writes to a file holds its lock. One that nobody holds, and no saved stream of its name needs, is what a crash
or a later save left, and is deleted. Which file a saved stream needs changes under the folder's lock alone.
"""

import ctypes
import fcntl
import os
import re
import secrets
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from torch import Tensor
from xxhash import xxh3_64

from emblema.errors import StoreError, StreamError
from emblema.store.files import TEMPORARY, hold_lock, make_folder, sync_folder
from emblema.stream.lines import FrameNumbers
from emblema.stream.state import NAME

MAGIC = b"emblema frames 2"
HEADER = len(MAGIC) + 16 + 8
CHECKSUM = 8
FILE_NAME = re.compile(rf"({NAME.pattern})?~[0-9a-f]{{32}}\.frames")
LOCK = "lock"
MOST_BYTES = 2**25
"""Bytes that are written, or copied to another file, at once."""
PUNCH_HOLE = 1 | 2
"""`fallocate`: give blocks back, and keep the file's size."""
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
Lines = NDArray[numpy.uint8]


@dataclass(slots=True)
class DiskCounts:
    """Counts since a stream began: lines that were read, their bytes, and bytes that were written."""

    disk_reads: int = 0
    disk_read_bytes: int = 0
    disk_written_bytes: int = 0


class FrameFile:
    """An open file of frames. One thread writes; several may read.

    Args:
        descriptor: of the file, which this owns.
        identity: of the stream.
        first: the frame of the first record.
        widths: bytes of a line of each column.

    Attributes:
        path: of the file.
        writable: whether it may be written to.
    """

    def __init__(
        self, path: Path, descriptor: int, identity: bytes, first: int, widths: Sequence[int], counts: DiskCounts
    ) -> None:
        self.path, self.identity, self.first, self.widths, self.counts = path, identity, first, tuple(widths), counts
        self.writable = True
        self._descriptor = descriptor
        # Where each column begins in a record.
        self._begins = numpy.cumsum([0, *(CHECKSUM + width for width in widths)]).tolist()

    @classmethod
    def create(
        cls, folder: Path, name: str, identity: bytes, first: int, widths: Sequence[int], counts: DiskCounts
    ) -> "FrameFile":
        """Return a new file that this process owns, readable by the user alone.

        Args:
            name: of the saved stream; empty if it was not saved.

        Raises:
            StoreError: it cannot be written.
        """
        path = folder / f"{name}~{secrets.token_hex(16)}.frames"
        try:
            make_folder(folder, mode=0o700)
            while True:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.fstat(descriptor).st_nlink:
                    break
                # Another process took it for a leftover before it was locked.
                os.close(descriptor)
            sync_folder(folder)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
        made = cls(path, descriptor, identity, first, widths, counts)
        try:
            made._write([MAGIC + identity + struct.pack("<Q", first)], 0)
        except StoreError:
            made.close()
            path.unlink(missing_ok=True)
            raise
        return made

    @classmethod
    def open(
        cls, folder: Path, facts: dict[str, Any], widths: Sequence[int], counts: DiskCounts, held: bool
    ) -> "FrameFile":
        """Return the file of a saved stream; it is for reading alone while another stream owns it.

        Args:
            facts: as `facts` returned them.
            held: whether the folder's lock is held; if not, it is for reading alone.

        Raises:
            StreamError: there is no such file.
            StoreError: it is another stream's, ends too early, or cannot be read.
            ValueError, KeyError, TypeError: the facts are damaged.
        """
        name, identity = facts["file"], bytes.fromhex(facts["identity"])
        if FILE_NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no file of frames")
        path = folder / name
        try:
            descriptor, writable = _open(path, held)
        except FileNotFoundError as error:
            raise StreamError(
                f"{path} is gone, and the stream's frames with it: load the stream from a copy"
            ) from error
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
        opened = cls(path, descriptor, identity, facts["first"], widths, counts)
        opened.writable = writable
        try:
            if os.pread(descriptor, HEADER, 0) != MAGIC + identity + struct.pack("<Q", facts["first"]):
                raise StoreError(f"{path} is another stream's: load that stream from a copy")
            if os.fstat(descriptor).st_size < opened.end(facts["frames"]):
                raise StoreError(f"{path} ends too early: load the stream from a copy")
            if writable:
                opened.resize(facts["frames"])
        except OSError as error:
            opened.close()
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
        except BaseException:
            opened.close()
            raise
        return opened

    @property
    def record_bytes(self) -> int:
        """Bytes of a frame's record."""
        return int(self._begins[-1])

    @property
    def owner(self) -> str:
        """The name of the saved stream that the file is of; empty for none."""
        return self.path.name.rpartition("~")[0]

    def end(self, frames: int) -> int:
        """Return where the record of the last of so many frames of the stream ends."""
        return HEADER + max(0, frames - self.first) * self.record_bytes

    def facts(self, frames: int) -> dict[str, Any]:
        """Return what a saved stream of so many frames says of the file."""
        return {"file": self.path.name, "identity": self.identity.hex(), "first": self.first, "frames": frames}

    def write(self, column: int, frames: range, lines: Sequence[Tensor]) -> None:
        """Write columns from `column` on: lines [frames, bytes] uint8 of each.

        Raises:
            StoreError: they could not be written.
        """
        begin = self._begins[column]
        block = numpy.empty((len(frames), self._begins[column + len(lines)] - begin), dtype=numpy.uint8)
        for number, own in enumerate(lines, column):
            start = self._begins[number] - begin
            part = block[:, start : start + CHECKSUM + self.widths[number]]
            part[:, CHECKSUM:] = own.numpy()
            for row, frame in zip(part, frames, strict=True):
                row[:CHECKSUM] = numpy.frombuffer(self._checksum(number, frame, row[CHECKSUM:]), numpy.uint8)
        for row, frame in zip(block, frames, strict=True):
            self._write([row.data], self.end(frame) + begin)
        self.counts.disk_written_bytes += block.nbytes

    def read_into(self, column: int, frames: FrameNumbers, out: Lines) -> None:
        """Write a column's lines of frames into `out` [frames, bytes], which lies in memory row after row.

        Raises:
            StoreError: a line is damaged, or the file cannot be read.
        """
        expected, begin = bytearray(CHECKSUM), self._begins[column]
        for line, frame in zip(out, frames.tolist(), strict=True):
            try:
                got = os.preadv(self._descriptor, [expected, line.data], self.end(frame) + begin)
            except OSError as error:
                raise self._failed("read", error) from error
            if got < CHECKSUM + len(line):
                raise StoreError(f"{self.path} ends too early: load the stream from a copy")
            if self._checksum(column, frame, line) != expected:
                raise StoreError(
                    f"{self.path}: what is kept of frame {frame} is damaged; forget that frame, or load the stream "
                    "from a copy"
                )
        self.counts.disk_reads += len(frames)
        self.counts.disk_read_bytes += len(frames) * (CHECKSUM + self.widths[column])

    def erase(self, frames: range) -> None:
        """Overwrite frames with zeros, and give their blocks back where the system can.

        Raises:
            StoreError: they could not be overwritten.
        """
        offset = self.end(frames.start)
        stop = min(self.end(frames.stop), os.fstat(self._descriptor).st_size)
        zeros = bytes(min(MOST_BYTES, max(0, stop - offset)))
        for place in range(offset, stop, MOST_BYTES):
            self._write([memoryview(zeros)[: stop - place]], place)
        if offset < stop:
            self.sync()
            allocate = getattr(ctypes.CDLL(None), "fallocate64", None)
            if allocate is not None:
                # A file system that cannot refuses: the frames are zeros all the same.
                allocate(self._descriptor, PUNCH_HOLE, ctypes.c_int64(offset), ctypes.c_int64(stop - offset))

    def resize(self, frames: int) -> None:
        """Let the file end with the record of the last of so many frames of the stream.

        Raises:
            StoreError: it could not be changed.
        """
        try:
            os.ftruncate(self._descriptor, self.end(frames))
        except OSError as error:
            raise self._failed("written", error) from error

    def copy(self, other: "FrameFile", runs: Sequence[range]) -> None:
        """Copy the records of runs of frames to a file of the same columns and identity.

        Raises:
            StoreError: they cannot be read or written.
        """
        step = max(1, MOST_BYTES // self.record_bytes)
        for run in runs:
            for part in (run[start : start + step] for start in range(0, len(run), step)):
                try:
                    data = os.pread(self._descriptor, self.end(part.stop) - self.end(part.start), self.end(part.start))
                except OSError as error:
                    raise self._failed("read", error) from error
                other._write([data], other.end(part.start))

    def rename(self, name: str) -> None:
        """Give the file to a saved stream.

        Raises:
            StoreError: it cannot be renamed.
        """
        path = self.path.with_name(f"{name}~{self.path.name.rpartition('~')[2]}")
        try:
            os.rename(self.path, path)
            self.path = path
            sync_folder(path.parent)
        except OSError as error:
            raise self._failed("renamed", error) from error

    def sync(self) -> None:
        """Make all that was written outlast a power cut.

        Raises:
            StoreError: it did not all reach the disk.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed("written", error) from error

    def is_there(self) -> bool:
        """Return whether the file still has its name."""
        try:
            named, own = os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor)
        except OSError:
            return False
        return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)

    def close(self) -> None:
        """Give back the file, and its lock with it; one that is of no saved stream is deleted."""
        if not self.owner and self.writable:
            with suppress(OSError):
                self.path.unlink()
        os.close(self._descriptor)

    def _checksum(self, column: int, frame: int, line: Lines) -> bytes:
        digest = xxh3_64(self.identity + struct.pack("<IQ", column, frame))
        digest.update(line.data)
        return struct.pack("<Q", digest.intdigest())

    def _write(self, parts: Sequence[bytes | memoryview], offset: int) -> None:
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    written = os.pwrite(self._descriptor, view, offset)
                    view, offset = view[written:], offset + written
        except OSError as error:
            raise self._failed("written", error) from error

    def _failed(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"{self.path} could not be {what}: {error.strerror or error}")


def _open(path: Path, owning: bool) -> tuple[int, bool]:
    """Return a descriptor, and whether it may be written to."""
    if not owning:
        return os.open(path, os.O_RDONLY | _FLAGS), False
    try:
        descriptor = os.open(path, os.O_RDWR | _FLAGS)
    except PermissionError:
        return os.open(path, os.O_RDONLY | _FLAGS), False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return descriptor, False
    return descriptor, True


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of saved streams.

    Raises:
        OSError: there is no such folder, it cannot be written to, or others hold its lock for too long.
    """
    path = folder / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        with hold_lock(descriptor, path):
            yield
    finally:
        os.close(descriptor)


def delete_leftovers(folder: Path, name: str, keep: Path) -> None:
    """Delete what nobody needs: files of a saved stream but one, files of no saved stream, and files half written.

    The folder's lock is held. What another stream writes to, and what cannot be deleted, stays for the next time.
    """
    with suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            path = folder / entry
            if FILE_NAME.fullmatch(entry) and entry.rpartition("~")[0] in ("", name) and path != keep:
                _delete_unheld(path)
            if entry.startswith(".") and entry.endswith(TEMPORARY):
                path.unlink(missing_ok=True)
        sync_folder(folder)


def _delete_unheld(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)

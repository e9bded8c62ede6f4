"""A file that lines of frames are appended to, and read back from by extent; every line has a checksum of its own.

    16 bytes   MAGIC
    16 bytes   the file's identity, by chance
    then       extents: for each column of a series, for each frame of the extent: 8 bytes checksum, the line

A series is what comes together: the encoder's codes of all frames, or what the memory keeps of those that left the
window. Lines of one column have one length. The checksum is XXH3-64, little-endian, of the identity, the series (1
byte), the column (4 bytes), the frame (8 bytes) and the line: so a line that is damaged, of another file or in another
place is told. Where extents begin is not in the file: the saved stream says it, and what lies after the last one is not
read.
"""

import os
import secrets
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor
from xxhash import xxh3_64

from emblema.errors import StoreError
from emblema.stream.lines import FrameNumbers
from emblema.stream.state import StreamState

MAGIC = b"emblema frames 1"
HEADER = len(MAGIC) + 16
CHECKSUM = 8
Lines = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]
AMPLIFICATION = 2
"""Lines that one read may take for each line that is wanted."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Consecutive frames of one series, and where they begin in the file."""

    first: int
    count: int
    offset: int

    @property
    def stop(self) -> int:
        return self.first + self.count


@dataclass(slots=True)
class LogCounts:
    """Counts since a stream began.

    Attributes:
        disk_reads, disk_read_bytes: reads, and what they took.
        disk_wanted_bytes: the part of it that was wanted.
        disk_written_bytes: what was appended.
    """

    disk_reads: int = 0
    disk_read_bytes: int = 0
    disk_wanted_bytes: int = 0
    disk_written_bytes: int = 0


class StreamLog:
    """An open log. One thread appends; several may read.

    Args:
        descriptor: of the file, which this owns.
        identity: of the file.
        widths: by series, the bytes of a line of each column.

    Attributes:
        path: of the file.
        size: bytes up to the end of the last extent.
        extents: by series, rising by frame.
        writable: whether it may be appended to.
    """

    def __init__(
        self, path: Path, descriptor: int, identity: bytes, widths: Sequence[Sequence[int]], counts: LogCounts
    ) -> None:
        self.path, self.identity, self.counts = path, identity, counts
        self.widths = tuple(tuple(own) for own in widths)
        self.size, self.writable = HEADER, True
        self.extents: tuple[list[Extent], ...] = tuple([] for _ in widths)
        self._firsts: list[FrameNumbers | None] = [None for _ in widths]
        self._descriptor, self._lock = descriptor, threading.Lock()

    @classmethod
    def begin(cls, path: Path, descriptor: int, widths: Sequence[Sequence[int]], counts: LogCounts) -> "StreamLog":
        """Return the log of a file that is empty.

        Raises:
            StoreError: it cannot be written.
        """
        log = cls(path, descriptor, secrets.token_bytes(16), widths, counts)
        log._write(MAGIC + log.identity, 0)
        return log

    def bytes_of(self, series: int) -> int:
        """Return the bytes that a frame of a series takes in the file."""
        return sum(self.widths[series]) + CHECKSUM * len(self.widths[series])

    @property
    def live_bytes(self) -> int:
        """Bytes of all extents."""
        return sum(extent.count * self.bytes_of(series) for series, own in enumerate(self.extents) for extent in own)

    def end(self, series: int) -> int | None:
        """Return the end of the last frame of a series; None if there is none."""
        return self.extents[series][-1].stop if self.extents[series] else None

    def append(self, series: int, frames: range, columns: Sequence[Tensor]) -> None:
        """Write an extent: for each column lines [frames, bytes] uint8.

        Raises:
            StoreError: it could not be written; the log is as it was.
        """
        offset = self.size
        for column, (lines, width) in enumerate(zip(columns, self.widths[series], strict=True)):
            block = numpy.empty((len(frames), CHECKSUM + width), dtype=numpy.uint8)
            block[:, CHECKSUM:] = lines.numpy()
            for row, frame in zip(block, frames, strict=True):
                row[:CHECKSUM] = numpy.frombuffer(self._checksum(series, column, frame, row[CHECKSUM:]), numpy.uint8)
            self._write(block.data.cast("B"), offset)
            offset += block.nbytes
        self.extents[series].append(Extent(frames.start, len(frames), self.size))
        self._firsts[series] = None
        self.counts.disk_written_bytes += offset - self.size
        self.size = offset

    def read(self, series: int, column: int, frames: FrameNumbers) -> Tensor:
        """Return lines [n, bytes] uint8 of frames, which rise and are in the log.

        Raises:
            StoreError: a line is damaged, or the file cannot be read.
        """
        lines = numpy.empty((len(frames), self.widths[series][column]), dtype=numpy.uint8)
        self.read_into(series, column, frames, lines)
        return torch.from_numpy(lines)

    def read_into(self, series: int, column: int, frames: FrameNumbers, out: Lines) -> None:
        """Write `read` into `out`, which lies in memory row after row.

        Neighbours are read together, with what lies between them as long as that is no more than what is wanted.

        Raises:
            StoreError: a line is damaged, or the file cannot be read.
        """
        width = self.widths[series][column]
        size = CHECKSUM + width
        before = sum(CHECKSUM + own for own in self.widths[series][:column])
        sums, reads, taken = numpy.empty((len(frames), CHECKSUM), dtype=numpy.uint8), 0, 0
        for extent, begin, end in self._runs(series, frames):
            first, count = int(frames[begin]), int(frames[end - 1] - frames[begin]) + 1
            offset = extent.offset + before * extent.count + (first - extent.first) * size
            if count == 1:
                self._read_into([sums[begin].data, out[begin].data], offset)
            else:
                block = numpy.empty((count, size), dtype=numpy.uint8)
                self._read_into([block.reshape(-1).data], offset)
                own = block if count == end - begin else block[frames[begin:end] - first]
                sums[begin:end], out[begin:end] = own[:, :CHECKSUM], own[:, CHECKSUM:]
            reads, taken = reads + 1, taken + count * size
        self._verify(series, column, frames, sums, out)
        with self._lock:
            self.counts.disk_reads += reads
            self.counts.disk_read_bytes += taken
            self.counts.disk_wanted_bytes += len(frames) * size

    def _verify(self, series: int, column: int, frames: FrameNumbers, sums: Lines, lines: Lines) -> None:
        """Refuse lines of frames of which one is not what was written, by their checksums."""
        own, pack = self.identity + struct.pack("<BI", series, column), struct.Struct("<Q").pack
        digests = []
        for frame, line in zip(frames.tolist(), lines, strict=True):
            digest = xxh3_64(own + pack(frame))
            digest.update(line.data)
            digests.append(digest.intdigest())
        wrong = (sums.view("<u8")[:, 0] != numpy.array(digests, dtype="<u8")).nonzero()[0]
        if len(wrong):
            raise StoreError(
                f"{self.path}: what is kept of frame {frames[wrong[0]]} is damaged; forget that frame, or load the "
                "stream from a copy"
            )

    def _runs(self, series: int, frames: FrameNumbers) -> Iterator[tuple[Extent, int, int]]:
        """Yield what is read at once: an extent, and the places of the first frame and after the last one."""
        extents, firsts = self.extents[series], self._firsts[series]
        if firsts is None:
            firsts = numpy.array([extent.first for extent in extents], dtype=numpy.int64)
            self._firsts[series] = firsts
        homes = (numpy.searchsorted(firsts, frames, side="right") - 1).tolist()
        begin, numbers = 0, frames.tolist()
        for place in range(1, len(numbers) + 1):
            if (
                place < len(numbers)
                and homes[place] == homes[begin]
                and numbers[place] - numbers[begin] + 1 <= AMPLIFICATION * (place - begin + 1)
            ):
                continue
            extent = extents[homes[begin]] if homes[begin] >= 0 else None
            if extent is None or numbers[place - 1] >= extent.stop:
                raise StoreError(f"{self.path}: nothing is kept of frame {numbers[place - 1]}; load the stream again")
            yield extent, begin, place
            begin = place

    def sync(self) -> None:
        """Make all that was appended outlast a power cut.

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

    def state(self) -> StreamState:
        """Return what a saved stream says of the log."""
        tensors = {
            f"extents{series}": torch.tensor(
                [(extent.first, extent.count, extent.offset) for extent in own], dtype=torch.int64
            ).reshape(-1, 3)
            for series, own in enumerate(self.extents)
        }
        return StreamState(tensors, {"file": self.path.name, "identity": self.identity.hex(), "size": self.size})

    def restore(self, state: StreamState) -> None:
        """Go on from what a saved stream says; give back what was appended after it.

        Raises:
            StoreError: the file is another's, or ends before it should.
            ValueError, KeyError, TypeError: the state is damaged.
        """
        size = state.facts["size"]
        if self._read(HEADER, 0).tobytes() != MAGIC + self.identity:
            raise StoreError(f"{self.path} is another stream's: load that stream from a copy")
        if os.fstat(self._descriptor).st_size < size:
            raise StoreError(f"{self.path} ends too early: load the stream from a copy")
        for series, own in enumerate(self.extents):
            _check_extents(state.tensors[f"extents{series}"], self.bytes_of(series), size)
            own[:] = [Extent(*numbers) for numbers in state.tensors[f"extents{series}"].tolist()]
        self.size = size
        if self.writable:
            try:
                os.ftruncate(self._descriptor, size)
            except OSError as error:
                raise self._failed("written", error) from error

    def close(self) -> None:
        """Give back the file, and its lock with it."""
        os.close(self._descriptor)

    def _checksum(self, series: int, column: int, frame: int, line: Any) -> bytes:
        digest = xxh3_64(self.identity + struct.pack("<BIQ", series, column, frame))
        digest.update(line)
        return struct.pack("<Q", digest.intdigest())

    def _write(self, data: bytes | memoryview, offset: int) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                view, offset = view[written:], offset + written
        except OSError as error:
            raise self._failed("written", error) from error

    def _read(self, count: int, offset: int) -> Lines:
        block = numpy.empty(count, dtype=numpy.uint8)
        self._read_into([block.data], offset)
        return block

    def _read_into(self, views: list[memoryview], offset: int) -> None:
        """Fill views [bytes], one after the other."""
        try:
            while views:
                got = os.preadv(self._descriptor, views, offset)
                if got == 0:
                    raise StoreError(f"{self.path} ends too early: load the stream from a copy")
                offset += got
                while views and got >= len(views[0]):
                    got -= len(views.pop(0))
                if got:
                    views[0] = views[0][got:]
        except OSError as error:
            raise self._failed("read", error) from error

    def _failed(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"{self.path} could not be {what}: {error.strerror or error}")


def _check_extents(extents: Tensor, frame_bytes: int, size: int) -> None:
    """Refuse extents that do not rise, or do not lie in the file."""
    if extents.dtype != torch.int64 or extents.dim() != 2 or extents.shape[1] != 3:
        raise ValueError("its extents are none")
    stop = 0
    for first, count, offset in extents.tolist():
        if first < stop or count < 1 or offset < HEADER or offset + count * frame_bytes > size:
            raise ValueError("an extent of its log lies outside the file")
        stop = first + count

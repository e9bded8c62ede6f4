"""The file of a stored piece: safetensors with a checksum on all that it says, see `docs/store-format.md`."""

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy
from xxhash import xxh3_128

from emblema.errors import LoadError, StoreError
from emblema.store.header import ALIGNMENT, FORMAT_VERSION, ITEM_BYTES, TensorPlace, build, parse, read_length
from emblema.store.record import Array, Record

__all__ = [
    "FORMAT_VERSION",
    "Reader",
    "buffers",
    "is_passing",
    "open_bytes",
    "open_file",
    "open_source",
    "size",
    "verify",
    "write",
]

BLOCK = 2**20
"""Bytes that are read and then hashed while they are in the processor's cache."""
SLAB = 2**24
"""Bytes of the largest allocation that tensors share."""

_PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EINTR, errno.EAGAIN, errno.ESTALE,
     errno.ENOENT, errno.ETIMEDOUT, errno.ENODEV}
)  # fmt: skip

Fill = Callable[[int, memoryview], None]
"""Fills a buffer with a file's bytes from an offset on; ValueError or OSError where there are not as many."""


def size(record: Record) -> int:
    """Bytes of the record's file.

    Raises:
        StoreError: as for `buffers`.
    """
    views = _views(record)
    return len(_head(record, views, checksum=lambda view: "0" * 32)) + sum(view.nbytes for view in views.values())


def write(record: Record, file: BinaryIO) -> int:
    """Write the record's file from where `file` stands, in one pass; how many bytes that was.

    Raises:
        StoreError: as for `buffers`.
        OSError: the file does not take them.
    """
    written = 0
    for buffer in buffers(record):
        view = memoryview(buffer)
        while view:
            count = file.write(view)
            written, view = written + count, view[count:]
    return written


def buffers(record: Record) -> Iterator[bytes | memoryview]:
    """The bytes of the record's file in their order: the head, then each tensor's own memory, not copied.

    Raises:
        StoreError: a field or tensor is not what the format takes; nothing has been given out by then.
    """
    views = _views(record)
    yield _head(record, views, checksum=lambda view: xxh3_128(view).hexdigest())
    yield from views.values()


def open_file(path: str | os.PathLike[str], id: str | None = None) -> "Reader":
    """Open a file whose header is well formed and whole, and holds `id` where one is expected.

    Raises:
        LoadError: it is not there, not a plain file (links are not followed), damaged, or another piece's.
    """
    with _load_errors(id or Path(path).stem):
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        file = os.fdopen(descriptor, "rb", buffering=0)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is not a plain file")
            return Reader(partial(_read_file, file), status.st_size, id, file.close)
        except BaseException:
            file.close()
            raise


def open_bytes(data: bytes | bytearray | memoryview, id: str | None = None) -> "Reader":
    """Open a file's bytes; tensors are read into buffers of their own, so that none of them keeps `data`.

    Raises:
        LoadError: they are damaged, or another piece's.
    """
    view = memoryview(data).cast("B") if data else memoryview(b"")
    return open_source(partial(_read_bytes, view), view.nbytes, id)


def open_source(fill: Fill, bytes: int, id: str | None = None, close: Callable[[], None] | None = None) -> "Reader":
    """Open a file of `bytes` bytes that is read through `fill`, each range when it is needed.

    Raises:
        LoadError: it is damaged, or another piece's.
    """
    with _load_errors(id or "a piece"):
        return Reader(fill, bytes, id, close)


def verify(reader: "Reader") -> None:
    """Read every tensor of a file.

    Raises:
        LoadError: at the first that is damaged.
    """
    for name in reader.header.sizes:
        reader.read(name)


def is_passing(error: BaseException) -> bool:
    """Whether a file could not be read for a reason that lies outside it and may pass, so that it is left in place."""
    cause = error.__cause__
    if isinstance(cause, MemoryError):
        return True
    return isinstance(cause, OSError) and cause.errno in _PASSING


class Reader:
    """An open file, made by `open_file`, `open_bytes` or `open_source`; any number of threads may read from it."""

    def __init__(self, fill: Fill, bytes: int, id: str | None = None, close: Callable[[], None] | None = None) -> None:
        self._fill, self._close = fill, close
        prefix = bytearray(8)
        fill(0, memoryview(prefix))
        length = read_length(prefix, bytes)
        head = bytearray(length)
        fill(8, memoryview(head))
        self._start = 8 + length
        self.header, self._places = parse(head, bytes - self._start)
        if id is not None and self.header.id != id:
            raise ValueError(f"the file holds {self.header.id[:12]}")
        self._piece = self.header.id
        # Guards what follows: by group of names, the unused end of its newest slab, and how many bytes want one.
        self._guard = threading.Lock()
        self._slabs: dict[str, memoryview] = {}
        self._ahead = Counter[str]()
        for name, size in self.header.sizes.items():
            self._ahead[_group(name)] += _aligned(size)

    def read(self, name: str) -> Array:
        """One tensor, verified, in a fresh buffer that may be written to.

        Raises:
            LoadError: there is none of this name, it is cut short, or its checksum differs.
        """
        with _load_errors(self._piece):
            place = self._places.get(name)
            if place is None:
                raise ValueError(f"the file has no tensor {name!r}")
            buffer = self._buffer(name)
            digest = xxh3_128()
            for start in range(0, buffer.nbytes, BLOCK):
                block = buffer[start : start + BLOCK]
                self._fill(self._start + place.start + start, block)
                digest.update(block)
            if digest.hexdigest() != place.checksum:
                raise ValueError(f"the checksum of {name} differs")
            return Array(place.dtype, place.shape, buffer)

    def _buffer(self, name: str) -> memoryview:
        """A fresh buffer for a tensor, cut from its group's slab: page faults on small ones cost more than reading."""
        group, size = _group(name), self.header.sizes[name]
        with self._guard:
            slab = self._slabs.get(group, memoryview(b""))
            if slab.nbytes < size:
                slab = numpy.empty(max(size, min(SLAB, self._ahead[group])), numpy.uint8).data
            self._ahead[group] -= _aligned(size)
            self._slabs[group] = slab[_aligned(size) :]
            return slab[:size]

    def close(self) -> None:
        """Let go of the file; may be called more than once."""
        if self._close is not None:
            self._close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def _load_errors(piece: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise LoadError(piece, str(error) or type(error).__name__) from error


def _read_file(file: BinaryIO, offset: int, view: memoryview) -> None:
    while view:
        count = os.preadv(file.fileno(), [view], offset)
        if count == 0:
            raise ValueError(f"it is cut short at byte {offset}")
        offset, view = offset + count, view[count:]


def _read_bytes(data: memoryview, offset: int, view: memoryview) -> None:
    if offset + view.nbytes > data.nbytes:
        raise ValueError(f"it is cut short at byte {data.nbytes}")
    view[:] = data[offset : offset + view.nbytes]


def _group(name: str) -> str:
    """Tensors whose names begin alike, such as all layers, come and go together and share memory."""
    return name.partition(".")[0]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _views(record: Record) -> dict[str, memoryview]:
    """The tensors' memory in the file's order: wide elements first, so that each stands at a multiple of its own."""
    views: dict[str, memoryview] = {}
    for name, array in sorted(record.arrays.items(), key=lambda item: -ITEM_BYTES.get(item[1].dtype, 0)):
        if not array.data.c_contiguous:
            raise StoreError(f"tensor {name} of {record.header.id[:12]} is not contiguous: copy it before storing it")
        views[name] = array.data.cast("B") if array.data.nbytes else memoryview(b"")
    return views


def _head(record: Record, views: Mapping[str, memoryview], checksum: Callable[[memoryview], str]) -> bytes:
    start = 0
    places: dict[str, TensorPlace] = {}
    for name, view in views.items():
        array = record.arrays[name]
        places[name] = TensorPlace(array.dtype, tuple(array.shape), checksum(view), start, start + view.nbytes)
        start += view.nbytes
    try:
        return build(record.header, places)
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise StoreError(f"{str(record.header.id)[:12]} cannot be stored: {error}") from error

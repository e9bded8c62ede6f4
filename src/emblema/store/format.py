"""The file of a stored piece: safetensors with a checksum on every part, see `docs/store-format.md`.

Nothing of a header is believed before its checksum holds, and no memory is set aside for a tensor before the header
agrees with the file's real length.
"""

import errno
import json
import math
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, BinaryIO, cast

import numpy
from xxhash import xxh3_128

from emblema.errors import LoadError, StoreError
from emblema.store.record import SHARED, Array, Record, RecordHeader, RecordKind, RecordReader, is_id

FORMAT_VERSION = 1
MAX_HEADER = 2**20
MAX_TENSOR = 2**36
MAX_AXES = 8
ALIGNMENT = 64
ITEM_BYTES: Mapping[str, int] = MappingProxyType(
    {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I8": 1, "U8": 1, "BOOL": 1}
)

_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_FIELDS = {"version", "id", "kind", "owner", "model", "chunks", "created", "meta", "tensors"}
BLOCK = 2**19
"""Bytes that are read and then hashed while they are in the processor's cache."""
SLAB = 2**26
"""Bytes of the largest allocation that tensors share."""

_FAILURES = (OSError, ValueError, RecursionError, MemoryError, OverflowError)
_PASSING = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EINTR, errno.EAGAIN, errno.ESTALE,
     errno.ENOENT, errno.ETIMEDOUT, errno.ENODEV}
)  # fmt: skip

Fill = Callable[[int, memoryview], None]
"""Fills a buffer with a file's bytes from an offset on; ValueError or OSError where there are not as many."""


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor of a file: dtype, shape, checksum (32 hexadecimal digits); its place in bytes from the first tensor."""

    dtype: str
    shape: tuple[int, ...]
    checksum: str
    start: int
    stop: int


def buffers(record: Record) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the record's file in their order: the head, then each tensor's own memory, not copied.

    Raises:
        StoreError: a field or tensor is not what the format takes; nothing has been given out by then.
    """
    views = _views(record)
    yield _head(record, views)
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
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):
                    # The system then reads further ahead while blocks are hashed.
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            return Reader(partial(_read_file, file), status.st_size, id, file.close)
        except BaseException:
            file.close()
            raise


def open_source(fill: Fill, bytes: int, id: str | None = None, close: Callable[[], None] | None = None) -> "Reader":
    """Open a file of `bytes` bytes that is read through `fill`, each range when it is needed.

    Raises:
        LoadError: it is damaged, or another piece's.
    """
    with _load_errors(id or "a piece"):
        return Reader(fill, bytes, id, close)


def verify(reader: RecordReader) -> None:
    """Read every tensor of a file.

    Raises:
        LoadError: at the first that is damaged.
    """
    for name in reader.header.sizes:
        reader.read(name)


def is_passing(error: BaseException) -> bool:
    """Return whether a file could not be read for a reason outside it that may pass, so that it stays."""
    cause = error.__cause__
    if isinstance(cause, MemoryError):
        return True
    return isinstance(cause, OSError) and cause.errno in _PASSING


class Reader:
    """An open file, made by `open_file` or `open_source`; any number of threads may read from it."""

    def __init__(self, fill: Fill, bytes: int, id: str | None = None, close: Callable[[], None] | None = None) -> None:
        self._fill, self._close = fill, close
        prefix = bytearray(8)
        fill(0, memoryview(prefix))
        length = int.from_bytes(prefix, "little")
        if not 2 <= length <= min(MAX_HEADER, bytes - 8):
            raise ValueError(f"its header of {length} bytes is beyond its end or the limit of {MAX_HEADER}")
        head = bytearray(length)
        fill(8, memoryview(head))
        self._start = 8 + length
        self.header, self._places = _parse(head, bytes - self._start)
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
        """Return one tensor, verified, in a fresh buffer that may be written to.

        Raises:
            LoadError: there is none of this name, it is cut short, or its checksum differs.
        """
        place = self._places.get(name)
        if place is None:
            raise LoadError(self._piece, f"the file has no tensor {name!r}")
        try:
            buffer = self._buffer(name)
            digest = xxh3_128()
            for start in range(0, buffer.nbytes, BLOCK):
                block = buffer[start : start + BLOCK]
                self._fill(self._start + place.start + start, block)
                digest.update(block)
        except _FAILURES as error:
            raise LoadError(self._piece, str(error) or type(error).__name__) from error
        if digest.hexdigest() != place.checksum:
            raise LoadError(self._piece, f"the checksum of {name} differs")
        return Array(place.dtype, place.shape, buffer)

    def _buffer(self, name: str) -> memoryview:
        """Return a fresh buffer, cut from the slab of a tensor's group: page faults of small ones cost too much."""
        group, size = _group(name), self.header.sizes[name]
        with self._guard:
            slab = self._slabs.get(group, memoryview(b""))
            if slab.nbytes < size:
                slab = numpy.empty(max(size, min(SLAB, self._ahead[group])), numpy.uint8).data
            aligned = _aligned(size)
            self._ahead[group] -= aligned
            self._slabs[group] = slab[aligned:]
            return slab[:size]

    def close(self) -> None:
        """Close the file; may be called more than once."""
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
    except _FAILURES as error:
        raise LoadError(piece, str(error) or type(error).__name__) from error


def _read_file(file: BinaryIO, offset: int, view: memoryview) -> None:
    while view:
        count = os.preadv(file.fileno(), [view], offset)
        if count == 0:
            raise ValueError(f"it is cut short at byte {offset}")
        offset, view = offset + count, view[count:]


def _group(name: str) -> str:
    """Return the group of a tensor: those whose names begin alike, such as all layers, share memory."""
    return name.partition(".")[0]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _views(record: Record) -> dict[str, memoryview]:
    """Return the tensors' memory in the file's order: wide elements first, to align every tensor to its elements."""
    views: dict[str, memoryview] = {}
    for name, array in sorted(record.arrays.items(), key=lambda item: -ITEM_BYTES.get(item[1].dtype, 0)):
        if not array.data.c_contiguous:
            raise StoreError(f"tensor {name} of {record.header.id[:12]} is not contiguous: copy it before storing it")
        views[name] = array.data.cast("B") if array.data.nbytes else memoryview(b"")
    return views


def _head(record: Record, views: Mapping[str, memoryview]) -> bytes:
    """Return the file's bytes before the first tensor: 8 of length and the header, padded to a multiple of `ALIGNMENT`.

    Raises:
        StoreError: the header could not be read again, or not as it is.
    """
    header, arrays = record.header, record.arrays
    fields = {
        "version": FORMAT_VERSION,
        "id": header.id,
        "kind": header.kind,
        "owner": header.owner,
        "model": header.model,
        "chunks": list(header.chunks),
        "created": header.created,
        "meta": dict(header.meta),
        "tensors": [
            [name, arrays[name].dtype, list(arrays[name].shape), xxh3_128(view).hexdigest()]
            for name, view in views.items()
        ],
    }
    try:
        inner = _dumps(fields)
        read_again, places = _described(_loads(inner))
        for name, size in read_again.sizes.items():
            _require(size == views[name].nbytes, f"tensors: {name} has {views[name].nbytes} bytes")
        metadata = {"emblema": inner, "xxh3_128": xxh3_128(inner.encode()).hexdigest()}
        text = _dumps({"__metadata__": metadata, **_safetensors(places)}).encode()
        text += b" " * (-(len(text) + 8) % ALIGNMENT)
        if len(text) > MAX_HEADER:
            raise ValueError(f"its header of {len(text)} bytes is beyond the limit of {MAX_HEADER}")
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise StoreError(f"{str(header.id)[:12]} cannot be stored: {error}") from error
    return len(text).to_bytes(8, "little") + text


def _parse(head: bytes | bytearray, data_bytes: int) -> tuple[RecordHeader, dict[str, TensorPlace]]:
    """Return the header and the places of the tensors, for a file that has `data_bytes` bytes after it.

    Raises:
        ValueError: anything is not as the format says.
        RecursionError: it is nested too deeply.
    """
    text = head.decode().rstrip(" ")
    outer = _loads(text)
    metadata = outer.get("__metadata__") if isinstance(outer, dict) else None
    if not isinstance(metadata, dict) or set(metadata) != {"emblema", "xxh3_128"}:
        raise ValueError("it is not a stored piece: __metadata__ must hold emblema and xxh3_128")
    inner = metadata["emblema"]
    if not isinstance(inner, str) or xxh3_128(inner.encode()).hexdigest() != metadata["xxh3_128"]:
        raise ValueError("the checksum of its header differs")
    header, places = _described(_loads(inner))
    # As text, since in Python true equals 1 and 1.0.
    if _dumps(outer) != text:
        raise ValueError("its header is not compact JSON, padded by spaces")
    if _dumps(outer, sort_keys=True) != _dumps({"__metadata__": metadata, **_safetensors(places)}, sort_keys=True):
        raise ValueError("its tensors do not lie where its header has them")
    if data_bytes != header.bytes:
        raise ValueError(f"its tensors have {data_bytes} bytes in place of {header.bytes}")
    return header, places


def _described(fields: Any) -> tuple[RecordHeader, dict[str, TensorPlace]]:
    """Return what a file's description says."""
    version = fields.get("version") if isinstance(fields, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise ValueError(f"its format version is {str(version)[:20]}, this program reads {FORMAT_VERSION}")
    _require(set(fields) == _FIELDS, "fields")
    _require(is_id(fields["id"]), "id")
    _require(fields["kind"] in ("chunk", "patch"), "kind")
    _require(fields["owner"] == SHARED or is_id(fields["owner"]), "owner")
    _require(isinstance(fields["model"], str) and 0 < len(fields["model"]) <= 256, "model")
    chunks = fields["chunks"]
    _require(isinstance(chunks, list) and all(map(is_id, chunks)), "chunks")
    _require(bool(chunks) == (fields["kind"] == "patch"), "chunks")
    _require(type(fields["created"]) in (int, float) and math.isfinite(fields["created"]), "created")
    _require(isinstance(fields["meta"], dict), "meta")
    # Neither NaN nor a lone surrogate could be written again.
    _dumps(fields["meta"]).encode()
    _require(isinstance(fields["tensors"], list), "tensors")
    places: dict[str, TensorPlace] = {}
    start = 0
    for item in fields["tensors"]:
        name, place = _tensor_place(item, start)
        _require(name not in places, f"tensors: {name} twice")
        places[name], start = place, place.stop
    header = RecordHeader(
        id=fields["id"],
        kind=cast(RecordKind, fields["kind"]),
        owner=fields["owner"],
        model=fields["model"],
        chunks=tuple(chunks),
        created=float(fields["created"]),
        meta=fields["meta"],
        sizes={name: place.stop - place.start for name, place in places.items()},
    )
    return header, places


def _tensor_place(item: object, start: int) -> tuple[str, TensorPlace]:
    # One condition, as there are dozens of tensors to each file.
    if (
        isinstance(item, list)
        and len(item) == 4
        and isinstance(item[0], str)
        and _NAME.fullmatch(item[0])
        and isinstance(item[1], str)
        and item[1] in ITEM_BYTES
        and isinstance(item[2], list)
        and len(item[2]) <= MAX_AXES
        and isinstance(item[3], str)
        and _CHECKSUM.fullmatch(item[3])
    ):
        name, dtype, shape, checksum = item
        size = largest = ITEM_BYTES[dtype]
        for length in shape:
            if type(length) is not int or not 0 <= length <= MAX_TENSOR:
                raise ValueError("its header is malformed: tensors: a shape")
            # An empty axis counts as one: no axis may be beyond what an index can address.
            size, largest = size * length, largest * (length or 1)
        _require(largest <= MAX_TENSOR, "tensors: one is too large")
        return name, TensorPlace(dtype, tuple(shape), checksum, start, start + size)
    raise ValueError("its header is malformed: tensors")


def _safetensors(places: Mapping[str, TensorPlace]) -> dict[str, dict[str, Any]]:
    """Return what safetensors itself keeps of each tensor."""
    return {
        name: {"dtype": place.dtype, "shape": list(place.shape), "data_offsets": [place.start, place.stop]}
        for name, place in places.items()
    }


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"its header is malformed: {what}")


def _dumps(value: object, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=sort_keys)


def _loads(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_each_once)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header holds a key twice")
    return found

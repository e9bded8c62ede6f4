"""The vector indexes of every scope and embedder, each with the file that it is kept in."""

import json
import logging
import os
import stat
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy
import safetensors.numpy
import xxhash
from blake3 import blake3
from safetensors import SafetensorError

from emblema.errors import StoreError
from emblema.library.embedders import Vectors
from emblema.library.vectors import VectorIndex
from emblema.store.files import make_folder, write_whole

_LOG = logging.getLogger(__name__)
UNSAVED_CHUNKS = 64
"""So many chunks may change, or an eighth of all, before the file is written again; the rest waits for `flush`."""


class SavedIndex:
    """A vector index and its file. What the file lacks is made again from the chunks, so it may be lost or out of date.

    Attributes:
        damaged: files that could not be trusted.
    """

    def __init__(self, path: Path | None, about: str) -> None:
        self.path, self.about = path, about
        self.index = VectorIndex()
        self.damaged = 0
        self._lock = threading.Lock()
        self._unsaved = 0
        self._seen: tuple[int, int, int] | None = None

    def refresh(self) -> None:
        """Take over what the file has and memory lacks, if the file is another than before."""
        with self._lock:
            stamp = None if self.path is None else _stamp(self.path)
            if self.path is None or stamp is None or stamp == self._seen:
                return
            self._seen = stamp
            try:
                found = read_vectors(self.path, self.about)
            except FileNotFoundError:
                return
            except StoreError as error:
                _LOG.warning("%s; they are made again", error)
                self.damaged += 1
                return
            for chunk, vectors in found.items():
                if chunk not in self.index:
                    self.index.add(chunk, vectors)

    def add(self, chunk: str, vectors: Vectors) -> None:
        """Keep a chunk's vectors; written to the file with others."""
        self.index.add(chunk, vectors)
        self._changed(1)

    def remove(self, chunks: Collection[str]) -> None:
        """Forget chunks' vectors."""
        self._changed(self.index.remove(chunks))

    def flush(self) -> None:
        """Write what has changed. StoreError where the folder cannot be written."""
        with self._lock:
            if self.path is not None and self._unsaved:
                write_vectors(self.path, self.about, self.index.snapshot())
                self._unsaved, self._seen = 0, _stamp(self.path)

    def _changed(self, count: int) -> None:
        with self._lock:
            self._unsaved += count
            many = self._unsaved >= max(UNSAVED_CHUNKS, len(self.index) // 8)
        if many:
            try:
                self.flush()
            except StoreError as error:
                # They stay in memory and can be made again; `flush` raises.
                _LOG.warning("%s", error)


class Indexes:
    """Every index of one folder, or of memory where there is none."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._made: dict[tuple[str, str], SavedIndex] = {}

    def of(self, scope: str, embedder: str) -> SavedIndex:
        """Return the index of one scope's chunks under one embedder."""
        with self._lock:
            if (scope, embedder) not in self._made:
                about = f"{scope} {embedder}"
                name = f"{blake3(about.encode()).hexdigest()}.safetensors"
                self._made[scope, embedder] = SavedIndex(None if self.folder is None else self.folder / name, about)
            return self._made[scope, embedder]

    def forget(self, scope: str, chunks: Collection[str]) -> None:
        """Forget chunks of a scope, under every embedder in use."""
        with self._lock:
            saved = [index for (owner, _), index in self._made.items() if owner == scope]
        for index in saved:
            index.remove(chunks)

    @property
    def damaged(self) -> int:
        """Files that could not be trusted."""
        with self._lock:
            return sum(index.damaged for index in self._made.values())

    def flush(self) -> None:
        """Write what has changed. StoreError where the folder cannot be written."""
        with self._lock:
            saved = list(self._made.values())
        for index in saved:
            index.flush()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


FILE_BYTES = 4 * 2**30
"""Larger files are not read."""


def write_vectors(path: Path, about: str, vectors: Mapping[str, Vectors]) -> None:
    """Write the vectors of chunks, by id; `about` says what they are of.

    Raises:
        StoreError: the folder cannot be written.
    """
    ids = numpy.frombuffer(bytes.fromhex("".join(vectors)), numpy.uint8).reshape(-1, 32)
    counts = numpy.array([len(part) for part in vectors.values()], numpy.int64)
    stacked = numpy.concatenate(list(vectors.values())) if vectors else numpy.zeros((0, 1), numpy.float32)
    described = json.dumps({"version": 1, "of": about, "checksum": _checksum(about, ids, counts, stacked)}).encode()
    arrays: dict[str, numpy.ndarray] = {
        "about": numpy.frombuffer(described, numpy.uint8),
        "ids": ids,
        "counts": counts,
        "vectors": stacked,
    }
    try:
        make_folder(path.parent, mode=0o700)
        write_whole(path, [safetensors.numpy.save(arrays)])
    except OSError as error:
        raise StoreError(f"vectors could not be written to {path}: {error.strerror or error}") from error


def read_vectors(path: Path, about: str, limit: int = FILE_BYTES) -> dict[str, Vectors]:
    """Read the vectors of a file that `write_vectors` wrote about the same.

    Raises:
        FileNotFoundError: there is no such file.
        StoreError: it is damaged, too large, or about something else.
    """
    data = _read(path, limit)
    try:
        arrays = safetensors.numpy.load(data)
        ids, counts, stacked = arrays["ids"], arrays["counts"], arrays["vectors"]
        described = json.loads(arrays["about"].tobytes())
        shapes = [str(array.dtype) for array in (ids, counts, stacked)] == ["uint8", "int64", "float32"]
        if not shapes or ids.ndim != 2 or ids.shape[1] != 32 or counts.shape != ids.shape[:1] or stacked.ndim != 2:
            raise ValueError("its tensors have other shapes")
        if described != {"version": 1, "of": about, "checksum": _checksum(about, ids, counts, stacked)}:
            raise ValueError("its checksum or what it is about differs")
        if (
            ((counts < 1) | (counts > len(stacked))).any()
            or counts.sum() != len(stacked)
            or not numpy.isfinite(stacked).all()
        ):
            raise ValueError("its numbers do not fit")
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise StoreError(f"the vectors in {path} are damaged: {error}") from error
    parts = numpy.split(stacked, numpy.cumsum(counts)[:-1]) if len(counts) else []
    return {row.tobytes().hex(): part for row, part in zip(ids, parts, strict=True)}


def _read(path: Path, limit: int) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"the vectors in {path} cannot be read: {error.strerror or error}") from error
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise StoreError(f"the vectors in {path} are no regular file of at most {limit} bytes")
        with open(handle, "rb", closefd=False) as file:
            return file.read(limit)
    except OSError as error:
        raise StoreError(f"the vectors in {path} cannot be read: {error.strerror or error}") from error
    finally:
        os.close(handle)


def _checksum(about: str, *arrays: numpy.ndarray) -> str:
    digest = xxhash.xxh3_128(repr((about, [array.shape for array in arrays])).encode())
    for array in arrays:
        digest.update(numpy.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return str(digest.hexdigest())

"""Vectors on disk: one safetensors file of plain float32 numbers, never a faiss index, checked as it is read."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import numpy
import safetensors.numpy
import xxhash
from safetensors import SafetensorError

from emblema.errors import StoreError
from emblema.library.embedder import Vectors
from emblema.store.files import write_whole

FILE_BYTES = 4 * 2**30
"""Larger files are not read."""


def write_vectors(path: Path, about: str, vectors: Mapping[str, Vectors]) -> None:
    """Write the vectors of chunks, by id; `about` says what they are of.

    Raises:
        StoreError: the folder cannot be written.
    """
    ids = numpy.frombuffer(bytes.fromhex("".join(vectors)), numpy.uint8).reshape(-1, 32)
    counts = numpy.array([len(one) for one in vectors.values()], numpy.int64)
    stacked = numpy.concatenate(list(vectors.values())) if vectors else numpy.zeros((0, 1), numpy.float32)
    described = json.dumps({"version": 1, "of": about, "checksum": _checksum(about, ids, counts, stacked)}).encode()
    arrays: dict[str, numpy.ndarray] = {
        "about": numpy.frombuffer(described, numpy.uint8),
        "ids": ids,
        "counts": counts,
        "vectors": stacked,
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, [safetensors.numpy.save(arrays)])
    except OSError as error:
        raise StoreError(f"vectors could not be written to {path}: {error.strerror or error}") from error


def read_vectors(path: Path, about: str, limit: int = FILE_BYTES) -> dict[str, Vectors]:
    """The vectors of a file that `write_vectors` wrote about the same.

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

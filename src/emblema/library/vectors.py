"""Vectors of one tenant's chunks: searched with faiss, kept as plain numbers."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from emblema.errors import StoreError
from emblema.extras import import_extra
from emblema.library.embedders import Vectors

FLAT_VECTORS = 50_000
"""Up to so many vectors every one is compared; beyond, an inverted file is asked."""
_PER_CHUNK = 2**16
_WIDER = 4
"""Candidates taken for every chunk that is asked for, before they are compared in full."""


class VectorIndex:
    """Several vectors a chunk; a query's vectors each count a chunk's nearest one.

    Args:
        flat_vectors: how many are compared one by one before an inverted file is built.
    """

    def __init__(self, flat_vectors: int = FLAT_VECTORS) -> None:
        self.flat_vectors = flat_vectors
        self._lock = threading.RLock()
        self._vectors: dict[str, Vectors] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._next = 0
        self._count = 0
        self._index: Any = None
        self._flat = True

    def __contains__(self, chunk: object) -> bool:
        with self._lock:
            return chunk in self._vectors

    def __len__(self) -> int:
        """Number of chunks."""
        with self._lock:
            return len(self._vectors)

    @property
    def _width(self) -> int | None:
        """Numbers in a vector; None while there is none."""
        with self._lock:
            return next((int(vectors.shape[1]) for vectors in self._vectors.values()), None)

    def snapshot(self) -> dict[str, Vectors]:
        """Return every chunk's vectors by id."""
        with self._lock:
            return dict(self._vectors)

    def add(self, chunk: str, vectors: Vectors) -> None:
        """Keep a chunk's vectors [vectors, width], in place of earlier ones.

        Raises:
            StoreError: they have another shape or width, or are not finite.
        """
        vectors = checked(vectors, "a chunk")
        with self._lock:
            self.remove([chunk])
            if self._width not in (None, vectors.shape[1]):
                raise StoreError(f"vectors are {vectors.shape[1]} wide; the index holds vectors of {self._width}")
            self._vectors[chunk] = vectors
            self._numbers[chunk], self._names[self._next] = self._next, chunk
            self._count += len(vectors)
            if self._index is not None:
                self._index.add_with_ids(vectors, self._vector_numbers(chunk))
                if self._flat and self._count > self.flat_vectors:
                    self._index = None
            self._next += 1

    def remove(self, chunks: Iterable[str]) -> int:
        """Forget chunks; how many were here."""
        with self._lock:
            gone = [chunk for chunk in dict.fromkeys(chunks) if chunk in self._vectors]
            if gone and self._index is not None:
                numbers = numpy.concatenate([self._vector_numbers(chunk) for chunk in gone])
                self._index.remove_ids(numbers)
            for chunk in gone:
                self._count -= len(self._vectors.pop(chunk))
                del self._names[self._numbers.pop(chunk)]
            if not self._vectors:
                self._index = None
            return len(gone)

    def search(self, query: Vectors, count: int, among: Sequence[str]) -> list[tuple[str, float]]:
        """Return the `count` nearest of some chunks, with their scores, the nearest first.

        A query of several vectors is scored by the nearest vector of the chunk for each of them, those counting most
        that tell the candidates apart.

        Raises:
            StoreError: the query's vectors are of another shape or width, or not finite.
        """
        query = checked(query, "a query")
        with self._lock:
            known = [chunk for chunk in dict.fromkeys(among) if chunk in self._vectors]
            if not known:
                return []
            if query.shape[1] != self._width:
                raise StoreError(f"the query's vectors are {query.shape[1]} wide; the index holds {self._width}")
            candidates = self._candidates(query, count, known)
            stacked = numpy.concatenate([self._vectors[chunk] for chunk in candidates])
            starts = numpy.cumsum([0, *(len(self._vectors[chunk]) for chunk in candidates[:-1])])
        nearest = numpy.maximum.reduceat(query @ stacked.T, starts, axis=1)
        scores = combined(nearest)
        order = numpy.argsort(-scores, kind="stable")[:count]
        return [(candidates[int(place)], float(scores[place])) for place in order]

    def _candidates(self, query: Vectors, count: int, known: list[str]) -> list[str]:
        largest = max(len(self._vectors[chunk]) for chunk in known)
        wanted = _WIDER * count * largest
        if wanted >= self._count:
            return known
        faiss = import_extra("faiss", "collections")
        index = self._built(faiss)
        parameters: Any = faiss.SearchParameters() if self._flat else faiss.SearchParametersIVF()
        if not self._flat:
            parameters.nprobe = max(8, index.nlist // 16)
        if len(known) < len(self._vectors):
            numbers = numpy.concatenate([self._vector_numbers(chunk) for chunk in known])
            selector = faiss.IDSelectorBatch(numbers)
            parameters.sel = selector
        _, found = index.search(query, wanted, params=parameters)
        places = {self._names[int(number)] for number in numpy.unique(found[found >= 0] // _PER_CHUNK)}
        return [chunk for chunk in known if chunk in places]

    def _built(self, faiss: Any) -> Any:
        if self._index is None:
            names = list(self._vectors)
            stacked = numpy.concatenate([self._vectors[chunk] for chunk in names])
            width = stacked.shape[1]
            self._flat = len(stacked) <= self.flat_vectors
            if self._flat:
                index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(width))
            else:
                lists = max(1, int(4 * len(stacked) ** 0.5))
                quantizer = faiss.IndexFlatIP(width)
                index = faiss.IndexIVFFlat(quantizer, width, min(lists, len(stacked)), faiss.METRIC_INNER_PRODUCT)
                # A few rounds on a part of the vectors place the lists well enough.
                index.cp.niter, index.cp.max_points_per_centroid = 10, 64
                index.train(stacked)
            index.add_with_ids(stacked, numpy.concatenate([self._vector_numbers(chunk) for chunk in names]))
            self._index = index
        return self._index

    def _vector_numbers(self, chunk: str) -> NDArray[numpy.int64]:
        first = self._numbers[chunk] * _PER_CHUNK
        return numpy.arange(first, first + len(self._vectors[chunk]), dtype=numpy.int64)


def combined(nearest: Vectors) -> Vectors:
    """Scores [chunks] of each query vector's nearest [query vectors, chunks], weighted by their spread over chunks."""
    spread = nearest.std(axis=1)
    weights = spread if spread.sum() > 0 else numpy.ones_like(spread)
    scores: Vectors = (weights / weights.sum()) @ nearest
    return scores


def checked(vectors: Any, whose: str) -> Vectors:
    """Vectors [vectors, width] as contiguous float32.

    Raises:
        StoreError: they are none, of another shape, or not finite.
    """
    array = numpy.ascontiguousarray(vectors, dtype=numpy.float32)
    if array.ndim != 2 or not 0 < array.shape[0] < _PER_CHUNK or array.shape[1] == 0:
        raise StoreError(f"the embedder gave {whose} vectors of shape {array.shape}: it should give [vectors, width]")
    if not numpy.isfinite(array).all():
        raise StoreError(f"the embedder gave {whose} vectors that are not finite")
    return array

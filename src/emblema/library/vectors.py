"""Vectors of one tenant's chunks: searched with faiss, kept as plain numbers."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy

from emblema.errors import StoreError
from emblema.extras import import_extra
from emblema.library.embedders import Vectors

FLAT_VECTORS = 50_000
"""Up to so many vectors every one is compared; beyond, an inverted file is asked."""
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
        # An inverted file of all vectors, and the chunk of each in it; made again once a chunk was removed.
        self._index: Any = None
        self._owners: list[str] = []

    def __contains__(self, chunk: object) -> bool:
        with self._lock:
            return chunk in self._vectors

    def __len__(self) -> int:
        """Number of chunks."""
        with self._lock:
            return len(self._vectors)

    def add(self, chunk: str, vectors: Vectors) -> None:
        """Keep a chunk's vectors [vectors, width], in place of earlier ones.

        Raises:
            StoreError: they have another shape or width, or are not finite.
        """
        vectors = checked(vectors, "a chunk")
        with self._lock:
            self.remove(chunk)
            if self._width not in (None, vectors.shape[1]):
                raise StoreError(f"vectors are {vectors.shape[1]} wide; the index holds vectors of {self._width}")
            self._vectors[chunk] = vectors
            if self._index is not None:
                self._index.add(vectors)
                self._owners += [chunk] * len(vectors)

    def remove(self, chunk: str) -> None:
        """Forget a chunk, if it is here."""
        with self._lock:
            if self._vectors.pop(chunk, None) is not None:
                self._index = None

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

    @property
    def _width(self) -> int | None:
        """Numbers in a vector; None while there is none."""
        return next((int(vectors.shape[1]) for vectors in self._vectors.values()), None)

    def _candidates(self, query: Vectors, count: int, known: list[str]) -> list[str]:
        """Return the chunks that are compared in full."""
        total, wanted = sum(map(len, self._vectors.values())), _WIDER * count * max(map(len, self._vectors.values()))
        if total <= self.flat_vectors or wanted >= total:
            return known
        faiss = import_extra("faiss", "collections")
        index, chosen = self._built(faiss), set(known)
        parameters = faiss.SearchParametersIVF(nprobe=max(8, index.nlist // 16))
        if len(known) < len(self._vectors):
            places = [place for place, chunk in enumerate(self._owners) if chunk in chosen]
            selector = faiss.IDSelectorBatch(numpy.array(places, dtype=numpy.int64))
            parameters.sel = selector
        _, found = index.search(query, wanted, params=parameters)
        near = {self._owners[place] for place in numpy.unique(found[found >= 0]).tolist()}
        return [chunk for chunk in known if chunk in near]

    def _built(self, faiss: Any) -> Any:
        """Return the inverted file of all vectors."""
        if self._index is None:
            stacked = numpy.concatenate(list(self._vectors.values()))
            quantizer = faiss.IndexFlatIP(stacked.shape[1])
            lists = min(max(1, int(4 * len(stacked) ** 0.5)), len(stacked))
            self._index = faiss.IndexIVFFlat(quantizer, stacked.shape[1], lists, faiss.METRIC_INNER_PRODUCT)
            # A few rounds on a part of the vectors place the lists well enough.
            self._index.cp.niter, self._index.cp.max_points_per_centroid = 10, 64
            self._index.train(stacked)
            self._index.add(stacked)
            self._owners = [chunk for chunk, vectors in self._vectors.items() for _ in vectors]
        return self._index


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
    if array.ndim != 2 or 0 in array.shape:
        raise StoreError(f"the embedder gave {whose} vectors of shape {array.shape}: it should give [vectors, width]")
    if not numpy.isfinite(array).all():
        raise StoreError(f"the embedder gave {whose} vectors that are not finite")
    return array

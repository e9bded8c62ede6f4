"""The loops of the search for frames: in NumPy, or compiled where Numba is installed (the extra `compiled`)."""

from typing import Protocol

import numpy
from numpy.typing import NDArray

BIG = float(numpy.finfo(numpy.float32).max)
RANKS = 16
"""Codes of a query's order that are told apart."""
Numbers = NDArray[numpy.int64]
Scores = NDArray[numpy.float32]
Marks = NDArray[numpy.bool]


class Kernels(Protocol):
    """What the search does number by number. Both kinds choose the same, but for how sums of exponentials are rounded.

    Arrays lie in memory one row after the other.
    """

    def log_sum(self, logits: Scores) -> Scores:
        """Return the logarithm of the sum of exponentials over the last axis of [heads, queries, n]."""

    def visit(
        self, products: Scores, lengths: Scores, reach: Scores, counts: Scores, wanted: int
    ) -> tuple[Scores, Marks]:
        """Say which codes queries visit, by the most that one of their keys is likely to get.

        Args:
            products: [heads, queries, codes], of queries with the codes' means; overwritten.
            lengths: [heads, queries], of the queries.
            reach: [heads, codes or more], by what times the query's length a product is raised.
            counts: [heads, codes or more], keys of each code.
            wanted: codes of a head on average, at least; of each head half as many. At most all.

        Returns:
            [heads, queries], the logarithm of the sum over all keys by the codes' means; and [heads, codes].
        """

    def collect(
        self,
        seen: Marks,
        shown: NDArray[numpy.int32],
        pages: NDArray[numpy.integer],
        begin: int,
        end: int,
        keys: NDArray[numpy.int8],
    ) -> Numbers:
        """Return the keys from `begin` and before `end` on the pages of codes, [heads, n], then -1.

        Args:
            seen: [heads, codes], those that are visited.
            shown: [heads, codes or more, n], pages of a code; -1 for none.
            pages: [pages, n], keys of each; -1 for none.
            begin: at least 0.
            keys: [rows, width], by entry and head: those that are collected; they are not read, but may be made ready.
        """


class ArrayKernels:
    """Kernels of a few calls to NumPy each."""

    def log_sum(self, logits: Scores) -> Scores:
        return log_sum(logits)

    def visit(
        self, products: Scores, lengths: Scores, reach: Scores, counts: Scores, wanted: int
    ) -> tuple[Scores, Marks]:
        heads, queries, codes = products.shape
        mass = log_sum(products, counts[:, :codes])
        products += lengths[:, :, None] * reach[:, None, :codes]
        flat, seen = products.reshape(-1, codes), numpy.zeros((heads, codes), dtype=bool)
        every, marks = flat.reshape(-1), seen.reshape(-1)
        starts = numpy.arange(0, flat.size, codes)
        places = numpy.arange(0, seen.size, codes).repeat(queries)
        highest = flat.max(1)
        for rank in range(1, RANKS + 1):
            best = flat.argmax(1)
            marks[places + best] = True
            best += starts
            every[best] = -numpy.inf
            if rank * queries < wanted or numpy.count_nonzero(seen) < wanted * heads:
                continue
            if 2 * int(seen.sum(1).min()) >= wanted:
                return mass, seen
        fill_up(products, highest, seen, wanted)
        return mass, seen

    def collect(
        self,
        seen: Marks,
        shown: NDArray[numpy.int32],
        pages: NDArray[numpy.integer],
        begin: int,
        end: int,
        keys: NDArray[numpy.int8],
    ) -> Numbers:
        owners, codes = seen.nonzero()
        own = shown[owners, codes]
        entries = pages.take(own, axis=0)
        if own.min(initial=0) < 0:
            entries[own < 0] = -1
        entries = entries.reshape(len(owners), -1)
        inside = (entries >= begin) & (entries < end)
        sizes = numpy.bincount(owners, weights=inside.sum(1), minlength=len(seen)).astype(numpy.int64)
        found = numpy.full((len(seen), int(sizes.max())), -1, dtype=numpy.int64)
        found[numpy.arange(found.shape[1]) < sizes[:, None]] = entries[inside]
        return found


def log_sum(logits: Scores, counts: Scores | None = None) -> Scores:
    """Return the logarithm of the sum of exponentials over the last axis.

    What torch does of the kind takes ten times as long where sums have numbers that are almost nothing.

    Args:
        logits: [heads, queries, n].
        counts: [heads, n], how often each is counted; once if left out.
    """
    highest = numpy.maximum(logits.max(-1, keepdims=True), -BIG)
    shares = logits - highest
    numpy.exp(shares, out=shares)
    sums = shares.sum(-1) if counts is None else (shares @ counts[:, :, None])[:, :, 0]
    with numpy.errstate(divide="ignore"):
        found: Scores = numpy.log(sums) + highest[:, :, 0]
    return found


def fill_up(bounds: Scores, highest: Scores, seen: Marks, wanted: int) -> None:
    """See codes that come closest to a query's first one: where there are few queries, or such as agree.

    Args:
        bounds: [heads, queries, codes], the lowest where a code was seen.
        highest: [heads x queries], what was the highest of each.
    """
    nearness = (bounds - highest.reshape(*bounds.shape[:2], 1)).max(1)
    nearness[seen] = numpy.inf
    seen |= nearness >= numpy.maximum(numpy.partition(nearness, -wanted, axis=1)[:, -wanted, None], -BIG)

"""The loops of the search for frames: in NumPy, or compiled where Numba is installed (the extra `compiled`)."""

from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray

from emblema.stream.mosaic.orders import KeyOrder, Numbers, Scores, best_lines

BIG = float(numpy.finfo(numpy.float32).max)
LEAST_LENGTH = 1e-12
"""Of a query: of one of nothing too."""
RANKS = 16
"""Codes of a query's order that are told apart."""
Marks = NDArray[numpy.bool]
Halves = NDArray[numpy.float16]


@dataclass(frozen=True, slots=True)
class Asked:
    """Who takes lines.

    Attributes:
        groups: [rows], who asks with each row. Queries of a head are those rows, once or several times over.
        count: of groups.
        budget: lines of a group.
        placed: keys count by their place in their query's order.
    """

    groups: Numbers
    count: int
    budget: int
    placed: bool


@dataclass(frozen=True, slots=True)
class SearchArrays:
    """What all keys of a layer are searched by: their codes, the codes' lists, and the keys.

    Attributes:
        means: [heads, codes or more, width], of the keys of each code.
        reach: [heads, codes or more], by what times a query's length a product with a mean is raised.
        counts: [heads, codes or more], keys of each code.
        shown: [heads, codes or more, n], pages of a code that are visited; -1 for none.
        pages: [pages, n], keys of each; -1 for none.
        codes: of a head.
        entries: keys of a head, those that are gone included.
        keys, scales: as for `Kernels.gather`.
        parts: keys of a frame's line.
    """

    means: Halves
    reach: Scores
    counts: Scores
    shown: NDArray[numpy.int32]
    pages: NDArray[numpy.integer]
    codes: int
    entries: int
    keys: NDArray[numpy.int8]
    scales: NDArray[numpy.int16]
    parts: int


class Kernels(Protocol):
    """What the search does number by number. Both kinds choose the same, but for how sums are rounded.

    Arrays lie in memory one row after the other, states aside.
    """

    def products(self, states: Scores, means: Halves, codes: int) -> tuple[Scores, Scores]:
        """Return products of queries with the first means of their head, [heads, queries, codes], and their lengths.

        Args:
            states: [heads, queries, width].
            means: [heads, codes or more, width].
            codes: of a head.
        """

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
    ) -> Numbers:
        """Return the keys from `begin` and before `end` on the pages of codes, [heads, n], then -1.

        Args:
            seen: [heads, codes], those that are visited.
            shown: [heads, codes or more, n], pages of a code; -1 for none.
            pages: [pages, n], keys of each; -1 for none.
            begin: at least 0.
        """

    def compare(
        self, states: Scores, keys: NDArray[numpy.int8], scales: NDArray[numpy.int16], entries: Numbers
    ) -> Scores:
        """Return products of queries with keys of their head, [heads, queries, n]; of an entry -1 one of no use.

        Args:
            states: [heads, queries, width].
            keys, scales, entries: as for `gather`.
        """

    def gather(self, keys: NDArray[numpy.int8], scales: NDArray[numpy.int16], entries: Numbers) -> Scores:
        """Return keys times their scales, [heads, n, width]; of an entry -1 those of any.

        Args:
            keys: [rows, width], by entry and head.
            scales: [rows], the bits of a bfloat16 each.
            entries: [heads, n].
        """

    def choose(
        self, logits: Scores, known: Scores | None, entries: Numbers | None, parts: int, asked: Asked
    ) -> list[Numbers]:
        """Return the lines that each group takes, in order; fewer than it may where there are no more.

        All first keys of its queries come first, those that get more of their query's attention before others, then all
        second ones, and so on. Where keys are not placed they come by attention alone.

        Args:
            logits: [heads, queries, n]; overwritten.
            known: [heads, queries], the logarithm of all that a query attends, at least; None where nothing is known.
            entries: [heads, n], a frame's line times `parts`, and its part; -1 after the last one of a head. None where
                place and entry are the same.
        """

    def search(self, states: Scores, index: SearchArrays, wanted: int, asked: Asked) -> list[Numbers]:
        """Return the lines that each group takes, of those in the lists of the codes that its queries visit.

        All of the above one after the other; arguments as there.
        """


class ArrayKernels:
    """Kernels of a few calls to NumPy each."""

    def products(self, states: Scores, means: Halves, codes: int) -> tuple[Scores, Scores]:
        queries, own = torch.from_numpy(states), torch.from_numpy(means)[:, :codes].float()
        lengths = torch.linalg.vector_norm(queries, dim=2).clamp_min_(LEAST_LENGTH)
        return (queries @ own.transpose(1, 2)).numpy(), lengths.numpy()

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

    def compare(
        self, states: Scores, keys: NDArray[numpy.int8], scales: NDArray[numpy.int16], entries: Numbers
    ) -> Scores:
        own = torch.from_numpy(self.gather(keys, scales, entries))
        return (torch.from_numpy(states) @ own.transpose(1, 2)).numpy()

    def gather(self, keys: NDArray[numpy.int8], scales: NDArray[numpy.int16], entries: Numbers) -> Scores:
        rows = entries * len(entries) + numpy.arange(len(entries))[:, None]
        # Torch is several times as quick as NumPy at making these numbers longer.
        found, own = torch.from_numpy(rows_of(keys, rows)), torch.from_numpy(scales.take(rows))
        return found.float().mul_(own.view(torch.bfloat16).float()[:, :, None]).numpy()

    def choose(
        self, logits: Scores, known: Scores | None, entries: Numbers | None, parts: int, asked: Asked
    ) -> list[Numbers]:
        if entries is not None:
            for own, count in zip(logits, (entries >= 0).sum(1).tolist(), strict=True):
                own[:, count:] = -numpy.inf
        mass = log_sum(logits)
        if known is not None:
            mass = numpy.maximum(mass, known)
        groups = numpy.tile(asked.groups, logits.shape[1] // len(asked.groups))
        order = KeyOrder(logits, mass, groups, asked.placed)
        heads = numpy.arange(len(logits))[:, None, None]
        while True:
            places, weights = order.next(asked.budget)
            lines = (places if entries is None else entries[heads, places]) // parts
            chosen = best_lines(weights, lines, groups, asked.count, asked.budget, asked.placed)
            if order.ended or all(len(own) == asked.budget for own in chosen):
                return chosen

    def search(self, states: Scores, index: SearchArrays, wanted: int, asked: Asked) -> list[Numbers]:
        products, lengths = self.products(states, index.means, index.codes)
        mass, seen = self.visit(products, lengths, index.reach, index.counts, wanted)
        entries = self.collect(seen, index.shown, index.pages, 0, index.entries)
        logits = self.compare(states, index.keys, index.scales, entries)
        return self.choose(logits, mass, entries, index.parts, asked)


def rows_of(keys: NDArray[numpy.int8], rows: Numbers) -> NDArray[numpy.int8]:
    """Return keys [..., width] by their rows; copied eight bytes at a time where they are as long."""
    kind = numpy.int64 if keys.shape[1] % 8 == 0 else numpy.int8
    found: NDArray[numpy.int8] = keys.view(kind).take(rows, axis=0).view(numpy.int8)
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

"""Keys in the order of every query, and the frames that groups of queries take by these orders, in NumPy."""

import math
from itertools import islice

import numpy
from numpy.typing import NDArray

RANKS = 16
"""Places of a query's order that are looked at one after the other; where more are asked for they are sorted."""
Numbers = NDArray[numpy.int64]
Scores = NDArray[numpy.float32]


class KeyOrder:
    """The keys of every query, those that it attends most first.

    Args:
        logits: [heads, queries, keys]; overwritten.
        mass: [heads, queries], the logarithm of all that a query attends.
        groups: [queries], who asks.
        placed: a few places at a time; else all at once.

    Attributes:
        ended: all keys were returned.
    """

    def __init__(self, logits: Scores, mass: Scores, groups: Numbers, placed: bool) -> None:
        self.ended = False
        self._logits, self._mass, self._placed = logits, mass[:, :, None], placed
        self._each = math.ceil(len(groups) * logits.shape[0] / max(1, int(groups.max(initial=0)) + 1))
        # By query of each head and rank.
        shape = (logits.shape[0] * logits.shape[1], min(RANKS, logits.shape[2]))
        self._places, self._values = numpy.empty(shape, dtype=numpy.int64), numpy.empty(shape, dtype=numpy.float32)
        self._ranks = 0

    def next(self, budget: int) -> tuple[Numbers, Scores]:
        """Return places [heads, queries, n] of the first keys, and the logarithm of what each gets; of none -inf.

        Every call returns more, until all were returned.

        Args:
            budget: keys that each group needs.
        """
        known, count = self._ranks, self._logits.shape[2]
        if known >= RANKS or not self._placed:
            return self._sorted()
        more = min(RANKS - known, 2 if known else 1 + math.ceil(budget / max(1, self._each)), count - known)
        flat = self._logits.reshape(-1, count)
        every, starts = flat.reshape(-1), numpy.arange(0, flat.size, count)
        for rank in range(known, known + more):
            best = flat.argmax(1)
            self._places[:, rank] = best
            best += starts
            self._values[:, rank] = every[best]
            every[best] = -numpy.inf
        self._ranks = known + more
        self.ended = self._ranks == count
        return self._weighed(self._places[:, : self._ranks], self._values[:, : self._ranks])

    def _sorted(self) -> tuple[Numbers, Scores]:
        flat = self._logits.reshape(-1, self._logits.shape[2])
        # Last ones first: where none was left a place that was returned before came again.
        for rank in reversed(range(self._ranks)):
            flat[numpy.arange(len(flat)), self._places[:, rank]] = self._values[:, rank]
        self.ended = True
        order = numpy.argsort(-flat, axis=1, kind="stable")
        return self._weighed(order, numpy.take_along_axis(flat, order, 1))

    def _weighed(self, places: Numbers, values: Scores) -> tuple[Numbers, Scores]:
        found = values.reshape(*self._logits.shape[:2], -1) - self._mass
        return places.reshape(found.shape), numpy.minimum(found, 0, out=found)


def best_lines(
    weights: Scores, lines: Numbers, groups: Numbers, count: int, budget: int, placed: bool
) -> list[Numbers]:
    """Return for each group the first `budget` lines, in that order; fewer where there are no more.

    Args:
        weights, lines: [heads, queries, ranks], of the keys in every query's order; of none the weight is -inf.
        groups: [queries], who asks.
        count: groups.
        placed: all first keys come before all second ones, and so on; those of a place, or all, by their weight.
    """
    chosen = []
    for group in range(count):
        mine = slice(None) if count == 1 else groups == group
        own, found = lines[:, mine].reshape(-1, lines.shape[2]), weights[:, mine].reshape(-1, lines.shape[2])
        # A row for each place, or one for all.
        own, found = (own.T, found.T) if placed else (own.reshape(1, -1), found.reshape(1, -1))
        order = numpy.argsort(-found, axis=1, kind="stable")
        own, found = numpy.take_along_axis(own, order, 1), numpy.take_along_axis(found, order, 1)
        known = dict.fromkeys(own[found > -numpy.inf].tolist())
        chosen.append(numpy.fromiter(islice(known, budget), dtype=numpy.int64))
    return chosen

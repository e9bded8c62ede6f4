"""How often something was met lately, in bounded memory: a count-min sketch that ages (TinyLFU, arXiv 1512.00727)."""

from collections.abc import Sequence
from struct import Struct

import numpy as np
from blake3 import blake3

ROWS = 4
LARGEST = 15
"""Counters stop here, and all are halved from time to time: only lately matters."""
LOAD = 1 / 4
"""Lists that are new, over the counters of a row, before all are halved. Most lists come once; with so many of them one
that is new is taken for a known one in (1 - exp(-LOAD)) ** ROWS, a quarter of a per cent."""

_NUMBERS = Struct(f"<{ROWS}I")


class FrequencySketch:
    """Estimates how often lists of names were added; never too low before they age, rarely too high.

    All counters are halved after ten additions a counter of a row, or before new lists fill the rows.

    Args:
        width: counters a row; a power of two. `4 * width` bytes in all.
    """

    def __init__(self, width: int = 65_536) -> None:
        self._counts = np.zeros((ROWS, width), dtype=np.uint8)
        # The same memory, of which Python reads single numbers sooner.
        self._rows = [row.data for row in self._counts]
        self._added = self._new = 0

    def add(self, names: Sequence[str]) -> int:
        """Count a list once more and return the estimate of how often it was added, this time included."""
        self._age()
        counters = list(zip(self._rows, self._places(names), strict=True))
        estimate = min(row[place] for row, place in counters)
        if estimate < LARGEST:
            # Only the smallest counters grow (conservative update).
            for row, place in counters:
                if row[place] == estimate:
                    row[place] = estimate + 1
        self._added += 1
        self._new += estimate == 0
        return min(estimate + 1, LARGEST)

    def _age(self) -> None:
        width = self._counts.shape[1]
        if self._added >= 10 * width or self._new >= LOAD * width:
            self._counts >>= 1
            self._added //= 2
            self._new = int(np.count_nonzero(self._counts[0]))

    def estimate(self, names: Sequence[str]) -> int:
        """Return how often a list was added lately, `LARGEST` at most."""
        return min(row[place] for row, place in zip(self._rows, self._places(names), strict=True))

    @property
    def bytes(self) -> int:
        """Memory of the counters."""
        return self._counts.nbytes

    def _places(self, names: Sequence[str]) -> list[int]:
        digest = blake3("\n".join(names).encode()).digest(4 * ROWS)
        width = self._counts.shape[1]
        return [number % width for number in _NUMBERS.unpack(digest)]

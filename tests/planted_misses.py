"""Planted misses: a table of what plants one, and what has to be told of it."""

import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from emblema.link.miss_reasons import MissReason
from emblema.link.misses import MissData

P = TypeVar("P")
Planted = Callable[[P], list[MissData]]


class PlantedMisses(Generic[P]):
    """Planted misses by name: what plants it, the reason, a pattern of the whole detail, and the picture's number."""

    def __init__(self) -> None:
        self.table: dict[str, tuple[Planted[P], MissReason, str, int]] = {}

    def add(self, reason: MissReason, detail: str = "", part: int = 0) -> Callable[[Planted[P]], Planted[P]]:
        """Return what adds a function that plants a miss."""

        def add(make: Planted[P]) -> Planted[P]:
            self.table[make.__name__] = make, reason, detail, part
            return make

        return add

    @property
    def reasons(self) -> set[MissReason]:
        """All reasons."""
        return {reason for _, reason, _, _ in self.table.values()}

    def told(self, name: str, plant: P) -> tuple[int, str]:
        """Plant a miss and check what is told of it; return its rows and its detail."""
        make, reason, detail, part = self.table[name]
        found: Sequence[MissData] = make(plant)
        told = {number: (rows, why, more) for number, rows, why, more in found}
        assert part in told, found
        rows, why, more = told[part]
        assert (why, bool(re.fullmatch(detail, more))) == (reason, True), found
        return rows, more

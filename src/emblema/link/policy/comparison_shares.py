"""How many prompts are compared with full prefill: a share of the requests, and of the rows computed for answers."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from emblema.link.policy.policy import TAKEN, Lane, Policy

Comparing = Literal["check", "trial"]
"""A check computes a linked prompt in full. A trial links a prompt that was computed in full by a closed lane."""

JUDGED = (*TAKEN, Lane.SURVIVOR, Lane.SETTLED)
"""Lanes whose rows may differ from re-prefill's; settled ones are measured, and taken all the same."""


class ComparisonShares:
    """What the shares have given so far and no comparison has used up; on one thread."""

    def __init__(self) -> None:
        self._credit: dict[Comparing, float] = {"check": 0.0, "trial": 0.0}
        self._rows = 0.0
        # How often each lane was tried for each kind.
        self._tried: Counter[tuple[str, Lane]] = Counter()
        # Random, so that no period in the requests matches that of the comparisons.
        self._random = random.Random(0)

    def earn(self, what: Comparing | None, computed: int, policy: Policy, free: bool) -> bool:
        """Count an answered prompt; return whether it is to be compared, if that can be afforded.

        Args:
            what: how it would be compared; None where it cannot be.
            computed: rows computed for its answer.
            policy: bounds of the request.
            free: whether no other prompt waits to be compared.
        """
        self._rows += policy.canary_rows * computed
        if what is None or policy.canary == 0:
            return False
        self._credit[what] += policy.canary
        return self._credit[what] >= 1 and free and (policy.canary >= 0.5 or self._random.random() >= 0.5)

    def affords(self, rows: int) -> bool:
        """Return whether so many rows may be computed for a comparison."""
        return self._rows >= rows

    def spend(self, what: Comparing, rows: int) -> None:
        """Note a comparison, and the rows that were computed for it."""
        self._rows -= rows
        self._credit[what] -= 1

    def least_tried(
        self, found: Collection[tuple[str, Lane]], open: Callable[[str, Lane], bool]
    ) -> Sequence[tuple[str, Lane]]:
        """Return the closed ones of some kinds and lanes, those that were tried least first."""
        closed = [(kind, lane) for kind, lane in found if not open(kind, lane)]
        return sorted(closed, key=lambda pair: (self._tried[pair], JUDGED.index(pair[1]), pair[0]))

    def note_trial(self, lanes: Collection[tuple[str, Lane]]) -> None:
        """Note that lanes will be tried."""
        self._tried.update(lanes)

"""How many prompts are compared with full prefill: a share of the requests, and of the rows computed for answers."""

import random
from collections import Counter
from collections.abc import Collection
from typing import Literal

from emblema.link.lanes import JUDGED, Lane
from emblema.link.policy.policy import Policy

Comparing = Literal["check", "trial"]
"""A check computes a linked prompt in full. A trial links a prompt that was computed in full by a closed lane."""

CHECKS_AFTER_WRONG = 20
"""Answers that are checked after one that differed."""


class ComparisonShares:
    """What the shares have given so far and no comparison has used up; on one thread."""

    def __init__(self) -> None:
        self._unused: dict[Comparing, float] = {"check": 0.0, "trial": 0.0}
        self._rows = 0.0
        # Checks left to be made of every answer, as one differed lately.
        self._checks_due = 0
        # How often each lane was tried for each kind.
        self._tried: Counter[tuple[str, Lane]] = Counter()
        # Random, so that no period in the requests matches that of the comparisons.
        self._random = random.Random(0)

    def earn(self, what: Comparing | None, computed: int, policy: Policy, free: bool, certified: bool = True) -> bool:
        """Count an answered prompt; return whether it is to be compared, if that can be afforded.

        Args:
            what: how it would be compared; None where it cannot be.
            computed: rows computed for its answer.
            policy: bounds of the request.
            free: whether no other prompt waits to be compared.
            certified: whether a margin is certified for all that is compared.
        """
        self._rows += policy.canary_rows * computed
        share = policy.canary if certified or policy.canary == 0 else max(policy.canary, policy.learning)
        if what == "check" and self._checks_due and share:
            share = 1.0
        if what is None or share == 0:
            return False
        self._unused[what] += share
        return self._unused[what] >= 1 and free and (share >= 0.5 or self._random.random() >= 0.5)

    def note_check(self, agrees: bool) -> None:
        """Note what a check showed: after one that differs every answer is checked, until several agree."""
        self._checks_due = max(0, self._checks_due - 1) if agrees else CHECKS_AFTER_WRONG

    def affords(self, rows: int) -> bool:
        """Return whether so many rows may be computed for a comparison."""
        return self._rows >= rows

    def spend(self, what: Comparing, rows: int) -> None:
        """Note a comparison, and the rows that were computed for it."""
        self._rows -= rows
        self._unused[what] -= 1

    def least_tried(self, closed: Collection[tuple[str, Lane]]) -> tuple[str, Lane]:
        """Return the one of some closed kinds and lanes that was tried least."""
        return min(closed, key=lambda pair: (self._tried[pair], JUDGED.index(pair[1]), pair[0]))

    def note_trial(self, lanes: Collection[tuple[str, Lane]]) -> None:
        """Note that lanes will be tried."""
        self._tried.update(lanes)

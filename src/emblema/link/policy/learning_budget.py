"""Learning is held to a share of what answering costs, in seconds of the processor."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LearningCosts:
    """What was measured.

    Attributes:
        answers: prompts that were linked for an answer.
        answered: seconds that linking them took.
        learnt: seconds that all learning took.
        withheld: prompts that were not learnt from, because the share was used up.
    """

    answers: int = 0
    answered: float = 0.0
    learnt: float = 0.0
    withheld: int = 0


class LearningBudget:
    """Measures answering and learning, and says whether more may be learnt. Thread-safe.

    Answers earn a share of their seconds, and learning spends them. What is new is worth more, so that it may be learnt
    on credit: the debt may grow to what the next `ahead` answers will earn, times what a prompt is worth. What is known
    is worth less, so that the debt is paid back.

    Args:
        clock: returns seconds of the processor that the calling thread has used.
    """

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._costs = LearningCosts()

    @property
    def costs(self) -> LearningCosts:
        """What was measured so far."""
        with self._lock:
            return self._costs

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Count what the block takes as one answer, but for what is learnt inside it."""
        began, before = self._clock(), self.costs.learnt
        try:
            yield
        finally:
            self.earn(max(0.0, self._clock() - began - (self.costs.learnt - before)))

    def earn(self, seconds: float) -> None:
        """Count seconds as those of one answer."""
        with self._lock:
            held = self._costs
            self._costs = replace(held, answers=held.answers + 1, answered=held.answered + seconds)

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Count what the block takes as learning; blocks may lie inside each other."""
        began, before = self._clock(), self.costs.learnt
        try:
            yield
        finally:
            elapsed = self._clock() - began
            self.spend(max(0.0, elapsed - (self.costs.learnt - before)))

    def spend(self, seconds: float) -> None:
        """Count seconds as learning."""
        with self._lock:
            self._costs = replace(self._costs, learnt=self._costs.learnt + seconds)

    def allows(self, worth: float, share: float | None, ahead: int) -> bool:
        """Return whether a prompt may be learnt from; a refusal is counted.

        Args:
            worth: of what it would teach, from 0 to 1: 1 where all of it is new.
            share: seconds of learning over those of answering, at most; None for no bound, 0 learns nothing.
            ahead: answers whose share may be spent before.
        """
        if share is None:
            return True
        with self._lock:
            held = self._costs
            debt = held.learnt - share * held.answered
            credit = worth * share * ahead * held.answered / max(1, held.answers)
            allowed = share > 0 and debt <= credit
            self._costs = replace(held, withheld=held.withheld + (not allowed))
            return allowed

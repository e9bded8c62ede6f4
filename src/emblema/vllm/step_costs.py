"""Whether linking pays: what rows, requests and taken rows cost in this server's steps, and what its pages are worth.

A linked request's pages are its own from its first cached span on. vLLM's prefix cache then has nothing of them for
later prompts that begin alike, so what `auto` takes here may be computed again there.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from emblema.link.policy.policy import RowCosts
from emblema.plugin.spans import CachedSpans

KEPT = 256
LEAST, LEAST_TAKEN = 32, 8
"""Steps, and steps with taken rows, from which costs are fitted."""
SURE = 0.9
"""Linking has to be expected to cost less than this share of what it saves."""
FADING = 0.98
"""What a prompt still counts when the next one comes, in the share of rows that the prefix cache serves."""
PASSES = 2
"""Of a reading; its rows are one virtual request in each, where a step has room for them."""
UNSEEN_ROWS = 1024
"""Rows that are taken to have been computed, and found again once, before the first prompt."""


@dataclass(frozen=True, slots=True)
class StepRates:
    """What a further request in a step, a load and each row of it cost, in computed rows.

    Until measured they are as on small CPUs.
    """

    request: float = 64.0
    load: float = 32.0
    taken: float = 0.2


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step does: rows it computes, requests that are new in it (virtual ones too), requests whose cached rows
    it loads, and those rows; and how many of the computed rows are readings'.
    """

    rows: int
    requests: int
    loads: int
    taken: int
    read: int = 0


class StepCosts:
    """Costs of linking on one server, for the scheduler's thread.

    Args:
        shared: whether vLLM's prefix cache is on.

    Attributes:
        rates: what was fitted last.
    """

    def __init__(self, shared: bool) -> None:
        self._shared = shared
        self._steps: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._since_fit = 0
        self._hits, self._computed = float(UNSEEN_ROWS), float(UNSEEN_ROWS)
        self.rates = StepRates()

    def observe_step(self, work: StepWork, seconds: float) -> None:
        """Add the seconds that a step took."""
        if seconds <= 0:
            return
        self._steps.append((1.0, work.rows, work.requests, work.loads, work.taken, seconds))
        self._since_fit += 1
        if self._since_fit >= LEAST:
            self._since_fit = 0
            self._fit()

    def observe_prompt(self, rows: int, hit: int) -> None:
        """Add a prompt, of which the prefix cache had `hit` rows."""
        self._hits = FADING * self._hits + hit
        self._computed = FADING * self._computed + rows - hit

    def row_costs(self) -> RowCosts:
        """Return what a second pass costs beside the rows that it computes."""
        return RowCosts(self.rates.load + PASSES * self.rates.request, self.rates.taken)

    @property
    def uses(self) -> float:
        """How often a computed row is found again in the prefix cache, as prompts were lately."""
        return self._hits / max(1.0, self._computed) if self._shared else 0.0

    def pays(self, spans: CachedSpans, ready: int, rows: int) -> bool:
        """Return whether taking a prompt's cached spans is expected to cost less than computing all of it.

        Args:
            spans: its cached spans.
            ready: rows that the prefix cache has.
            rows: of the prompt.
        """
        private = spans.private_from(ready)
        left = [(max(start, ready), stop) for start, stop in spans.spans if stop > ready]
        if not left:
            return False
        taken = sum(stop - start for start, stop in left)
        gaps = sum(
            start > before for (start, _), before in zip(left, [ready, *(stop for _, stop in left)], strict=False)
        )
        cost = self.rates.load + self.rates.taken * taken + self.rates.request * gaps
        again = 0.0 if private is None else max(0.0, rows - private - taken) + self.rates.taken * taken
        return cost + self.uses * again < SURE * taken

    def _fit(self) -> None:
        """Fit seconds of a step, relative errors weighing alike; rates stay where the steps do not tell them apart."""
        steps = np.array(self._steps)
        if len(steps) < LEAST or (steps[:, 4] > 0).sum() < LEAST_TAKEN:
            return
        features, seconds = steps[:, :-1], steps[:, -1]
        # Slow moments of the machine say nothing about rows.
        pace = seconds / (1 + features[:, 1] + features[:, 4])
        kept = pace <= np.quantile(pace, 0.9)
        scaled = features[kept] / seconds[kept, None]
        columns = np.arange(scaled.shape[1])
        if np.linalg.matrix_rank(scaled) < len(columns):
            # Where all loads have as many rows, a load's own cost is in that of its rows.
            columns = np.delete(columns, 3)
            if np.linalg.matrix_rank(scaled[:, columns]) < len(columns):
                return
        fitted = np.zeros(scaled.shape[1])
        fitted[columns] = np.linalg.lstsq(scaled[:, columns], np.ones(len(scaled)), rcond=None)[0]
        _, row, *others = fitted
        if row > 0:
            bounds = ((8.0, 1024.0), (8.0, 1024.0), (0.02, 2.0))
            clipped = [float(np.clip(cost / row, *each)) for cost, each in zip(others, bounds, strict=True)]
            self.rates = StepRates(*clipped)

"""Whether linking pays: what rows, requests and taken rows cost in this server's steps.

A linked request's pages are its own from its first cached span on. vLLM's prefix cache then has nothing of them for
later prompts that begin alike (`prompt_reuse`), so what `auto` takes here may be computed again there.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from emblema.kv.chunk import Chunk
from emblema.link.policy.expectations import RowCosts
from emblema.link.prompt import Prompt, Rows
from emblema.served.spans import CachedSpans

KEPT = 256
LEAST, LEAST_TAKEN = 32, 4
"""Steps, and steps with taken rows, from which costs are fitted."""
SURE = 0.9
"""Linking has to be expected to cost less than this share of what it saves."""
NOISE = (0.01, 0.3)
"""Share of a step's seconds that is not explained, at least and at most. A rate that is as far off the first one as
that is large weighs like a step that is so far off."""
FITS = 2
"""The first with that, the second with the share that it does not explain."""
PASSES = 2
"""Of a reading; its rows are one virtual request in each, where a step has room for them."""
LEAST_RATES, MOST_RATES = (8.0, 8.0, 0.02), (1024.0, 1024.0, 2.0)
"""Bounds of what is fitted."""
TRIED_UNKNOWN, TRIED_KNOWN = 4, 64
"""Of so many prompts one is linked that would pay if linking cost the least that it may: what is never done is never
measured. The second once costs were fitted."""
MOST_TRIED = LEAST_TAKEN
"""So many prompts may follow each other that are tried until costs are known, where none before could be: of prompts
that show the same pictures these cost least."""


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
    it loads, and those rows.
    """

    rows: int
    requests: int
    loads: int
    taken: int


LEAST_STEP_RATES = StepRates(*LEAST_RATES)


class StepCosts:
    """Costs of linking on one server, for the scheduler's thread; any thread may ask.

    Attributes:
        rates: what was fitted last.
        fitted: whether anything was.
        step: what a step costs beside all that, in computed rows, shared by the requests that are new in it on average;
            0 until measured.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, ...]] = deque(maxlen=KEPT)
        self._since_fit = 0
        self._tries = 0.0
        self.fitted = False
        self.step = 0.0
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

    def due(self) -> bool:
        """Count a prompt, and return whether it is one that may be linked to learn what that costs."""
        share, most = (1 / TRIED_KNOWN, 1) if self.fitted else (1 / TRIED_UNKNOWN, MOST_TRIED)
        self._tries = min(self._tries + share, most)
        return self._tries >= 1

    def tried(self) -> None:
        """Note that a prompt is linked, or waits until it can be."""
        self._tries = max(0.0, self._tries - 1)

    def row_costs(self, trying: bool = False) -> RowCosts:
        """Return what a second pass costs beside the rows that it computes; the least that it may cost, if `trying`.

        A prompt that is read takes a step more than one that is computed, which others share with it.
        """
        rates, step = (LEAST_STEP_RATES, 0.0) if trying else (self.rates, self.step)
        return RowCosts(rates.load + PASSES * rates.request + step, rates.taken)

    def pays(self, spans: CachedSpans, ready: int, rows: int, uses: float, trying: bool = False) -> bool:
        """Return whether taking a prompt's cached spans is expected to cost less than computing all of it.

        Args:
            spans: its cached spans.
            ready: rows that the prefix cache has.
            rows: of the prompt.
            uses: how often a computed row is found again.
            trying: whether linking is taken to cost the least that it may.
        """
        rates = LEAST_STEP_RATES if trying else self.rates
        private = spans.private_from(ready)
        left = [(max(start, ready), stop) for start, stop in spans.spans if stop > ready]
        if not left:
            return False
        taken = sum(stop - start for start, stop in left)
        gaps = sum(
            start > before for (start, _), before in zip(left, [ready, *(stop for _, stop in left)], strict=False)
        )
        cost = rates.load + rates.taken * taken + rates.request * gaps
        again = 0.0 if private is None else max(0.0, rows - private - taken) + rates.taken * taken
        return cost + uses * again < SURE * taken

    def _fit(self) -> None:
        """Fit seconds of a step, relative errors weighing alike; what the steps do not tell apart stays as it was said.

        That is a ridge regression: how far each rate is from the first one, in shares of that, counts as an error too.
        """
        steps = np.array(self._steps)
        if len(steps) < LEAST or (steps[:, 4] > 0).sum() < LEAST_TAKEN:
            return
        features, seconds = steps[:, :-1], steps[:, -1]
        # Slow moments of the machine say nothing about rows.
        pace = seconds / (1 + features[:, 1] + features[:, 4])
        kept = pace <= np.quantile(pace, 0.9)
        features, seconds = features[kept], seconds[kept]
        first = np.array(astuple(StepRates()))
        scale = np.median(seconds / np.maximum(1.0, features[:, 1] + features[:, 2:] @ first))
        # A rate is the cost of its feature over that of a row.
        held = np.column_stack([np.zeros(len(first)), -np.ones(len(first)), np.diag(1 / first)]) / scale
        relative, ones = features / seconds[:, None], np.ones(len(seconds))
        wanted, noise = np.concatenate([ones, np.zeros(len(first))]), NOISE[1]
        for _ in range(FITS):
            fitted = np.linalg.lstsq(np.vstack([relative, noise * held]), wanted, rcond=None)[0]
            noise = float(np.clip(np.std(relative @ fitted - ones), *NOISE))
        constant, row, *others = fitted
        if row > 0:
            clipped = np.clip(np.array(others) / row, LEAST_RATES, MOST_RATES)
            self.rates, self.fitted = StepRates(*map(float, clipped)), True
            sharing = steps[steps[:, 2] > 0, 2]
            shared = float(sharing.mean()) if len(sharing) else 1.0
            self.step = float(np.clip(constant / row / max(1.0, shared), 0.0, MOST_RATES[0]))


@dataclass(frozen=True, slots=True)
class PromptCosts:
    """What linking is expected to cost a tenant's prompt in this server's steps; see `Costs`.

    Attributes:
        steps: costs of a step; None where `auto` links whatever it may.
        uses: how often a computed row of the tenant is found again.
        unsure: see `RowCosts`.
        sightings: how many prompts show a picture, on average: what it costs to prefill one alone is shared by them.
            None where that is not done for a prompt that waits.
        trying: whether the prompt is linked to learn what that costs. Then others may not follow, and it may bear all
            of what its missing pictures cost.
    """

    steps: StepCosts | None
    uses: float
    unsure: Callable[[Prompt], float]
    sightings: float | None = None
    trying: bool = False

    def second_pass_pays(self, prompt: Prompt, rows: int, share: float) -> bool:
        """Return whether it pays; see `Costs`."""
        return self._rows(self.trying).second_pass_pays(prompt, rows, share)

    def capturing_pays(self, prompt: Prompt, rows: int, share: float, new: Collection[Chunk], known: int) -> bool:
        """Return whether it pays; see `Costs`."""
        if self.sightings is None:
            return False
        alone = math.ceil(sum(chunk.tokens for _, chunk in prompt.chunk_segments) / self.sightings)
        own = max(alone, sum(chunk.tokens for chunk in new))
        if self.trying and self._rows(True).second_pass_pays(prompt, rows, share, own):
            return True
        return self._rows(False).second_pass_pays(prompt, rows, share, alone)

    def taking_pays(self, prompt: Prompt, taken: Sequence[Rows]) -> bool:
        """Return whether it pays; see `Costs`."""
        return self.spans_pay(CachedSpans(tuple(taken)), prompt, 0)

    def spans_pay(self, spans: CachedSpans, prompt: Prompt, ready: int) -> bool:
        """Return whether taking a prompt's cached spans pays where the first `ready` rows are there already."""
        return self.steps is None or self.steps.pays(spans, ready, prompt.tokens, self.uses, self.trying)

    def _rows(self, trying: bool) -> RowCosts:
        if self.steps is None:
            return RowCosts(unsure=self.unsure)
        # What is read leaves no pages that later prompts find.
        continued = min(1.0, self.uses)
        return replace(self.steps.row_costs(trying), unsure=self.unsure, continued=lambda prompt: continued)

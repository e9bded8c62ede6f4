"""Cached spans and compute spans: which rows of a plan come from the store, and how far one step can skip.

There is no model and no vLLM in here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from emblema.link.plan import LinkPlan, RowRange, Source
from emblema.link.prompt import Rows
from emblema.link.ranges import clipped


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows `start` to `stop` that one step makes ready: cached spans are loaded, compute spans computed beside them.

    Attributes:
        start: the first row that is not ready yet.
        stop: end of the last cached span; the step's own rows begin here.
        compute_spans: the rows between cached spans.
    """

    start: int
    stop: int
    compute_spans: tuple[Rows, ...]

    @property
    def compute_rows(self) -> int:
        return sum(stop - start for start, stop in self.compute_spans)

    @property
    def cached_rows(self) -> int:
        return self.stop - self.start - self.compute_rows


def unsupported_reason(plan: LinkPlan) -> str | None:
    """Return why a plan cannot be carried out in pages, or None if it can.

    A page holds whole rows: every row is computed in all layers or taken in all, in one forward.
    """
    if plan.selectors:
        return "it chooses rows by their values, layer by layer"
    if plan.leaving or any(part.source is Source.ABSENT for part in plan.ranges):
        return "some of its rows are absent"
    if any(part.stage or part.hidden or part.residual is not None for part in plan.ranges):
        return "its rows are computed in several steps, or blind to others"
    computed = plan.sources() == 0
    if (computed != computed[:1]).any():
        return "rows are computed in some layers and taken in others"
    return None


def cached_spans(plan: LinkPlan) -> tuple[Rows, ...]:
    """Return the longest runs of taken rows, in order, of a plan that pages support."""
    spans: list[Rows] = []
    for part in sorted((part for part in plan.ranges if part.source is Source.TAKEN), key=lambda part: part.start):
        if spans and part.start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], part.stop))
        else:
            spans.append((part.start, part.stop))
    return tuple(spans)


def claim_spans(cached: Sequence[Rows], ready: int, rows: int, slots: int, most: int | None = None) -> Claim | None:
    """Return the furthest that one step can skip from row `ready`, or None where it reaches no cached span.

    Args:
        cached: cached spans in order.
        ready: the first row that is not ready yet; it may lie inside a cached span.
        rows: how many rows of compute spans may be computed beside the step's own.
        slots: how many compute spans there may be.
        most: how many cached spans at most.
    """
    spans: list[Rows] = []
    reached: Claim | None = None
    row, computed, taken = ready, 0, 0
    for start, stop in cached:
        if stop <= ready:
            continue
        if start > row:
            spans.append((row, start))
            computed += start - row
        if computed > rows or len(spans) > slots or taken == most:
            break
        row, taken = stop, taken + 1
        reached = Claim(ready, row, tuple(spans))
    return reached


def rows_until_cached(cached: Sequence[Rows], ready: int) -> int | None:
    """Return how many rows from `ready` lie before the next cached span, or None if there is no next one."""
    return next((start - ready for start, _ in cached if start > ready), None)


def clip_plan(plan: LinkPlan, claim: Claim) -> LinkPlan:
    """Return a plan with the taken ranges of a claim alone, cut to it; it does not cover the prompt."""
    parts: list[RowRange] = []
    for part in plan.ranges:
        if part.source is Source.TAKEN and part.start < claim.stop and part.stop > claim.start:
            kept = clipped(part, claim.start)
            parts.append(replace(kept, stop=min(kept.stop, claim.stop)))
    return replace(plan, ranges=tuple(parts), forming=())

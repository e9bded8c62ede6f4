"""Cached spans and compute spans: which rows of a plan come from the store, and how far one step can skip.

There is no model and no vLLM in here.
"""

from dataclasses import dataclass, field, replace

from emblema.link.plan import LinkPlan, RowRange, RowSource
from emblema.link.prompt import Rows


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
    if plan.recomputation is not None:
        return "it computes rows a second time"
    if plan.leaving or any(part.source is RowSource.ABSENT for part in plan.ranges):
        return "some of its rows are absent"
    if any(part.stage or part.hidden or part.residual is not None for part in plan.ranges):
        return "its rows are computed in several steps, or blind to others"
    computed = plan.sources() == 0
    if (computed != computed[:1]).any():
        return "rows are computed in some layers and taken in others"
    return None


@dataclass(slots=True)
class CachedSpans:
    """The longest runs of taken rows of a plan, in order. `ready` is the first row that is not ready yet.

    Attributes:
        spans: as rows of the prompt.
    """

    spans: tuple[Rows, ...] = ()
    _most: int | None = field(default=None, init=False)

    @classmethod
    def of(cls, plan: LinkPlan) -> "CachedSpans":
        """Return the cached spans of a plan that pages support."""
        spans: list[Rows] = []
        for part in sorted(
            (part for part in plan.ranges if part.source is RowSource.TAKEN), key=lambda part: part.start
        ):
            if spans and part.start <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(spans[-1][1], part.stop))
            else:
                spans.append((part.start, part.stop))
        return cls(tuple(spans))

    def __contains__(self, row: int) -> bool:
        return any(start <= row < stop for start, stop in self.spans)

    def rows_until(self, ready: int) -> int | None:
        """Return how many rows may be computed before the next span; None if there is no next one."""
        return next((start - ready for start, _ in self.spans if start > ready), None)

    def private_from(self, ready: int) -> int | None:
        """Return the first row from `ready` on that differs from plain prefill; None if there is none.

        A chunk at row 0 has absorbed nothing, so it is exact, and so is what follows it up to the next span.
        """
        return next((max(start, ready) for start, stop in self.spans if start > 0 and stop > ready), None)

    def claim(self, ready: int, rows: int, slots: int) -> Claim | None:
        """Return the furthest that one step can skip, or None where it reaches no span.

        Args:
            rows: how many rows of compute spans may be computed beside the step's own.
            slots: how many compute spans there may be.
        """
        spans: list[Rows] = []
        reached: Claim | None = None
        row, computed, taken = ready, 0, 0
        for start, stop in self.spans:
            if stop <= ready:
                continue
            if start > row:
                spans.append((row, start))
                computed += start - row
            if computed > rows or len(spans) > slots or taken == self._most:
                break
            row, taken = stop, taken + 1
            reached = Claim(ready, row, tuple(spans))
        return reached

    def compute_rows(self, ready: int) -> int:
        """Return the rows of all compute spans ahead, in a step that has room for them."""
        claim = self.claim(ready, 1 << 30, 1 << 30)
        return 0 if claim is None else claim.compute_rows

    def skip_fewer(self) -> None:
        """Halve the spans that a step may skip, for a small encoder budget; drop all where one span is too many."""
        if self._most == 1:
            self.spans = ()
        else:
            self._most = max(1, (len(self.spans) if self._most is None else self._most) // 2)


def clip_plan(plan: LinkPlan, claim: Claim) -> LinkPlan:
    """Return a plan with the taken ranges of a claim alone, cut to it; it does not cover the prompt."""
    parts: list[RowRange] = []
    for part in plan.ranges:
        if part.source is RowSource.TAKEN and part.start < claim.stop and part.stop > claim.start:
            kept = part.after(claim.start)
            parts.append(replace(kept, stop=min(kept.stop, claim.stop)))
    return replace(plan, ranges=tuple(parts), forming=())

"""Holes and gaps: which rows of a plan are taken, and how many of them one step can jump over. No model, no vLLM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from emblema.link.plan import LinkPlan, RowRange, Source
from emblema.link.prompt import Rows
from emblema.link.ranges import clipped


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows `start` to `stop` that one step makes ready: the holes in them are loaded, the gaps computed beside.

    Attributes:
        start: the first row that is not there yet.
        stop: end of the last hole; the step's own rows begin there.
        gaps: the rows between that have to be computed.
    """

    start: int
    stop: int
    gaps: tuple[Rows, ...]

    @property
    def gap_rows(self) -> int:
        return sum(stop - start for start, stop in self.gaps)

    @property
    def taken_rows(self) -> int:
        return self.stop - self.start - self.gap_rows


def beyond(plan: LinkPlan) -> str | None:
    """Why rows of this plan cannot be had from pages, or None if they can.

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


def holes_of(plan: LinkPlan) -> tuple[Rows, ...]:
    """The longest runs of taken rows, in order; the plan is none that is `beyond`."""
    holes: list[Rows] = []
    for part in sorted((part for part in plan.ranges if part.source is Source.TAKEN), key=lambda part: part.start):
        if holes and part.start <= holes[-1][1]:
            holes[-1] = (holes[-1][0], max(holes[-1][1], part.stop))
        else:
            holes.append((part.start, part.stop))
    return tuple(holes)


def claim(holes: Sequence[Rows], computed: int, tokens: int, slots: int, most: int | None = None) -> Claim | None:
    """The furthest that one step can jump from row `computed`, or None where it reaches no hole.

    Args:
        holes: runs of taken rows, in order.
        computed: rows that are there already; a hole may begin before it.
        tokens: how many rows of gaps may be computed beside the step's own.
        slots: how many gaps there may be.
        most: how many holes at most.
    """
    gaps: list[Rows] = []
    reached: Claim | None = None
    row, rows, taken = computed, 0, 0
    for start, stop in holes:
        if stop <= computed:
            continue
        if start > row:
            gaps.append((row, start))
            rows += start - row
        if rows > tokens or len(gaps) > slots or taken == most:
            break
        row, taken = stop, taken + 1
        reached = Claim(computed, row, tuple(gaps))
    return reached


def room(holes: Sequence[Rows], computed: int) -> int | None:
    """How many rows may be computed from `computed` on before a hole begins; None where none lies ahead."""
    return next((start - computed for start, _ in holes if start > computed), None)


def within(plan: LinkPlan, claim: Claim) -> LinkPlan:
    """The plan's taken ranges in a claim, cut to it; not a whole plan any more."""
    parts: list[RowRange] = []
    for part in plan.ranges:
        if part.source is Source.TAKEN and part.start < claim.stop and part.stop > claim.start:
            kept = clipped(part, claim.start)
            parts.append(replace(kept, stop=min(kept.stop, claim.stop)))
    return replace(plan, ranges=tuple(parts), forming=())

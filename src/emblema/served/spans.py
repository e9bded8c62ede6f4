"""Cached spans: which rows of a plan come from the store, and what one step takes and computes of a request.

There is no model and no engine in here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from emblema.link.plan import LinkPlan, RowRange, RowSource
from emblema.link.prompt import Rows


@dataclass(frozen=True, slots=True)
class StepRows:
    """What one step does of a request: some rows are taken, the others computed.

    Attributes:
        taken: rows to write into pages before the forward.
        computed: rows to compute, in order; the last run is the request's own, the others are virtual requests.
        stand_in: whether the last computed row is one to be taken: a step computes at least one row of a request. The
            next step takes that row again.
    """

    taken: tuple[Rows, ...]
    computed: tuple[Rows, ...]
    stand_in: bool = False


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """What is done of a prompt up to its last taken row: some rows are taken, those between them computed.

    Attributes:
        taken, computed: the rows, in order; there are taken ones.
    """

    taken: tuple[Rows, ...]
    computed: tuple[Rows, ...]

    @property
    def stop(self) -> int:
        """The row after the last."""
        return self.taken[-1][1]

    @property
    def linked(self) -> int:
        """How many are taken."""
        return sum(stop - start for start, stop in self.taken)


def unsupported_reason(plan: LinkPlan, second_pass: str | None = None) -> str | None:
    """Return why a plan cannot be carried out in pages, or None if it can.

    A page holds whole rows: every row is computed in all layers or taken in all, in one forward.
    """
    if plan.selectors:
        return "it chooses rows by their values, layer by layer"
    if plan.recomputation is not None and second_pass is not None:
        return f"it computes rows a second time, and {second_pass}"
    if plan.leaving or any(part.source is RowSource.ABSENT for part in plan.ranges):
        return "some of its rows are absent"
    if any(part.hidden for part in plan.ranges):
        return "its rows are computed in several steps, or blind to others"
    if all(part.layers == (0, plan.layers) for part in plan.ranges):
        return None
    computed = plan.sources() == 0
    if (computed != computed[:1]).any():
        return "rows are computed in some layers and taken in others"
    return None


@dataclass(frozen=True, slots=True)
class CachedSpans:
    """The longest runs of taken rows of a plan, in order.

    Attributes:
        spans: as rows of the prompt.
        exact: rows before this one are as plain prefill makes them, taken or not.
        patched: runs of taken rows with a patch, in order.
    """

    spans: tuple[Rows, ...] = ()
    exact: int = 0
    patched: tuple[Rows, ...] = ()

    @classmethod
    def of(cls, plan: LinkPlan, exact: int = 0) -> "CachedSpans":
        """Return the cached spans of a plan that pages support."""
        taken = [part for part in plan.ranges if part.source is RowSource.TAKEN]
        patched = _joined((part.start, part.stop) for part in taken if part.patch is not None)
        return cls(_joined((part.start, part.stop) for part in taken), exact, patched)

    def private_from(self, ready: int) -> int | None:
        """Return the first row from `ready` on that differs from plain prefill; None if there is none.

        A chunk right after the anchor is exact, and so is what follows it up to the next taken row.
        """
        first = max(ready, self.exact)
        return next((max(start, first) for start, stop in self.spans if stop > first), None)

    def after(self, ready: int) -> bool:
        """Return whether any span has rows from `ready` on."""
        return any(stop > ready for _, stop in self.spans)

    def patched_rows(self, taken: Iterable[Rows]) -> int:
        """Return how many of some taken rows have a patch."""
        return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in taken for b in self.patched)

    def load(self, ready: int, rows: int) -> "LoadedRows | None":
        """Return what is done of a prompt of so many rows before its own rows are scheduled; None where nothing is.

        Args:
            ready: rows that the prefix cache has.
            rows: of the prompt; the last one is always its own.
        """
        taken = tuple(
            (max(start, ready), min(stop, rows - 1))
            for start, stop in self.spans
            if stop > ready and max(start, ready) < rows - 1
        )
        if not taken:
            return None
        edges = (ready, *(stop for _, stop in taken))
        computed = tuple((stop, start) for stop, (start, _) in zip(edges, taken, strict=False) if stop < start)
        return LoadedRows(taken, computed)

    def step_rows(self, start: int, stop: int, stand_in: bool) -> StepRows:
        """Return what a step does that is to make some rows of a request ready, one or more.

        Args:
            start, stop: the rows.
            stand_in: whether the row before them was computed in place of being taken.
        """
        begin = start - stand_in
        taken = tuple(
            (max(first, begin), min(last, stop)) for first, last in self.spans if first < stop and last > begin
        )
        computed: list[Rows] = []
        row = start
        for first, last in taken:
            if first > row:
                computed.append((row, first))
            row = max(row, last)
        if row < stop:
            computed.append((row, stop))
            return StepRows(taken, tuple(computed))
        return StepRows(taken, (*computed, (stop - 1, stop)), stand_in=True)


def _joined(runs: Iterable[Rows]) -> tuple[Rows, ...]:
    """Return the longest runs of the rows of some runs, in order."""
    joined: list[Rows] = []
    for start, stop in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
        else:
            joined.append((start, stop))
    return tuple(joined)


def taken_rows(plan: LinkPlan, taken: tuple[Rows, ...]) -> LinkPlan:
    """Return a plan with its taken ranges alone, cut to some rows; it does not cover the prompt."""
    parts: list[RowRange] = []
    for part in plan.ranges:
        for start, stop in taken if part.source is RowSource.TAKEN else ():
            if part.start < stop and part.stop > start:
                kept = part.after(start)
                parts.append(replace(kept, stop=min(kept.stop, stop)))
    return replace(plan, ranges=tuple(parts), forming=())

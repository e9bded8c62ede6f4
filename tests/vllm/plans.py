"""Plans as vLLM had to carry them out, for the embedded engine to carry out too."""

from dataclasses import dataclass, replace

from emblema.link.plan import LinkPlan, RowRange, RowSource
from emblema.link.prompt import Prompt, Rows
from emblema.link.strategies.base import Knowledge
from emblema.link.strategies.registry import parse
from emblema.served.request_plan import compute_chunks


@dataclass(frozen=True)
class Mixed:
    """A strategy where some chunks are new, and computed."""

    name: str
    new: frozenset[str]

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        return compute_chunks(parse(self.name).plan(prompt, knowledge), self.new)


@dataclass(frozen=True)
class AfterPrefix:
    """A strategy after rows that an exact prefix gave."""

    name: str
    rows: int

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        plan = parse(self.name).plan(prompt, knowledge)
        kept = [part.after(self.rows) for part in plan.ranges if part.stop > self.rows]
        return replace(plan, ranges=(RowRange(0, self.rows, RowSource.COMPUTED, (0, plan.layers)), *kept))


@dataclass(frozen=True)
class RowsTaken:
    """A strategy that takes the rows that a worker took, and computes all others.

    Attributes:
        taken: runs of rows, each within a chunk.
    """

    taken: tuple[Rows, ...]
    name: str = "blind"

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        plan = parse("blind").plan(prompt, knowledge)
        found: list[RowRange] = []
        row = 0
        for start, stop in self.taken:
            part = next(part for part in plan.ranges if part.start <= start < part.stop)
            if part.source is not RowSource.TAKEN or stop > part.stop:
                raise ValueError(f"rows {start} to {stop} are no chunk's")
            found += [RowRange(row, start, RowSource.COMPUTED, part.layers)] if row < start else []
            found.append(replace(part.after(start), stop=stop))
            row = stop
        found.append(RowRange(row, prompt.tokens, RowSource.COMPUTED, (0, plan.layers)))
        return replace(plan, ranges=tuple(found))


@dataclass(frozen=True)
class Read:
    """`query-R%` where any answer stands, after rows that an exact prefix gave."""

    name: str
    rows: int = 0

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        plan = parse(self.name).plan(prompt, knowledge)
        again = None if plan.recomputation is None else plan.recomputation.after(self.rows)
        assert again is not None
        plan = replace(plan, recomputation=again, least_margin=0.0)
        if not self.rows:
            return plan
        kept = [part.after(self.rows) for part in plan.ranges if part.stop > self.rows]
        return replace(plan, ranges=(RowRange(0, self.rows, RowSource.COMPUTED, (0, plan.layers)), *kept))

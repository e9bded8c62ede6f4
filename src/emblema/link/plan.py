"""The link plan: for every row of the KV table and every layer, where it comes from. Plain data, no model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy

from emblema.errors import PlanError
from emblema.kv.layout import LayerLayout
from emblema.link.cost import Cost, cost_of
from emblema.link.policy.policy import Decision
from emblema.link.prompt import Rows
from emblema.link.ranges import (
    LIVE,
    ChunkOrigin,
    Origin,
    PatchUse,
    PrefixOrigin,
    ResidualUse,
    RowRange,
    Selector,
    Source,
    clipped,
    code_of,
    describe,
)
from emblema.store.keys import PatchKey

__all__ = [
    "LIVE",
    "ChunkOrigin",
    "Cost",
    "LinkPlan",
    "Origin",
    "PatchUse",
    "PrefixOrigin",
    "ResidualUse",
    "RowRange",
    "Selector",
    "Source",
    "describe",
]


@dataclass(frozen=True, slots=True)
class LinkPlan:
    """A strategy's answer for one prompt.

    Attributes:
        strategy: the strategy's full name.
        rows: rows of the prompt.
        layers: decoder layers.
        ranges: every row of every layer exactly once.
        selectors: choices left to run time, each with a fixed budget.
        forming: patches and other pieces that the strategy asks for and the store does not have; formed before the plan
            is made again.
        leaving: rows that leave the table when the prefill is over (slid antecedents).
        remark: what the strategy could not do as asked, for the reply; None if all is as asked.
        decisions: what `auto` chose for each chunk, and why.
    """

    strategy: str
    rows: int
    layers: int
    ranges: tuple[RowRange, ...]
    selectors: tuple[Selector, ...] = ()
    forming: tuple[PatchKey, ...] = ()
    leaving: tuple[Rows, ...] = ()
    remark: str | None = None
    decisions: tuple[Decision, ...] = ()

    def sources(self) -> numpy.ndarray:
        """[layers, rows] array of source codes: 0 computed, 1 taken, 2 taken and patched, 3 absent.

        Raises:
            PlanError: a row has no source, or two, in some layer, or a range is malformed.
        """
        codes = numpy.full((self.layers, self.rows), -1, dtype=numpy.int8)
        for part in self.ranges:
            first, last = part.layers
            if not (0 <= part.start < part.stop <= self.rows and 0 <= first < last <= self.layers):
                raise PlanError(f"range {part} lies outside {self.rows} rows and {self.layers} layers")
            if (part.source is Source.TAKEN) != (part.origin is not None):
                raise PlanError(f"range {part}: taken rows, and only those, have an origin")
            block = codes[first:last, part.start : part.stop]
            if (block != -1).any():
                raise PlanError(f"rows {part.start} to {part.stop} have two sources in layers {first} to {last}")
            block[:] = code_of(part)
        if (codes == -1).any():
            layer, row = (int(index) for index in numpy.argwhere(codes == -1)[0])
            raise PlanError(f"row {row} has no source in layer {layer}")
        return codes

    def validate(self) -> None:
        """Check the plan's invariants.

        Raises:
            PlanError: see `sources`; also when the last row is not computed in every layer and in the last stage (it
                gives the logits), when a row has two stages or two masks, or when a selector's candidates are not
                computed in one stage up to its layer and taken above it, or a residual stream does not belong to
                computed rows whose layer below is skipped.
        """
        codes = self.sources()
        if (codes[:, -1] != 0).any():
            raise PlanError("the last row must be computed in every layer: its logits are the answer")
        for part in self.ranges:
            first = part.layers[0]
            if part.residual is not None and (
                part.source is not Source.COMPUTED
                or first == 0
                or (codes[first - 1, part.start : part.stop] == 0).any()
            ):
                raise PlanError(
                    f"rows {part.start} to {part.stop}: only rows computed above a skipped layer begin from a residual "
                    "stream"
                )
        stages = self._stages()
        if stages[-1] != stages.max():
            raise PlanError("the last row must be computed in the last stage: its logits are the answer")
        for selector in self.selectors:
            if selector.budget < 0 or not selector.candidates:
                raise PlanError(f"selector {selector.rule}: it needs candidates, and a budget of 0 or more")
            if len({int(stage) for start, stop in selector.candidates for stage in stages[start:stop]}) > 1:
                raise PlanError(f"selector {selector.rule}: its candidates must be computed in one stage")
            for start, stop in selector.candidates:
                below = codes[: selector.layer + 1, start:stop]
                above = codes[selector.layer + 1 :, start:stop]
                if (below != 0).any() or ((above != 1) & (above != 2)).any():
                    raise PlanError(
                        f"selector {selector.rule}: rows {start} to {stop} must be computed up to layer "
                        f"{selector.layer} and taken above it"
                    )

    def _stages(self) -> numpy.ndarray:
        """[rows] stage in which each row is computed, -1 for rows that are not."""
        stages = numpy.full(self.rows, -1, dtype=numpy.int64)
        masks = numpy.full(self.rows, -1, dtype=numpy.int64)
        known: dict[tuple[Rows, ...], int] = {}
        for part in self.ranges:
            if part.source is not Source.COMPUTED:
                continue
            mask = known.setdefault(part.hidden, len(known))
            rows = slice(part.start, part.stop)
            for held, value in ((stages, part.stage), (masks, mask)):
                if ((held[rows] != -1) & (held[rows] != value)).any():
                    raise PlanError(f"rows {part.start} to {part.stop} have two stages, or two masks, in their layers")
                held[rows] = value
        return stages

    def after(self, reused_rows: int) -> "LinkPlan":
        """Return the plan for the rows from `reused_rows` on; the table that is continued holds the others."""
        ranges = [RowRange(0, reused_rows, Source.TAKEN, (0, self.layers), PrefixOrigin(LIVE))]
        ranges += [clipped(part, reused_rows) for part in self.ranges if part.stop > reused_rows]
        selectors = []
        for selector in self.selectors:
            candidates = _spans_after(selector.candidates, reused_rows)
            if candidates:
                selectors.append(replace(selector, candidates=candidates))
        used = {use.key for part in ranges for use in (part.patch, part.residual) if use is not None}
        forming = tuple(key for key in self.forming if key in used)
        return replace(
            self,
            ranges=tuple(ranges),
            selectors=tuple(selectors),
            forming=forming,
            leaving=_spans_after(self.leaving, reused_rows),
            decisions=tuple(decision for decision in self.decisions if decision.start >= reused_rows),
        )

    def cost(self, layouts: Sequence[LayerLayout], itemsize: int) -> Cost:
        """What the plan will do, from its ranges and budgets; `itemsize` is bytes per number of the KV."""
        return cost_of(self.ranges, self.selectors, self.layers, layouts, itemsize)

    @property
    def exact(self) -> bool:
        """Whether every row is what the model's own forward makes of the prompt: nothing hidden, reused or left out."""
        return not (self.selectors or self.leaving) and all(
            (part.source is Source.COMPUTED and not part.hidden and part.stage == 0)
            or isinstance(part.origin, PrefixOrigin)
            for part in self.ranges
        )

    def patch_need(self, key: PatchKey) -> tuple[int, frozenset[int]]:
        """The largest rank and the layers that the plan asks of a patch."""
        uses = [part for part in self.ranges if part.patch is not None and part.patch.key == key]
        rank = max((part.patch.rank for part in uses if part.patch is not None), default=0)
        return rank, frozenset(layer for part in uses for layer in range(*part.layers))

    def __str__(self) -> str:
        lines = [f"{self.strategy}: {self.rows} rows, {self.layers} layers"]
        lines += [
            f"  {part.start:>6} - {part.stop:<6} {part.source.value:<9} layers {part.layers[0]}-{part.layers[1] - 1}"
            f"  stage {part.stage}  {describe(part)}".rstrip()
            for part in self.ranges
        ]
        lines += [
            f"  selector {one.rule} after layer {one.layer}: {one.budget} rows of {one.candidates}"
            for one in self.selectors
        ]
        return "\n".join(lines)


def _spans_after(spans: Sequence[Rows], first: int) -> tuple[Rows, ...]:
    return tuple((max(start, first), stop) for start, stop in spans if stop > first)

"""The link plan: for every row of the KV table and every layer, where it comes from. Plain data, no model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy

from emblema.errors import PlanError
from emblema.kv.layout import LayerLayout
from emblema.link.policy.policy import Decision
from emblema.link.prompt import Rows
from emblema.store.keys import ArtifactKey, ArtifactKind

SHARED_DIRECTIONS = (ArtifactKind.BASIS, ArtifactKind.PAIRS)
"""Kinds of patches whose right factors are the model's."""


class RowSource(StrEnum):
    """Where a row of a layer comes from."""

    COMPUTED = "computed"
    TAKEN = "taken"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class ChunkOrigin:
    """Canonical rows of a chunk from row `offset` on; with `relocated`, turned to the range's positions."""

    chunk: str
    offset: int = 0
    relocated: bool = True


@dataclass(frozen=True, slots=True)
class PrefixOrigin:
    """Rows of an earlier prompt's exact table, at the same rows and positions; copied as they are."""

    entry: str


LIVE = "live"
"""The entry of a table that a continued prompt goes on with."""

Origin = ChunkOrigin | PrefixOrigin


@dataclass(frozen=True, slots=True)
class PatchUse:
    """A stored patch, cut to a rank.

    A key of the kind KEYS adds nothing: its factors replace the chunk's own keys. Of the kinds BASIS and PAIRS, the
    right factors are the model's and only the left ones are the item's.
    """

    key: ArtifactKey
    rank: int


@dataclass(frozen=True, slots=True)
class ResidualUse:
    """A chunk's kept residual stream, which rows computed above a skipped layer begin from.

    Attributes:
        key: its key, which names the layer that it enters.
        width: numbers a row, the model's hidden size.
        offset: the stream's row that the range begins with.
    """

    key: ArtifactKey
    width: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `start` to `stop` in layers `layers[0]` to `layers[1]` (ends excluded).

    Attributes:
        source: computed, taken or absent.
        layers: the layers that the range is about.
        origin: where taken rows come from.
        patch: what is added to taken chunk rows.
        hidden: row ranges that computed rows may not attend, in any layer.
        stage: computed rows of a lower stage run in an earlier forward, in which those of later stages are hidden. A
            row has one stage and one mask, whatever its layers.
        residual: what computed rows begin from in `layers[0]`, where the layers below do not compute them.
    """

    start: int
    stop: int
    source: RowSource
    layers: tuple[int, int]
    origin: Origin | None = None
    patch: PatchUse | None = None
    hidden: tuple[Rows, ...] = ()
    stage: int = 0
    residual: ResidualUse | None = None

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def replaces_keys(self) -> bool:
        """Whether its patch replaces the chunk's keys and adds nothing."""
        return self.patch is not None and self.patch.key.kind is ArtifactKind.KEYS

    @property
    def code(self) -> int:
        """The source as a number: 0 computed, 1 taken, 2 taken and patched, 3 absent."""
        if self.source is RowSource.COMPUTED:
            return 0
        if self.source is RowSource.ABSENT:
            return 3
        return 1 if self.patch is None or self.replaces_keys else 2

    def after(self, row: int) -> "RowRange":
        """Return the part of the range from a row on."""
        cut = row - self.start
        if cut <= 0:
            return self
        origin, residual = self.origin, self.residual
        if isinstance(origin, ChunkOrigin):
            origin = replace(origin, offset=origin.offset + cut)
        if residual is not None:
            residual = replace(residual, offset=residual.offset + cut)
        return replace(self, start=row, origin=origin, residual=residual)

    def features_read(self, layout: LayerLayout) -> int:
        """Return how many numbers of KV are read for each taken row of a layer; without keys that are replaced."""
        if self.replaces_keys and isinstance(self.origin, ChunkOrigin):
            return layout.values[0] * layout.values[1]
        return layout.features

    def factors_read(self, layout: LayerLayout) -> int:
        """Return how many numbers of patch factors are read for the range in a layer."""
        if self.patch is None:
            return 0
        slots = (layout.keys,) if self.replaces_keys else (layout.keys, layout.values)
        shared = self.patch.key.kind in SHARED_DIRECTIONS
        return sum(
            min(self.patch.rank, heads * width) * (self.rows + (0 if shared else heads * width))
            for heads, width in slots
        )

    def __str__(self) -> str:
        words = []
        if isinstance(self.origin, ChunkOrigin):
            offset = f" from row {self.origin.offset}" if self.origin.offset else ""
            words.append(f"chunk {self.origin.chunk[:8]}{offset}")
            if not self.origin.relocated:
                words.append("not relocated")
        elif isinstance(self.origin, PrefixOrigin):
            words.append(f"prefix {self.origin.entry[:8]}")
        if self.patch is not None and self.replaces_keys:
            words.append(f"keys of rank {self.patch.rank}")
        elif self.patch is not None and self.patch.key.kind is ArtifactKind.REPAIR:
            words.append(f"repaired by rank {self.patch.rank}")
        elif self.patch is not None and self.patch.key.kind is ArtifactKind.PAIRS:
            words.append(f"pairs of rank {self.patch.rank} with {len(set(self.patch.key.antecedents))} chunks")
        elif self.patch is not None:
            words.append(f"patch of rank {self.patch.rank} after {len(self.patch.key.antecedents)} chunks")
        if self.residual is not None:
            words.append(f"from the {self.residual.key.label} of {self.residual.key.chunk[:8]}")
        if self.hidden:
            words.append("blind to " + ", ".join(f"{start}-{stop}" for start, stop in self.hidden))
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Selector:
    """A choice that depends on values: after layer `layer`, of the computed candidates only `budget` rows go on.

    The candidates are computed up to and including `layer`; in later layers the chosen ones are computed and the others
    are taken, as their ranges for those layers say.

    Attributes:
        rule: how rows are ranked: `deviation` (largest change of K and V against the taken rows, CacheBlend).
        candidates: row ranges to choose from.
        layer: the layer after which to choose.
        budget: how many candidate rows are computed in the later layers.
    """

    rule: str
    candidates: tuple[Rows, ...]
    layer: int
    budget: int

    @property
    def rows(self) -> int:
        """How many candidates there are."""
        return sum(stop - start for start, stop in self.candidates)


@dataclass(frozen=True, slots=True)
class Recomputation:
    """A second pass: the taken rows that the question attends most are computed again in context, and it with them.

    The first pass runs over the rows as they are taken, and what the question's rows attend is noted. The second runs
    the chosen rows and the question in one forward, in prompt order, and writes over what the first left of them.

    Attributes:
        candidates: row ranges to choose from, taken in every layer.
        budget: how many of them are computed.
        question: rows that run in both passes; the prompt's last row is the last of them.
        layers: layers whose attention is noted; None for all.
        least_margin: the answer stands if the probabilities of its two likeliest first tokens differ by as much; below,
            the prompt has to be computed in full. 0 accepts any answer.
    """

    candidates: tuple[Rows, ...]
    budget: int
    question: Rows
    layers: frozenset[int] | None = None
    least_margin: float = 0.0

    @property
    def question_rows(self) -> int:
        """How many rows run in both passes."""
        return self.question[1] - self.question[0]

    @property
    def rows(self) -> int:
        """How many rows run in the second pass."""
        return min(self.budget, sum(stop - start for start, stop in self.candidates)) + self.question_rows

    def after(self, row: int) -> "Recomputation | None":
        """Return what is left of it from a row on; None where no candidate is."""
        candidates = _spans_after(self.candidates, row)
        question = (max(row, self.question[0]), self.question[1])
        return replace(self, candidates=candidates, question=question) if candidates else None


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan will do, as its trace will report it.

    Attributes:
        rows_computed: rows run; a row in every layer counts 1.
        rows_taken: rows taken in at least one layer.
        rows_patched: rows patched in at least one layer.
        bytes_read: bytes of KV read from chunks and kept prefixes, those that a selector compares with included.
        patch_bytes: bytes of patch factors read.
        residual_bytes: bytes of kept residual streams read.
    """

    rows_computed: float
    rows_taken: int
    rows_patched: int
    bytes_read: int
    patch_bytes: int = 0
    residual_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rows_computed:g} rows computed, {self.rows_taken} taken, {self.rows_patched} patched; "
            f"{self.bytes_read:,} bytes of KV, {self.patch_bytes:,} of patches, {self.residual_bytes:,} of residuals"
        )


@dataclass(frozen=True)
class LinkPlan:
    """A strategy's answer for one prompt.

    Attributes:
        strategy: the strategy's full name.
        rows: rows of the prompt.
        layers: decoder layers.
        ranges: every row of every layer exactly once.
        selectors: choices left to run time, each with a fixed budget.
        forming: keys of the patches and other artifacts that the strategy asks for and the store does not have; they
            are formed and the plan is made again.
        leaving: rows that leave the table after the prefill (slid antecedents).
        recomputation: a second pass over rows that the question attends most; None for none.
        remark: what the strategy could not do as asked, for the reply; None if all is as asked.
        decisions: what `auto` chose for each chunk, and why.
    """

    strategy: str
    rows: int
    layers: int
    ranges: tuple[RowRange, ...]
    selectors: tuple[Selector, ...] = ()
    forming: tuple[ArtifactKey, ...] = ()
    leaving: tuple[Rows, ...] = ()
    recomputation: Recomputation | None = None
    remark: str | None = None
    decisions: tuple[Decision, ...] = ()

    def sources(self) -> numpy.ndarray:
        """Return source codes [layers, rows], not to be written to: 0 computed, 1 taken, 2 taken and patched, 3 absent.

        Raises:
            PlanError: a row has no source, or two, in some layer, or a range is malformed.
        """
        return self._sources

    @cached_property
    def _sources(self) -> numpy.ndarray:
        codes = numpy.full((self.layers, self.rows), -1, dtype=numpy.int8)
        for part in self.ranges:
            first, last = part.layers
            if not (0 <= part.start < part.stop <= self.rows and 0 <= first < last <= self.layers):
                raise PlanError(f"range {part!r} lies outside {self.rows} rows and {self.layers} layers")
            if (part.source is RowSource.TAKEN) != (part.origin is not None):
                raise PlanError(f"range {part!r}: taken rows, and only those, have an origin")
            block = codes[first:last, part.start : part.stop]
            if (block != -1).any():
                raise PlanError(f"rows {part.start} to {part.stop} have two sources in layers {first} to {last}")
            block[:] = part.code
        if (codes == -1).any():
            layer, row = (int(index) for index in numpy.argwhere(codes == -1)[0])
            raise PlanError(f"row {row} has no source in layer {layer}")
        codes.flags.writeable = False
        return codes

    def validate(self) -> None:
        """Check the plan's invariants.

        Raises:
            PlanError: see `sources`; also when the last row is not computed in every layer and in the last stage (it
                gives the logits), when a row has two stages or two masks, or when a selector's candidates are not
                computed in one stage up to its layer and taken above it, when a residual stream does not belong to
                computed rows whose layer below is skipped, or a second pass does not choose among taken rows and end
                with the last row.
        """
        codes = self.sources()
        if (codes[:, -1] != 0).any():
            raise PlanError("the last row must be computed in every layer: its logits are the answer")
        for part in self.ranges:
            first = part.layers[0]
            if part.residual is not None and (
                part.source is not RowSource.COMPUTED
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
        if self.recomputation is not None:
            self._validate_recomputation(self.recomputation, codes, stages)

    def _validate_recomputation(
        self, recomputation: Recomputation, codes: numpy.ndarray, stages: numpy.ndarray
    ) -> None:
        start, stop = recomputation.question
        if ((codes == 0).any(axis=0) != (codes == 0).all(axis=0)).any():
            raise PlanError("a second pass: a row is computed in some layers only")
        if self.selectors or recomputation.budget < 0 or not recomputation.candidates:
            raise PlanError("a second pass needs candidates, a budget of 0 or more, and a plan without selectors")
        if not 0 <= start < stop == self.rows or (codes[:, start:stop] != 0).any():
            raise PlanError(f"a second pass: rows {start} to {stop} must be computed and end with the prompt")
        if (stages[start:stop] != stages.max()).any():
            raise PlanError(f"a second pass: rows {start} to {stop} must be computed in the last stage")
        for first, last in recomputation.candidates:
            block = codes[:, first:last]
            if last > start or ((block != 1) & (block != 2)).any():
                raise PlanError(f"a second pass: rows {first} to {last} must be taken in every layer")

    def _stages(self) -> numpy.ndarray:
        """Return the stage in which each row is computed [rows], -1 for rows that are not."""
        stages = numpy.full(self.rows, -1, dtype=numpy.int64)
        masks = numpy.full(self.rows, -1, dtype=numpy.int64)
        known: dict[tuple[Rows, ...], int] = {}
        for part in self.ranges:
            if part.source is not RowSource.COMPUTED:
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
        front = RowRange(0, reused_rows, RowSource.TAKEN, (0, self.layers), PrefixOrigin(LIVE))
        ranges = (front, *(part.after(reused_rows) for part in self.ranges if part.stop > reused_rows))
        selectors = (
            replace(selector, candidates=_spans_after(selector.candidates, reused_rows)) for selector in self.selectors
        )
        used = {use.key for part in ranges for use in (part.patch, part.residual) if use is not None}
        return replace(
            self,
            ranges=ranges,
            selectors=tuple(selector for selector in selectors if selector.candidates),
            recomputation=None if self.recomputation is None else self.recomputation.after(reused_rows),
            forming=tuple(key for key in self.forming if key in used),
            leaving=_spans_after(self.leaving, reused_rows),
            decisions=tuple(decision for decision in self.decisions if decision.start >= reused_rows),
        )

    def cost(self, layouts: Sequence[LayerLayout], itemsize: int) -> PlanCost:
        """Return what the plan will do, from its ranges and budgets; `itemsize` is bytes per number of the KV."""
        row_layers = numbers = factors = residuals = 0
        taken: set[int] = set()
        patched: set[int] = set()
        for part in self.ranges:
            own = layouts[part.layers[0] : part.layers[1]]
            if part.source is RowSource.COMPUTED:
                row_layers += part.rows * len(own)
                residuals += 0 if part.residual is None else part.rows * part.residual.width
            elif part.source is RowSource.TAKEN:
                taken.update(range(part.start, part.stop))
                numbers += part.rows * sum(part.features_read(layout) for layout in own)
                factors += sum(part.factors_read(layout) for layout in own)
                if part.code == 2:
                    patched.update(range(part.start, part.stop))
        for selector in self.selectors:
            row_layers += min(selector.budget, selector.rows) * (self.layers - selector.layer - 1)
            numbers += selector.rows * layouts[selector.layer].features
        if self.recomputation is not None:
            row_layers += self.recomputation.rows * self.layers
        return PlanCost(
            rows_computed=row_layers / self.layers,
            rows_taken=len(taken),
            rows_patched=len(patched),
            bytes_read=numbers * itemsize,
            patch_bytes=factors * itemsize,
            residual_bytes=residuals * itemsize,
        )

    @property
    def exact(self) -> bool:
        """Whether every row is what the model's own forward makes of the prompt: nothing hidden, reused or left out."""
        return not (self.selectors or self.leaving or self.recomputation) and all(
            (part.source is RowSource.COMPUTED and not part.hidden and part.stage == 0)
            or isinstance(part.origin, PrefixOrigin)
            for part in self.ranges
        )

    def patch_need(self, key: ArtifactKey) -> tuple[int, frozenset[int]]:
        """Return the largest rank and the layers that the plan asks of a patch."""
        uses = [(part.patch.rank, part.layers) for part in self.ranges if part.patch and part.patch.key == key]
        layers = frozenset(layer for _, layers in uses for layer in range(*layers))
        return max((rank for rank, _ in uses), default=0), layers

    def __str__(self) -> str:
        lines = [f"{self.strategy}: {self.rows} rows, {self.layers} layers"]
        lines += [
            f"  {part.start:>6} - {part.stop:<6} {part.source.value:<9} layers {part.layers[0]}-{part.layers[1] - 1}"
            f"  stage {part.stage}  {part}".rstrip()
            for part in self.ranges
        ]
        lines += [
            f"  selector {selector.rule} after layer {selector.layer}: {selector.budget} rows of {selector.candidates}"
            for selector in self.selectors
        ]
        if self.recomputation is not None:
            again = self.recomputation
            lines.append(
                f"  second pass: rows {again.question[0]}-{again.question[1]} and {again.budget} of {again.candidates}"
            )
        return "\n".join(lines)


def _spans_after(spans: Sequence[Rows], first: int) -> tuple[Rows, ...]:
    return tuple((max(start, first), stop) for start, stop in spans if stop > first)

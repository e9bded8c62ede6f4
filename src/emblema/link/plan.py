"""The link plan: for every row of the KV table and every layer, where it comes from. Plain data, no model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property

import numpy

from emblema.errors import PlanError
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.layout import LayerLayout
from emblema.link.lanes import Decision
from emblema.link.prompt import Rows


class RowSource(StrEnum):
    """Where a row of a layer comes from."""

    COMPUTED = "computed"
    TAKEN = "taken"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class ChunkOrigin:
    """Canonical rows of a chunk, turned to the range's positions.

    Attributes:
        chunk: its id.
        offset: the first of its rows that is taken.
        exact: whether they are what the prompt's own forward makes, as the chunk stands right after the anchor.
    """

    chunk: str
    offset: int = 0
    exact: bool = False


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

    Attributes:
        even: whether all layers have the rank, as in the paper; else they share its directions out by energy.
    """

    key: ArtifactKey
    rank: int
    even: bool = False


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `start` to `stop` in layers `layers[0]` to `layers[1]` (ends excluded).

    Attributes:
        source: computed, taken or absent.
        layers: the layers that the range is about.
        origin: where taken rows come from.
        patch: what is added to taken chunk rows.
        hidden: row ranges that computed rows may not attend; a row has one mask, whatever its layers.
    """

    start: int
    stop: int
    source: RowSource
    layers: tuple[int, int]
    origin: Origin | None = None
    patch: PatchUse | None = None
    hidden: tuple[Rows, ...] = ()

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def code(self) -> int:
        """The source as a number: 0 computed, 1 taken, 2 taken and patched, 3 absent."""
        if self.source is RowSource.COMPUTED:
            return 0
        if self.source is RowSource.ABSENT:
            return 3
        return 1 if self.patch is None else 2

    def after(self, row: int) -> "RowRange":
        """Return the part of the range from a row on."""
        cut = row - self.start
        if cut <= 0:
            return self
        origin = self.origin
        if isinstance(origin, ChunkOrigin):
            origin = replace(origin, offset=origin.offset + cut)
        return replace(self, start=row, origin=origin)

    def factors_read(self, layout: LayerLayout, tokens: int) -> int:
        """Return how many numbers of patch factors are read for the range in a layer; a map of a state has none.

        Args:
            layout: of the layer.
            tokens: of the chunk that the range is taken from.
        """
        if self.patch is None or layout.is_mapped(tokens):
            return 0
        widths = [heads * width for heads, width in (layout.keys, layout.values)]
        return sum(min(self.patch.rank, width) * (self.rows + width) for width in widths)

    @property
    def chunk_start(self) -> int:
        """The row of the prompt at which the chunk begins that the range is taken from; its own start without one."""
        return self.start - self.origin.offset if isinstance(self.origin, ChunkOrigin) else self.start

    def numbers_read(self, layout: LayerLayout, tokens: int) -> int:
        """Return how many numbers of taken rows are read for the range in a layer; of a map, by the last of its ranges.

        Args:
            layout: of the layer.
            tokens: of the chunk that the range is taken from.
        """
        if isinstance(self.origin, ChunkOrigin) and layout.is_mapped(tokens):
            return layout.map_numbers if self.stop == self.chunk_start + tokens else 0
        return self.rows * layout.features

    def __str__(self) -> str:
        words = []
        if isinstance(self.origin, ChunkOrigin):
            offset = f" from row {self.origin.offset}" if self.origin.offset else ""
            words.append(f"chunk {self.origin.chunk[:8]}{offset}")
        elif isinstance(self.origin, PrefixOrigin):
            words.append(f"prefix {self.origin.entry[:8]}")
        if self.patch is not None and self.patch.key.kind is ArtifactKind.REPAIR:
            words.append(f"repaired by rank {self.patch.rank}")
        elif self.patch is not None:
            words.append(f"patch of rank {self.patch.rank} after {len(self.patch.key.antecedents)} chunks")
        if self.hidden:
            words.append("blind to " + ", ".join(f"{start}-{stop}" for start, stop in self.hidden))
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Selector:
    """A choice that depends on values: after layer `layer`, of the computed candidates only `budget` rows go on.

    The candidates are computed up to and including `layer`; in later layers those whose keys and values moved most
    against the taken rows (CacheBlend) are computed, and the others are taken, as their ranges for those layers say.

    Attributes:
        candidates: row ranges to choose from.
        layer: the layer after which to choose.
        budget: how many candidate rows are computed in the later layers.
    """

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
        whole: those of the candidates that are computed whole or not at all.
    """

    candidates: tuple[Rows, ...]
    budget: int
    question: Rows
    whole: tuple[Rows, ...] = ()

    @property
    def question_rows(self) -> int:
        """How many rows run in both passes."""
        return self.question[1] - self.question[0]

    @property
    def rows(self) -> int:
        """How many rows run in the second pass."""
        return min(self.budget, sum(stop - start for start, stop in self.candidates)) + self.question_rows

    def joined(self, other: "Recomputation") -> "Recomputation":
        """Return the second pass over the candidates of both, of the same question."""
        candidates = tuple(sorted((*self.candidates, *other.candidates)))
        return Recomputation(candidates, self.budget + other.budget, self.question, (*self.whole, *other.whole))

    def after(self, row: int) -> "Recomputation | None":
        """Return what is left of it from a row on; None where no candidate is."""
        candidates = _spans_after(self.candidates, row)
        question = (max(row, self.question[0]), self.question[1])
        whole = tuple(rows for rows in self.whole if rows in candidates)
        return replace(self, candidates=candidates, question=question, whole=whole) if candidates else None


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan will do, as its trace will report it.

    Attributes:
        rows_computed: rows run; a row in every layer counts 1.
        rows_taken: rows taken in at least one layer.
        rows_patched: rows patched in at least one layer.
        bytes_read: bytes of KV read from chunks and kept prefixes, those that a selector compares with included.
        patch_bytes: bytes of patch factors read.
    """

    rows_computed: float
    rows_taken: int
    rows_patched: int
    bytes_read: int
    patch_bytes: int = 0

    def __str__(self) -> str:
        return (
            f"{self.rows_computed:g} rows computed, {self.rows_taken} taken, {self.rows_patched} patched; "
            f"{self.bytes_read:,} bytes of KV, {self.patch_bytes:,} of patches"
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
        forming: keys of the patches that the strategy asks for and the store does not have; they are formed and the
            plan is made again.
        leaving: rows that leave the table after the prefill (slid antecedents).
        recomputation: a second pass over rows that the question attends most; None for none.
        least_margin: the answer stands if the probabilities of its two likeliest first tokens differ by as much; below,
            the prompt has to be computed in full. None takes any answer.
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
    least_margin: float | None = None
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
            PlanError: see `sources`; also when the last row is not computed in every layer (it gives the logits), when
                a row has two masks, when a selector's candidates are not computed up to its layer and taken above it,
                or a second pass does not choose among taken rows and end with the last row.
        """
        codes = self.sources()
        if (codes[:, -1] != 0).any():
            raise PlanError("the last row must be computed in every layer: its logits are the answer")
        self._validate_masks()
        for selector in self.selectors:
            if selector.budget < 0 or not selector.candidates:
                raise PlanError("a selector needs candidates, and a budget of 0 or more")
            for start, stop in selector.candidates:
                below = codes[: selector.layer + 1, start:stop]
                above = codes[selector.layer + 1 :, start:stop]
                if (below != 0).any() or ((above != 1) & (above != 2)).any():
                    raise PlanError(
                        f"a selector: rows {start} to {stop} must be computed up to layer {selector.layer} and taken "
                        "above it"
                    )
        if self.recomputation is not None:
            self._validate_recomputation(self.recomputation, codes)

    def _validate_recomputation(self, recomputation: Recomputation, codes: numpy.ndarray) -> None:
        start, stop = recomputation.question
        if ((codes == 0).any(axis=0) != (codes == 0).all(axis=0)).any():
            raise PlanError("a second pass: a row is computed in some layers only")
        if self.selectors or recomputation.budget < 0 or not recomputation.candidates:
            raise PlanError("a second pass needs candidates, a budget of 0 or more, and a plan without selectors")
        if not 0 <= start < stop == self.rows or (codes[:, start:stop] != 0).any():
            raise PlanError(f"a second pass: rows {start} to {stop} must be computed and end with the prompt")
        for first, last in recomputation.candidates:
            block = codes[:, first:last]
            if last > start or ((block != 1) & (block != 2)).any():
                raise PlanError(f"a second pass: rows {first} to {last} must be taken in every layer")

    def _validate_masks(self) -> None:
        masks = numpy.full(self.rows, -1, dtype=numpy.int64)
        known: dict[tuple[Rows, ...], int] = {}
        for part in self.ranges:
            if part.source is RowSource.COMPUTED:
                mask = known.setdefault(part.hidden, len(known))
                held = masks[part.start : part.stop]
                if ((held != -1) & (held != mask)).any():
                    raise PlanError(f"rows {part.start} to {part.stop} have two masks in their layers")
                held[:] = mask

    def after(self, reused_rows: int) -> "LinkPlan":
        """Return the plan for the rows from `reused_rows` on; the table that is continued holds the others."""
        front = RowRange(0, reused_rows, RowSource.TAKEN, (0, self.layers), PrefixOrigin(LIVE))
        ranges = (front, *(part.after(reused_rows) for part in self.ranges if part.stop > reused_rows))
        selectors = (
            replace(selector, candidates=_spans_after(selector.candidates, reused_rows)) for selector in self.selectors
        )
        used = {part.patch.key for part in ranges if part.patch is not None}
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
        row_layers = numbers = factors = 0
        taken: set[int] = set()
        patched: set[int] = set()
        ends: dict[int, int] = {}
        for part in self.ranges:
            if isinstance(part.origin, ChunkOrigin):
                ends[part.chunk_start] = max(part.stop, ends.get(part.chunk_start, 0))
        for part in self.ranges:
            own, tokens = layouts[part.layers[0] : part.layers[1]], ends.get(part.chunk_start, 0) - part.chunk_start
            if part.source is RowSource.COMPUTED:
                row_layers += part.rows * len(own)
            elif part.source is RowSource.TAKEN:
                taken.update(range(part.start, part.stop))
                numbers += sum(part.numbers_read(layout, tokens) for layout in own)
                factors += sum(part.factors_read(layout, tokens) for layout in own)
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
        )

    @property
    def exact(self) -> bool:
        """Whether every row is as the model's own forward makes it: nothing hidden, left out or approximate."""
        return not (self.selectors or self.leaving or self.recomputation) and all(
            (part.source is RowSource.COMPUTED and not part.hidden)
            or isinstance(part.origin, PrefixOrigin)
            or (isinstance(part.origin, ChunkOrigin) and part.origin.exact and part.patch is None)
            for part in self.ranges
        )

    def patch_need(self, key: ArtifactKey) -> tuple[int, frozenset[int]]:
        """Return the largest rank and the layers that the plan asks of a patch."""
        uses = [(part.patch.rank, part.layers) for part in self.ranges if part.patch and part.patch.key == key]
        layers = frozenset(layer for _, layers in uses for layer in range(*layers))
        return max((rank for rank, _ in uses), default=0), layers

    def needs_even(self, key: ArtifactKey) -> bool:
        """Return whether a patch is asked for that has one rank in all layers."""
        return any(part.patch.even for part in self.ranges if part.patch and part.patch.key == key)

    def __str__(self) -> str:
        lines = [f"{self.strategy}: {self.rows} rows, {self.layers} layers"]
        lines += [
            f"  {part.start:>6} - {part.stop:<6} {part.source.value:<9} layers {part.layers[0]}-{part.layers[1] - 1}"
            f"  {part}".rstrip()
            for part in self.ranges
        ]
        lines += [
            f"  selector after layer {selector.layer}: {selector.budget} rows of {selector.candidates}"
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

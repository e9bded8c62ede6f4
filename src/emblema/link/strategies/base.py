"""What a strategy is, what it may know, and the row ranges that all of them share."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from emblema.errors import StrategyError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.layout import KVRows, LayerLayout
from emblema.kv.patch import Patch
from emblema.link.mapped import mapped_layers
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowRange, RowSource
from emblema.link.policy.expectations import Costs, RowCosts
from emblema.link.policy.fidelity import MeasuredLanes
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChangedFrom, ChunkPart, Prompt, RowState, Segment


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A kept table whose first `rows` rows are exactly those of a prompt.

    Attributes:
        entry: the table's name in a plan.
        rows: how many rows match.
        table: the table's rows; empty where a prompt is only planned.
    """

    entry: str
    rows: int
    table: KVRows = ()


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a strategy may look at beside the prompt.

    Attributes:
        model: the model's fingerprint.
        layouts: per layer, how rows are kept.
        find_patch: returns the stored patch of a key, or None.
        find_prefix: returns the longest exact prefix of earlier prompts, or None.
        policy: the engine's bounds on `auto`; a request may bring its own.
        measured: what was measured of its lanes.
        costs: what linking is expected to cost.
        recurs: returns whether all of a prompt's chunks were met lately in this order, from their ids.
        lacking: ids of chunks whose rows are not stored, though the prompt has them as canonical: they are computed.
        second_pass: whether plans with a second pass can be carried out.
        anchor: token ids that canonical rows were prefilled after.
    """

    model: str
    layouts: tuple[LayerLayout, ...]
    find_patch: Callable[[ArtifactKey], Patch | None]
    find_prefix: Callable[[Prompt], PrefixMatch | None]
    policy: Policy = Policy()
    measured: MeasuredLanes = MeasuredLanes()
    costs: Costs = RowCosts()
    recurs: Callable[[Sequence[str]], bool] = lambda names: False
    lacking: Collection[str] = ()
    second_pass: bool = False
    anchor: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        return len(self.layouts)

    def holds(self, use: PatchUse, tokens: int, layers: Collection[int] | None = None) -> bool:
        """Return whether a patch is stored with the rank at least and on the layers (None: all) of a chunk of tokens.

        Layers that keep a map of the chunk's state are not patched.
        """
        found = self.find_patch(use.key)
        wanted = set(range(self.layers) if layers is None else layers) - mapped_layers(self.layouts, tokens)
        return found is not None and found.rank >= use.rank and found.covers(wanted)


class Strategy(Protocol):
    """Maps a prompt to a plan. Implementations are frozen dataclasses that hold their knob."""

    @property
    def name(self) -> str:
        """The full name, knob included, as `parse` reads it."""

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        """Return the plan for a prompt."""


def strategy_name(strategy: str | Strategy) -> str:
    """Return the name of a strategy that is given as such or by its name.

    Raises:
        StrategyError: it is neither.
    """
    if isinstance(strategy, str):
        return strategy.strip()
    if not hasattr(strategy, "plan"):
        raise StrategyError(f"a strategy is a name or has a plan method; this is a {type(strategy).__name__}")
    return strategy.name


ChunkRanges = Callable[[Segment, Chunk], Iterable[RowRange]]
"""Returns the ranges of one chunk."""


def plan_chunks(
    strategy: str, prompt: Prompt, knowledge: Knowledge, chunk_ranges: ChunkRanges, *, in_context: bool = False
) -> LinkPlan:
    """Return the plan of ranges laid out by `lay_out`; patches that they use and the store lacks are to be formed."""
    ranges = lay_out(prompt, knowledge, chunk_ranges, in_context=in_context)
    forming: dict[ArtifactKey, None] = {}
    for part in ranges:
        use = part.patch
        if use is None or use.key.kind is ArtifactKind.REPAIR:
            continue
        if not knowledge.holds(use, part.rows, range(*part.layers)):
            forming[use.key] = None
    leaving = prompt.slid_rows if in_context else ()
    return LinkPlan(strategy, prompt.tokens, knowledge.layers, ranges, forming=tuple(forming), leaving=leaving)


def lay_out(
    prompt: Prompt, knowledge: Knowledge, chunk_ranges: ChunkRanges, *, in_context: bool = False
) -> tuple[RowRange, ...]:
    """Return ranges with text computed, chunks as `chunk_ranges` says, and the last row computed in any case.

    So every method begins with the same exact rows: the text before the first chunk, and a chunk right after the
    anchor, which is as it was captured. Kept prompts are for `prefix` and `auto` alone: they may hold what another
    method was measured on.

    Args:
        prompt: the prompt.
        knowledge: the model's layers, and its anchor.
        chunk_ranges: returns the ranges of a chunk.
        in_context: slid chunks are in the table while chunk rows are computed, as `chunk_ranges` says too, and have to
            leave afterwards; without it they are absent.
    """
    layers = knowledge.layers
    ranges: list[RowRange] = []
    for segment in prompt.segments:
        part = segment.part
        if not isinstance(part, ChunkPart):
            ranges += computed(prompt, layers, *segment.rows)
        elif part.slid and not in_context:
            ranges.append(RowRange(segment.start, segment.stop, RowSource.ABSENT, (0, layers)))
        elif part.changed is not None:
            ranges += _changed_ranges(prompt, segment, part.changed, layers)
        elif part.state is RowState.MISSING:
            ranges += computed(prompt, layers, *segment.rows)
        elif prompt.leads(segment, knowledge.anchor) or part.state is RowState.WRITTEN:
            own = taken(segment, part.chunk, layers, exact=part.state is RowState.CANONICAL)
            if part.repair is not None and part.state is RowState.WRITTEN:
                repair = PatchUse(part.repair_key, part.repair.rank)
                own = [replace(rows, patch=repair) for rows in own]
            ranges += own
        else:
            ranges += chunk_ranges(segment, part.chunk)
    return _with_last_computed(prompt, layers, ranges)


def _changed_ranges(prompt: Prompt, segment: Segment, changed: ChangedFrom, layers: int) -> list[RowRange]:
    """Return the ranges of a picture that differs little from a stored one, in order."""
    ranges = []
    for start, stop in changed.same_rows:
        rows = (segment.start + start, segment.start + stop)
        ranges.append(RowRange(*rows, RowSource.TAKEN, (0, layers), ChunkOrigin(changed.base.id, start)))
    for start, stop in changed.rows:
        ranges += computed(prompt, layers, segment.start + start, segment.start + stop)
    return sorted(ranges, key=lambda rows: rows.start)


def computed(prompt: Prompt, layers: int, start: int, stop: int) -> list[RowRange]:
    """Return ranges of rows computed in every layer; those of text are blind to slid chunks."""
    ranges = []
    for segment in prompt.segments_from(start):
        if segment.start >= stop:
            break
        first, last = max(start, segment.start), min(stop, segment.stop)
        if first < last:
            slid = tuple(rows for rows in prompt.slid_rows if rows[0] < first)
            hidden = () if isinstance(segment.part, ChunkPart) else slid
            ranges.append(RowRange(first, last, RowSource.COMPUTED, (0, layers), hidden=hidden))
    return ranges


def taken(segment: Segment, chunk: Chunk, layers: int, *, exact: bool = False) -> list[RowRange]:
    """Return the range of a whole chunk, taken as it was prefilled alone; see `ChunkOrigin`."""
    return [RowRange(*segment.rows, RowSource.TAKEN, (0, layers), ChunkOrigin(chunk.id, 0, exact))]


def first_computed(segment: Segment, chunk: Chunk, layers: int, counts: tuple[int, ...]) -> list[RowRange]:
    """Return a chunk whose first `counts[l]` rows are computed in layer l, the others taken.

    Counts do not grow with depth.
    """
    counts = tuple(min(count, chunk.tokens) for count in counts)
    edges = sorted({0, chunk.tokens, *counts})
    ranges = []
    for first, last in zip(edges, edges[1:], strict=False):
        deep = sum(count >= last for count in counts)
        rows = (segment.start + first, segment.start + last)
        if deep > 0:
            ranges.append(RowRange(*rows, RowSource.COMPUTED, (0, deep)))
        if deep < layers:
            ranges.append(RowRange(*rows, RowSource.TAKEN, (deep, layers), ChunkOrigin(chunk.id, first)))
    return ranges


def blind_text(prompt: Prompt, ranges: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """Return ranges whose text, but the prompt's last row, is blind to every chunk: the first of MPIC's two steps.

    Text attends text alone, so what the second step computes can run in the same forward.
    """
    media = tuple(segment.rows for segment, _ in prompt.chunk_segments)
    last, text = prompt.tokens - 1, prompt.text_rows
    made: list[RowRange] = []
    for part in ranges:
        if part.source is not RowSource.COMPUTED or not any(start <= part.start < stop for start, stop in text):
            made.append(part)
            continue
        if part.start < last:
            hidden = tuple(rows for rows in media if rows[0] < part.start)
            made.append(replace(part, stop=min(part.stop, last), hidden=hidden))
        if part.stop > last:
            made.append(replace(part, start=max(part.start, last)))
    return tuple(made)


def _with_last_computed(prompt: Prompt, layers: int, ranges: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """Return the ranges with the prompt's last row computed: where a chunk ends the prompt, it gives the logits."""
    last = prompt.tokens - 1
    kept: list[RowRange] = []
    for part in ranges:
        if part.stop <= last or (part.source is RowSource.COMPUTED and part.layers == (0, layers)):
            kept.append(part)
        elif part.start < last:
            kept.append(replace(part, stop=last))
    if not any(part.stop > last for part in kept):
        kept += computed(prompt, layers, last, last + 1)
    return tuple(kept)

"""What a strategy is, what it may know, and the row ranges that all of them share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout
from emblema.kv.patch import Patch
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowRange, RowSource
from emblema.link.policy.policy import PolicyInputs
from emblema.link.prompt import ChunkPart, Prompt, Rows, RowState, Segment
from emblema.store.keys import PatchKey


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first `rows` rows of a prompt are, exact, the first of a kept table.

    Attributes:
        entry: what a plan calls the table.
        rows: how many.
        table: the table's rows; empty for a strategy that only plans.
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
        find_artifact: the stored patch or other artifact of a key, or None.
        find_prefix: the longest exact prefix of earlier prompts, or None.
        others: how many items other than a patch's own have left their directions to pool.
        patch_keys: keys of the stored patches of a chunk, whatever stood before it.
        policy_inputs: the policy of `auto`, and what was measured of its lanes.
    """

    model: str
    layouts: tuple[LayerLayout, ...]
    find_artifact: Callable[[PatchKey], Artifact | None]
    find_prefix: Callable[[Prompt], PrefixMatch | None]
    others: Callable[[PatchKey], int] = lambda key: 0
    patch_keys: Callable[[str], Iterable[PatchKey]] = lambda chunk: ()
    policy_inputs: PolicyInputs = PolicyInputs()

    @property
    def layers(self) -> int:
        return len(self.layouts)

    def find_patch(self, key: PatchKey) -> Patch | None:
        """The stored patch of a key; None where there is none, or an artifact of another kind."""
        found = self.find_artifact(key)
        return found if isinstance(found, Patch) else None


class Strategy(Protocol):
    """Maps a prompt to a plan. Implementations are frozen dataclasses that hold their knob."""

    @property
    def name(self) -> str:
        """The full name, knob included, as `parse` reads it."""

    def plan(self, prompt: Prompt, knowledge: Knowledge) -> LinkPlan:
        """The plan for a prompt."""


ChunkRanges = Callable[[Segment, Chunk], Iterable[RowRange]]


def computed(prompt: Prompt, layers: int, start: int, stop: int) -> list[RowRange]:
    """Rows computed in every layer; those of text are blind to slid chunks."""
    ranges = []
    for segment in prompt.segments:
        first, last = max(start, segment.start), min(stop, segment.stop)
        if first < last:
            hidden = () if isinstance(segment.part, ChunkPart) else slid_before(prompt, first)
            ranges.append(RowRange(first, last, RowSource.COMPUTED, (0, layers), hidden=hidden))
    return ranges


def slid_before(prompt: Prompt, row: int) -> tuple[Rows, ...]:
    """The slid chunks' rows that stand before a row."""
    return tuple(rows for rows in prompt.slid_rows if rows[0] < row)


def taken(segment: Segment, chunk: Chunk, layers: int, *, relocated: bool = True) -> list[RowRange]:
    """A whole chunk taken as it was prefilled alone."""
    return [RowRange(segment.start, segment.stop, RowSource.TAKEN, (0, layers), ChunkOrigin(chunk.id, 0, relocated))]


def first_computed(
    segment: Segment, chunk: Chunk, layers: int, counts: tuple[int, ...], *, relocated: bool = True
) -> list[RowRange]:
    """A chunk whose first `counts[l]` rows are computed in layer l, the others taken; counts do not grow with depth."""
    counts = tuple(min(count, chunk.tokens) for count in counts)
    edges = sorted({0, chunk.tokens, *counts})
    ranges = []
    for first, last in zip(edges, edges[1:], strict=False):
        deep = sum(count >= last for count in counts)
        rows = (segment.start + first, segment.start + last)
        if deep > 0:
            ranges.append(RowRange(*rows, RowSource.COMPUTED, (0, deep)))
        if deep < layers:
            ranges.append(RowRange(*rows, RowSource.TAKEN, (deep, layers), ChunkOrigin(chunk.id, first, relocated)))
    return ranges


def share_of(layers: int, percent: float) -> int:
    """The nearest number of layers to a share of them, one at least."""
    return max(1, int(layers * percent / 100 + 0.5))


def lay_out(
    prompt: Prompt, layers: int, chunk_ranges: ChunkRanges, *, in_context: bool = False
) -> tuple[RowRange, ...]:
    """Text computed, chunks as `chunk_ranges` says, the last row computed in any case.

    So every method has the same exact rows in front: the text before the first chunk, or a chunk at row 0, which has
    absorbed nothing and is taken as it is. Kept prompts are for `prefix` and `auto` alone: they may hold what another
    method was measured on.

    Args:
        in_context: slid chunks are there while chunk rows are computed, as `chunk_ranges` says too, and have to leave
            afterwards; without it they are absent.
    """
    ranges: list[RowRange] = []
    for segment in prompt.segments:
        part = segment.part
        if not isinstance(part, ChunkPart):
            ranges += computed(prompt, layers, *segment.rows)
        elif part.slid and not in_context:
            ranges.append(RowRange(segment.start, segment.stop, RowSource.ABSENT, (0, layers)))
        elif part.state is RowState.MISSING:
            ranges += computed(prompt, layers, *segment.rows)
        elif segment.start == 0 or part.state is RowState.WRITTEN:
            own = taken(segment, part.chunk, layers)
            if part.repair is not None and part.state is RowState.WRITTEN:
                own = [replace(one, patch=PatchUse(part.repair_key, part.repair.rank)) for one in own]
            ranges += own
        else:
            ranges += chunk_ranges(segment, part.chunk)
    return with_last_computed(prompt, layers, ranges)


def with_last_computed(prompt: Prompt, layers: int, ranges: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """The ranges with the prompt's last row computed: where a chunk ends the prompt, its last row gives the logits."""
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


def blind_text_first(prompt: Prompt, ranges: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """The two steps of MPIC's baselines: text is computed before, and blind to, every chunk; then all the rest."""
    media = tuple(segment.rows for segment, _ in prompt.chunk_segments)
    last, text = prompt.tokens - 1, prompt.text_rows
    staged: list[RowRange] = []
    for part in ranges:
        if part.source is not RowSource.COMPUTED:
            staged.append(part)
        elif not any(start <= part.start < stop for start, stop in text):
            staged.append(replace(part, stage=1))
        else:
            if part.start < last:
                hidden = tuple(rows for rows in media if rows[0] < part.start)
                staged.append(replace(part, stop=min(part.stop, last), hidden=hidden))
            if part.stop > last:
                staged.append(replace(part, start=max(part.start, last), stage=1))
    return tuple(staged)

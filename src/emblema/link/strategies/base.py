"""What a strategy is, what it may know, and the row ranges that all of them share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from emblema.kv.chunk import Chunk
from emblema.kv.layout import LayerLayout
from emblema.kv.patch import Patch
from emblema.link.plan import ChunkOrigin, LinkPlan, RowRange, Source
from emblema.link.prompt import ChunkPart, Prompt, Rows, Segment
from emblema.store.keys import PatchKey


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first `rows` rows of a prompt stand, exact, in a kept table."""

    entry: str
    rows: int


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What a strategy may look at beside the prompt.

    Attributes:
        model: the model's fingerprint.
        layouts: per layer, how rows are kept.
        find_patch: the stored patch of a key, or None.
        find_prefix: the longest exact prefix of earlier prompts, or None.
    """

    model: str
    layouts: tuple[LayerLayout, ...]
    find_patch: Callable[[PatchKey], Patch | None]
    find_prefix: Callable[[Prompt], PrefixMatch | None]

    @property
    def layers(self) -> int:
        return len(self.layouts)


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
            ranges.append(RowRange(first, last, Source.COMPUTED, (0, layers), hidden=hidden))
    return ranges


def slid_before(prompt: Prompt, row: int) -> tuple[Rows, ...]:
    """The slid chunks' rows that stand before a row."""
    return tuple(rows for rows in prompt.slid_rows if rows[0] < row)


def taken(segment: Segment, chunk: Chunk, layers: int) -> list[RowRange]:
    """A whole chunk taken as it was prefilled alone."""
    return [RowRange(segment.start, segment.stop, Source.TAKEN, (0, layers), ChunkOrigin(chunk.id))]


def lay_out(prompt: Prompt, layers: int, chunk_ranges: ChunkRanges) -> tuple[RowRange, ...]:
    """Text computed, slid chunks absent, other chunks as `chunk_ranges` says, the last row computed in any case."""
    ranges: list[RowRange] = []
    for segment in prompt.segments:
        part = segment.part
        if not isinstance(part, ChunkPart):
            ranges += computed(prompt, layers, *segment.rows)
        elif part.slid:
            ranges.append(RowRange(segment.start, segment.stop, Source.ABSENT, (0, layers)))
        else:
            ranges += chunk_ranges(segment, part.chunk)
    return with_last_computed(prompt, layers, ranges)


def with_last_computed(prompt: Prompt, layers: int, ranges: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """The ranges with the prompt's last row computed: where a chunk ends the prompt, its last row gives the logits."""
    last = prompt.tokens - 1
    kept: list[RowRange] = []
    for part in ranges:
        if part.stop <= last or part.source is Source.COMPUTED:
            kept.append(part)
        elif part.start < last:
            kept.append(
                RowRange(part.start, last, part.source, part.layers, part.origin, part.patch, part.hidden, part.stage)
            )
    if not any(part.stop > last for part in kept):
        kept += computed(prompt, layers, last, last + 1)
    return tuple(kept)

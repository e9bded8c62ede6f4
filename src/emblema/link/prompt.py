"""A prompt as rows: parts of text and chunks, laid one after another, each row with its token, position and owner."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from emblema.errors import PromptError
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.keys import ArtifactKey, ArtifactKind
from emblema.kv.patch import Patch

Rows = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Token ids of a stretch of text."""

    token_ids: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


class RowState(StrEnum):
    """Which rows a chunk part has.

    `canonical`: those of the chunk prefilled alone, which a strategy takes or not. `written`: those that a window wrote
    in place; they hold what they absorbed there and are taken as they are. `missing`: none yet; they are computed.
    """

    CANONICAL = "canonical"
    WRITTEN = "written"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ChangedFrom:
    """A stored picture that a new one differs little from: its rows may serve where both are the same.

    Attributes:
        base: the stored picture's chunk, of the same tokens and positions.
        rows: the rows of the new picture that differ, as ranges in order, counted from its start.
        share: of the picture's cells, those that differ.
        encoded: nearly what the encoder makes of the new picture, made of what differs alone: the rows that differ are
            computed of this where the others are taken. None where the chunk's own is made so, exactly.
    """

    base: Chunk
    rows: tuple[Rows, ...]
    share: float
    encoded: Encoded | None = None

    @property
    def same_rows(self) -> tuple[Rows, ...]:
        """The rows that are the same, as ranges in order."""
        edges = [0, *(edge for rows in self.rows for edge in rows), self.base.tokens]
        return tuple((start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop)


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """A chunk set into the prompt.

    Attributes:
        chunk: the chunk.
        slid: it has conditioned the chunks after it and is absent for every text row.
        state: which rows it has.
        source: the part's id as an antecedent, where rows were written in a window; "" for text; None for the chunk's.
        kept_after_slide: the rows were written in a window, and something before them has left or was added since.
        distrusted: of a part whose rows are not taken, rows that a window wrote after antecedents that have changed
            since; only a comparison tries them.
        repair: a patch added to rows that a window wrote when they are read, position-free.
        changed: of a part without rows, a stored picture that it differs little from.
        left_since: of rows that a conversation's earlier request had, whether something before them has left since.
    """

    chunk: Chunk
    slid: bool = False
    state: RowState = RowState.CANONICAL
    source: str | None = None
    kept_after_slide: bool = False
    distrusted: Chunk | None = None
    repair: Patch | None = None
    changed: ChangedFrom | None = None
    left_since: bool = False

    @property
    def tokens(self) -> int:
        return self.chunk.tokens

    @property
    def repair_key(self) -> ArtifactKey:
        """The key of the repair in a plan; it is in no store."""
        return ArtifactKey(self.chunk.model, self.chunk.id, kind=ArtifactKind.REPAIR)

    @property
    def name(self) -> str:
        """The part's id as an antecedent; empty for text."""
        return self.chunk.id if self.source is None else self.source


Part = TextPart | ChunkPart


@dataclass(frozen=True, slots=True)
class Segment:
    """A part in its place: its first row and the position that its first row is counted from."""

    part: Part
    start: int
    position: int

    @property
    def stop(self) -> int:
        return self.start + self.part.tokens

    @property
    def rows(self) -> Rows:
        return (self.start, self.stop)


@dataclass(frozen=True)
class Prompt:
    """Segments in order, with the position that follows the last of them.

    Text advances every axis by one a token. A chunk keeps its own geometry from its start, and what follows it begins
    after its largest coordinate.
    """

    segments: tuple[Segment, ...]
    axes: int
    next_position: int

    @classmethod
    def of(cls, parts: Iterable[Part], axes: int) -> "Prompt":
        """Return a prompt of parts; neighbouring text parts are joined.

        Raises:
            PromptError: the prompt has no tokens, or ends with a slid chunk, which no row would see.
        """
        segments: list[Segment] = []
        row = position = 0
        for part in _merged(parts):
            segments.append(Segment(part, row, position))
            row += part.tokens
            position += part.tokens if isinstance(part, TextPart) else part.chunk.encoded.span
        if row == 0:
            raise PromptError("the prompt is empty: give it at least one part of text or a chunk")
        last = segments[-1].part
        if isinstance(last, ChunkPart) and last.slid:
            raise PromptError("the prompt ends with a slid part: put the question after it")
        return cls(tuple(segments), axes, position)

    @property
    def tokens(self) -> int:
        return self.segments[-1].stop

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        return tuple(segment.start for segment in self.segments)

    def segments_from(self, row: int) -> Iterator[Segment]:
        """Yield the segment that holds a row, and those after it."""
        return islice(self.segments, max(0, bisect_right(self._starts, row) - 1), None)

    @cached_property
    def token_ids(self) -> Tensor:
        """[tokens] int64."""
        return torch.cat(
            [
                torch.tensor(segment.part.token_ids, dtype=torch.int64)
                if isinstance(segment.part, TextPart)
                else segment.part.chunk.encoded.token_ids
                for segment in self.segments
            ]
        )

    @cached_property
    def positions(self) -> Tensor:
        """[axes, tokens] int64."""
        pieces = []
        for segment in self.segments:
            if isinstance(segment.part, TextPart):
                line = torch.arange(segment.position, segment.position + segment.part.tokens)
                pieces.append(line.expand(self.axes, -1))
            else:
                pieces.append(segment.part.chunk.encoded.positions + segment.position)
        return torch.cat(pieces, dim=1)

    @cached_property
    def groups(self) -> Tensor:
        """[tokens] int64: rows of one group (>= 0) attend each other both ways; -1 is causal."""
        groups = torch.full((self.tokens,), -1, dtype=torch.int64)
        taken = 0
        for segment, chunk in self.chunk_segments:
            own = chunk.encoded.groups
            groups[segment.start : segment.stop] = torch.where(own >= 0, own + taken, own)
            taken += int(own.max()) + 1
        return groups

    @cached_property
    def chunk_segments(self) -> tuple[tuple[Segment, Chunk], ...]:
        """The chunk parts in order, each with its place."""
        return tuple((segment, segment.part.chunk) for segment in self.segments if isinstance(segment.part, ChunkPart))

    @cached_property
    def chunk_parts(self) -> tuple[ChunkPart, ...]:
        """The chunk parts in order."""
        return tuple(segment.part for segment in self.segments if isinstance(segment.part, ChunkPart))

    @cached_property
    def text_rows(self) -> tuple[Rows, ...]:
        """Row ranges of text."""
        return tuple(segment.rows for segment in self.segments if isinstance(segment.part, TextPart))

    @cached_property
    def question_rows(self) -> Rows:
        """The rows after the last chunk; the last row alone where a chunk ends the prompt."""
        last = max((segment.stop for segment, _ in self.chunk_segments), default=0)
        return min(last, self.tokens - 1), self.tokens

    @cached_property
    def slid_rows(self) -> tuple[Rows, ...]:
        """Row ranges of slid chunks."""
        return tuple(
            segment.rows for segment in self.segments if isinstance(segment.part, ChunkPart) and segment.part.slid
        )

    def antecedents(self, segment: Segment) -> tuple[str, ...]:
        """Return the ids of the chunks before a segment, in order, slid ones included."""
        return self._names_before[bisect_left(self._starts, segment.start)]

    @cached_property
    def _names_before(self) -> tuple[tuple[str, ...], ...]:
        """The ids of the chunks before each segment, and before the end."""
        before: list[tuple[str, ...]] = [()]
        for segment in self.segments:
            part = segment.part
            named = (part.name,) if isinstance(part, ChunkPart) and part.name else ()
            before.append(before[-1] + named)
        return tuple(before)

    def leads(self, segment: Segment, anchor: Sequence[int]) -> bool:
        """Return whether the rows before a segment are those of an anchor, token ids of text, and no others."""
        if segment.start != len(anchor):
            return False
        first = self.segments[0].part
        return not anchor or (isinstance(first, TextPart) and first.token_ids == tuple(anchor))

    def map_chunks(self, change: Callable[[Segment, ChunkPart], ChunkPart]) -> "Prompt":
        """Return the prompt with other chunk parts of the same length in the places of its own."""
        segments = (
            replace(segment, part=change(segment, segment.part)) if isinstance(segment.part, ChunkPart) else segment
            for segment in self.segments
        )
        return Prompt(tuple(segments), self.axes, self.next_position)

    def until(self, row: int) -> "Prompt":
        """Return the prompt of the segments that end at or before a row."""
        kept = tuple(segment for segment in self.segments if segment.stop <= row)
        following = next((segment.position for segment in self.segments if segment.start >= row), self.next_position)
        return Prompt(kept, self.axes, following)


def _merged(parts: Iterable[Part]) -> Sequence[Part]:
    merged: list[Part] = []
    for part in parts:
        if part.tokens == 0:
            continue
        if isinstance(part, TextPart) and merged and isinstance(merged[-1], TextPart):
            merged[-1] = TextPart(merged[-1].token_ids + part.token_ids)
        else:
            merged.append(part)
    return merged

"""The interface of a memory: it takes frames that leave the recent window, and selects rows for queries."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from emblema.errors import StreamError
from emblema.kv.layout import LayerRows
from emblema.models.adapter import Adapter
from emblema.stream.frames import FrameLog
from emblema.stream.positions import FramePositions, PhaseTables
from emblema.stream.settings import StreamSettings

Purpose = Literal["frames", "question"]


@dataclass(frozen=True, slots=True)
class VisibleRange:
    """Frames that a question may see: `low` to `high`; those from `recent` on without being retrieved."""

    low: int
    high: int
    recent: int

    def mask(self, frames: Tensor) -> Tensor:
        """Return which frames are visible, bool in the shape of `frames`; the opening (-1) always is."""
        return (frames < 0) | ((frames >= self.low) & (frames < self.high))


@dataclass(frozen=True)
class Query:
    """Queries of one layer, position-free.

    Attributes:
        states: [query heads, rows, width] float32, times the attention's own scale.
        groups: [rows] int64, who asks: a frame of the block, or 0 for a question's tokens; -1 does not ask.
        count: number of groups.
        key_heads: heads of the keys.
        purpose: whether frames ask or a question.
    """

    states: Tensor
    groups: Tensor
    count: int
    key_heads: int
    purpose: Purpose

    @cached_property
    def pooled(self) -> Tensor:
        """[groups, key heads x width]: the mean over a group's rows and over the queries that share a key head."""
        heads, rows, width = self.states.shape
        shared = self.states.reshape(self.key_heads, heads // self.key_heads, rows, width).mean(1)
        asking = self.groups[None, :] == torch.arange(self.count, device=self.groups.device)[:, None]
        weights = asking.float() / asking.sum(1, keepdim=True).clamp_min(1)
        return torch.einsum("gr,hrw->ghw", weights, shared).reshape(self.count, -1)

    def score_pooled(self, keys: Tensor) -> Tensor:
        """Return [groups, means]: the product of each group's pooled query with mean keys [key heads, means, width]."""
        return self.pooled @ keys.transpose(0, 1).flatten(1).T


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows of one layer as first written.

    Attributes:
        kv: [heads, rows, width] each.
        positions: [axes, rows] int64, where they were written.
        frames: [rows] int64, the frame of each row; -1 for the turn's opening.
    """

    kv: LayerRows
    positions: Tensor
    frames: Tensor

    def select(self, rows: Tensor) -> "StreamRows":
        """Return the rows of an index tensor, copied."""
        return StreamRows(self.kv.select(rows), self.positions[:, rows], self.frames[rows])

    @classmethod
    def joined(cls, *parts: "StreamRows") -> "StreamRows":
        """Return rows of one layer, one part after another."""
        keys = torch.cat([part.kv.keys for part in parts], dim=1)
        values = torch.cat([part.kv.values for part in parts], dim=1)
        positions = torch.cat([part.positions for part in parts], dim=1)
        return cls(LayerRows(keys, values), positions, torch.cat([part.frames for part in parts]))


@dataclass(frozen=True, slots=True)
class Centroids:
    """Means of clusters, attended as rows.

    Attributes:
        keys: [heads, centroids, width] float32, position-free.
        values: likewise.
        times: [centroids] float32, mean frame number of the members.
        weight: [centroids] float32, added to the logits.
        shown: [groups, centroids] bool.
    """

    keys: Tensor
    values: Tensor
    times: Tensor
    weight: Tensor
    shown: Tensor


@dataclass(frozen=True, slots=True)
class Selection:
    """What a memory selects in one layer.

    Attributes:
        rows: rising by frame; None for none.
        shown: [groups, rows] bool; None shows every row to all groups.
        centroids: None for none.
        placed: the keys are at their final positions already, packed or not.
    """

    rows: StreamRows | None = None
    shown: Tensor | None = None
    centroids: Centroids | None = None
    placed: bool = False


@dataclass(frozen=True, slots=True)
class EvictedFrames:
    """Frames that leave the recent window, oldest first.

    Attributes:
        frames: their numbers, consecutive.
        layers: per layer, their rows as first written; zeros for those that were forgotten.
        positions: [axes, rows] int64, where they were written.
    """

    frames: range
    layers: tuple[LayerRows, ...]
    positions: Tensor


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Bytes that a memory takes on the device and on the host, by what they are for."""

    device: Mapping[str, int]
    host: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What a memory is made for.

    Attributes:
        adapter: the model.
        settings: of the stream.
        positions: of its frames.
        log: what the encoder made of the frames; grows with the stream.
        opening: token ids in front of the frames.
        ending: token ids after any question.
        phases: rotary phases, shared by the stream.
    """

    adapter: Adapter
    settings: StreamSettings
    positions: FramePositions
    log: FrameLog
    opening: tuple[int, ...]
    ending: tuple[int, ...]
    phases: PhaseTables


class Method:
    """A memory of the frames that left the recent window. This one keeps nothing; others override what they need.

    Attributes:
        name: what users call it.
        bounded: whether what it selects is bounded, however long the stream.
        shares_window: whether sinks and window are visible beside what it selects.
        encodes: whether frames run through the decoder as they come.
        saves: whether it can be saved, use the disk and forget frames: only `FrameMemory`.
    """

    name = "none"
    bounded = True
    shares_window = True
    encodes = True
    saves = False

    def __init__(self, context: StreamContext) -> None:
        self.context = context
        self.adapter, self.settings, self.positions = context.adapter, context.settings, context.positions

    def admit(self, evicted: EvictedFrames) -> None:
        """Take frames in at the end of a block. Work that waited for rows on the device is done first."""

    def prepare(self, visible: VisibleRange) -> None:
        """Begin a reading for a question or a block that may see `visible`."""

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        """Return rows for the queries of one layer: once a layer for a question, and for each part of a block."""
        return Selection()

    def settle(self) -> None:
        """End a reading. Work that waited for rows on the device is done."""

    @property
    def frame_bytes(self) -> int:
        """Bytes that a frame's rows take; 0 for a method that forgets nothing."""
        return 0

    def forget(self, frames: range) -> None:
        """Forget frames, of which some may have left the window.

        Raises:
            StreamError: the method forgets nothing.
        """
        raise StreamError(f"a stream with the method {self.name!r} forgets nothing: use mosaic")

    def bytes(self) -> MemoryBytes:
        """Return what it takes."""
        return MemoryBytes({}, {})

    def counts(self) -> Mapping[str, float]:
        """Return what it has counted since the stream began."""
        return {}

    def retrieved(self) -> Mapping[int, float]:
        """Return the frames selected for the last question, each with its share of the layers."""
        return {}

    def close(self) -> None:
        """Give back threads."""

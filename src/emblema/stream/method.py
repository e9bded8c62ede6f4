"""What a memory has to do: take frames in that leave the window, and hand rows out to queries, layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.models.adapter import Adapter
from emblema.models.frames import FrameCodes
from emblema.stream.log import FrameLog
from emblema.stream.phases import PhaseTables
from emblema.stream.positions import Places
from emblema.stream.settings import StreamSettings

Purpose = Literal["frames", "question"]


@dataclass(frozen=True, slots=True)
class Sight:
    """What a question may see: frames `low` to `high`, those from `recent` on whatever a retrieval finds."""

    low: int
    high: int
    recent: int

    def of(self, frames: Tensor) -> Tensor:
        """Which of some frames are seen; the opening (-1) is always."""
        return (frames < 0) | ((frames >= self.low) & (frames < self.high))


@dataclass(frozen=True)
class Query:
    """Queries of one layer, position-free.

    Attributes:
        states: [query heads, rows, width] float32, times the attention's own scale.
        groups: [rows] int64, who asks: a frame of the block, or 0 for a question's tokens; -1 does not ask.
        count: number of groups.
        key_heads: heads of the keys that they meet.
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

    def products(self, keys: Tensor) -> Tensor:
        """[groups, means]: the pooled query of each group with mean keys [key heads, means, width]."""
        return self.pooled @ keys.transpose(0, 1).flatten(1).T

    def densities(self, logits: Tensor, sizes: Tensor) -> Tensor:
        """[groups, means]: the most attention that any query of a group would give to one frame of each cluster.

        Every query of every head attends the mean keys as if each stood for all of its frames; what a cluster gets is
        divided among its frames. So heads do not cancel one another as they do in a pooled query, and one that looks
        for a single thing is not drowned by those that look everywhere.

        Args:
            logits: [query heads, rows, means, parts], of the queries with the mean keys.
            sizes: [means] frames of each; 0 hides it.
        """
        heads, rows, count, parts = logits.shape
        weighted = logits + sizes.float().log()[:, None]
        most = torch.softmax(weighted.flatten(2), dim=2).reshape(heads, rows, count, parts).sum(3).amax(0)
        groups = torch.where(self.groups < 0, self.count, self.groups)[:, None].expand_as(most)
        found = most.new_zeros(self.count + 1, count).scatter_reduce(0, groups, most, "amax")
        return found[: self.count] / sizes.float().clamp_min(1)


@dataclass(frozen=True, slots=True)
class StreamRows:
    """Rows of one layer as first written, with where they were written and whose they are.

    Attributes:
        kv: [heads, rows, width] each.
        positions: [axes, rows] int64.
        frames: [rows] int64, the frame of each row; -1 for the turn's opening.
    """

    kv: LayerRows
    positions: Tensor
    frames: Tensor


@dataclass(frozen=True, slots=True)
class Means:
    """Centroids to be attended as rows.

    Attributes:
        keys: [heads, centroids, width] float32, position-free.
        values: likewise.
        when: [centroids] float32, the mean frame of its members.
        weight: [centroids] float32, added to the logits.
        shown: [groups, centroids] bool.
    """

    keys: Tensor
    values: Tensor
    when: Tensor
    weight: Tensor
    shown: Tensor


@dataclass(frozen=True, slots=True)
class Found:
    """What a memory hands out in one layer.

    Attributes:
        rows: in the order of their frames; None for none.
        shown: [groups, rows] bool; None shows every row to all.
        means: centroids; None for none.
        placed: whether the rows' keys stand where they are to be seen already, packed or not.
    """

    rows: StreamRows | None = None
    shown: Tensor | None = None
    means: Means | None = None
    placed: bool = False


NOTHING = Found()


@dataclass(frozen=True, slots=True)
class Departed:
    """Frames that leave the window, oldest first.

    Attributes:
        frames: their numbers in the stream, one behind the other.
        layers: per layer, their rows as first written.
        positions: [axes, rows] int64, where they were written.
        codes: what the encoder made of them.
    """

    frames: range
    layers: tuple[LayerRows, ...]
    positions: Tensor
    codes: FrameCodes

    @property
    def tokens(self) -> int:
        """Rows of one frame."""
        return int(self.positions.shape[1]) // len(self.frames)


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes that a memory holds, by place and by what they are for."""

    device: Mapping[str, int]
    host: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a memory is made for.

    Attributes:
        adapter: the model.
        settings: of the stream.
        places: where frames stand.
        log: what the encoder made of the frames, as they come.
        opening: token ids in front of the frames.
        ending: token ids that stand behind any question: what is not known of it yet.
        phases: kept for the stream.
    """

    adapter: Adapter
    settings: StreamSettings
    places: Places
    log: FrameLog
    opening: tuple[int, ...]
    ending: tuple[int, ...]
    phases: PhaseTables


class Method(Protocol):
    """A memory of the frames that have left the window.

    Attributes:
        name: what it is called.
        shares_local: whether sinks and window are seen beside what it hands out.
        encodes: whether frames run through the decoder as they come.
        bounded: whether what it hands out has an end, however long the stream.
    """

    name: str
    bounded: bool
    shares_local: bool
    encodes: bool

    def admit(self, departed: Departed) -> None:
        """Take frames in, behind a block's end; what was put off until something was on the device is done first."""

    def prepare(self, sight: Sight) -> None:
        """A reading begins, for what `sight` lets be seen."""

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        """Rows for the queries of one layer; called once a layer for a question, and for every part of a block."""

    def settle(self) -> None:
        """The reading is over: do what was put off until something was on the device anyhow."""

    def bytes(self) -> Bytes:
        """What it holds."""

    def counts(self) -> Mapping[str, float]:
        """What it has counted since the stream began."""

    def retrieved(self) -> Mapping[int, float]:
        """Frames handed out to the last question, each with the share of layers that it was handed out in."""

    def close(self) -> None:
        """Give back threads."""

"""Where frames stand: as they came (`native`), or one behind the other among what is seen (`packed`)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.stream.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Places:
    """The positions of one stream.

    A frame's corner stands `span` behind the one before it, on every axis. Packed, a block is written behind as many
    frames as can be seen at once at the most; while the stream is shorter than that, it stands where it would natively.

    Attributes:
        opening: positions that the turn's opening takes.
        offsets: [axes, tokens] int64, positions of a frame's rows counted from its corner.
        span: positions that a frame takes.
        block, sinks: frames, as in the settings.
        zone: frames in front of a block, packed; None natively.
    """

    opening: int
    offsets: Tensor
    span: int
    block: int
    sinks: int
    zone: int | None

    @classmethod
    def of(cls, settings: StreamSettings, opening: int, offsets: Tensor) -> "Places":
        """The places that settings ask for."""
        zone = None
        if settings.positions == "packed":
            zone = settings.sinks + (settings.budget or 0) + settings.window
        return cls(opening, offsets, int(offsets.max()) + 1, settings.block, settings.sinks, zone)

    @property
    def tokens(self) -> int:
        """Rows of a frame."""
        return int(self.offsets.shape[1])

    def corner(self, frame: int) -> int:
        """The position that frame number `frame` is, or would be, written from; so is a question in its place."""
        begun = frame - frame % self.block
        front = begun if self.zone is None else min(begun, self.zone)
        return self.opening + (front + frame - begun) * self.span

    def corners(self, frames: Tensor) -> Tensor:
        """`corner` of frames [n]."""
        begun = frames - frames % self.block
        front = begun if self.zone is None else begun.clamp_max(self.zone)
        return self.opening + (front + frames - begun) * self.span

    def written(self, frames: Tensor) -> Tensor:
        """Positions [axes, n x tokens] of all rows of frames [n], as first written."""
        corners = self.corners(frames)
        return (corners[None, :, None] + self.offsets[:, None, :]).reshape(self.offsets.shape[0], -1)

    def packed(self, positions: Tensor, frames: Tensor, end: int, sinks: bool = True) -> Tensor:
        """Positions of rows [axes, rows] set one frame behind the other so that the last one ends at `end`.

        Frames for which there is no room share places with their neighbours.

        Args:
            positions: as first written.
            frames: [rows] int64, rising, the frame of each row.
            end: the position behind the last of them.
            sinks: whether the first places are kept for the sinks.
        """
        own, rank = torch.unique_consecutive(frames, return_inverse=True)
        count, room = own.shape[0], (end - self.opening) // self.span - sinks * self.sinks
        behind = count - rank
        if count > room:
            behind = (behind * room + count - 1) // count
        moved: Tensor = positions - self.corners(frames)[None] + (end - behind * self.span)[None]
        return moved

    def means(self, when: Tensor, seen: Tensor, end: int) -> Tensor:
        """Positions [axes, centroids] of centroids of mean frame `when`: amid that frame, or where it would stand.

        Args:
            when: [centroids] float.
            seen: [frames] int64, rising: what stands in front of `end`, packed; not used natively.
            end: the position behind the last of them.
        """
        if self.zone is None:
            corner = self.opening + (when * self.span).round().long()
        else:
            behind = seen.shape[0] - torch.searchsorted(seen.to(when.dtype), when)
            corner = (end - behind * self.span).clamp_min(self.opening)
        middle = self.offsets.float().mean(1).floor().long()
        return corner[None] + middle[:, None]

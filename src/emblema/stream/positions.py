"""Where frames are: as they came (`native`) or next to one another (`packed`), and rotary phases at these positions."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import RotaryBand
from emblema.kv.rotation import PhaseBook, Phases, RotaryTable
from emblema.stream.settings import StreamSettings

FIRST_POSITIONS = 256
"""Positions whose phases are computed at first; more are added by doubling."""


@dataclass(frozen=True, slots=True)
class FramePositions:
    """The positions of one stream.

    A frame's corner is `span` positions after the one before it, on every axis. When packed, a block is written after
    as many frames as can be visible at once; while the stream is shorter than that, positions are the native ones.

    Attributes:
        opening: positions of the turn's opening.
        offsets: [axes, tokens] int64, positions of a frame's rows counted from its corner.
        span: positions of a frame.
        block, sinks: frames, as in the settings.
        front: frames in front of a block when packed; None when native.
    """

    opening: int
    offsets: Tensor
    span: int
    block: int
    sinks: int
    front: int | None

    @classmethod
    def of(cls, settings: StreamSettings, opening: int, offsets: Tensor) -> "FramePositions":
        """Return the positions that settings ask for."""
        front = None
        if settings.positions == "packed":
            front = settings.sinks + (settings.budget or 0) + settings.window
        return cls(opening, offsets, int(offsets.max()) + 1, settings.block, settings.sinks, front)

    @property
    def tokens(self) -> int:
        """Rows of a frame."""
        return int(self.offsets.shape[1])

    def corner(self, frame: int) -> int:
        """Return the first position of a frame, or of a question in its place."""
        return int(self.corners(torch.tensor(frame)))

    def corners(self, frames: Tensor) -> Tensor:
        """Return the first position of each frame, int64 in the shape of `frames`."""
        begun = frames - frames % self.block
        front = begun if self.front is None else begun.clamp_max(self.front)
        return self.opening + (front + frames - begun) * self.span

    def written(self, frames: Tensor) -> Tensor:
        """Return positions [axes, n x tokens] of all rows of frames [n], as first written."""
        corners = self.corners(frames)
        return (corners[None, :, None] + self.offsets[:, None, :]).reshape(self.offsets.shape[0], -1)

    def pack(self, positions: Tensor, frames: Tensor, end: int, sinks: bool = True) -> Tensor:
        """Return positions [axes, rows] with one frame right after another, so that the last one ends at `end`.

        Frames for which there is no room share positions with their neighbours.

        Args:
            positions: as first written.
            frames: [rows] int64, rising, the frame of each row.
            end: the position after the last of them.
            sinks: keep the first positions for the sinks.
        """
        own, rank = torch.unique_consecutive(frames, return_inverse=True)
        count, room = own.shape[0], (end - self.opening) // self.span - sinks * self.sinks
        back = count - rank
        if count > room:
            back = (back * room + count - 1) // count
        moved: Tensor = positions - self.corners(frames)[None] + (end - back * self.span)[None]
        return moved

    def centroid_positions(self, times: Tensor, visible: Tensor, end: int) -> Tensor:
        """Return positions [axes, centroids]: the middle of the frame at each centroid's mean time.

        Args:
            times: [centroids] float, mean frame numbers.
            visible: [frames] int64, rising: frames right before `end` when packed; unused when native.
            end: the position after the last of them.
        """
        if self.front is None:
            corner = self.opening + (times * self.span).round().long()
        else:
            back = visible.shape[0] - torch.searchsorted(visible.to(times.dtype), times)
            corner = (end - back * self.span).clamp_min(self.opening)
        middle = self.offsets.float().mean(1).floor().long()
        return corner[None] + middle[:, None]


class PhaseTables:
    """Rotary phases of every band at positions 0, 1, …, as far as any was asked for; equal to those of a `PhaseBook`.

    Args:
        tables: the decoder's own rotary tables, by name.
    """

    def __init__(self, tables: Mapping[str, RotaryTable]) -> None:
        self.tables = tables
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Phases] = {}

    @property
    def bytes(self) -> int:
        """Bytes on the device."""
        return sum(known.cos.nbytes + known.sin.nbytes for known in self._known.values())

    def book(self, positions: Tensor) -> PhaseBook:
        """Return phases at positions [axes, tokens] int64, 0 or more."""
        return _TableBook(self, positions)

    def until(self, band: RotaryBand, top: int, device: torch.device) -> Phases:
        """Return phases of a band at positions 0 to `top` and perhaps more, [positions, frequencies]."""
        key = (band.table, band.axes, band.frequencies)
        known = self._known.get(key)
        have = 0 if known is None else known.cos.shape[0]
        if known is None or top >= have:
            every = torch.arange(max(top + 1, 2 * have, FIRST_POSITIONS), device=device)
            columns = torch.tensor(band.frequencies, device=device)
            cos, sin = (part.index_select(1, columns) for part in self.tables[band.table](every))
            known = self._known[key] = Phases(cos, sin)
        return known


class _TableBook(PhaseBook):
    """A book whose phases come from tables."""

    def __init__(self, phases: PhaseTables, positions: Tensor) -> None:
        super().__init__(phases.tables, positions)
        self._phases = phases
        self._top = -1

    def __call__(self, band: RotaryBand) -> Phases:
        key = (band.table, band.axes, band.frequencies)
        if key not in self._known:
            positions = self.positions
            if self._top < 0 and positions.numel():
                self._top = int(positions.max())
            tables = self._phases.until(band, self._top, positions.device)
            if len(set(band.axes)) == 1:
                rows = positions[band.axes[0]]
                own = Phases(tables.cos.index_select(0, rows), tables.sin.index_select(0, rows))
            else:
                columns = positions.T[:, list(band.axes)]
                own = Phases(tables.cos.gather(0, columns), tables.sin.gather(0, columns))
            self._known[key] = own
        return self._known[key]

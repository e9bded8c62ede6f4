"""The project's own positions, counted from a chunk's start, for text, pictures and video."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """A block of media tokens placed as a grid of frames, rows and columns (M-RoPE, Qwen2-VL section 2.1).

    Attributes:
        start: index of its first token in the chunk.
        frames: grid steps in time.
        height: rows of tokens in a frame.
        width: tokens in a row.
        interval: positions on the time axis from one grid step to the next; fractions are rounded down per step.
        slack: a step that lies so closely below a whole position belongs to it (3 steps of 1/3 are 1).
    """

    start: int
    frames: int
    height: int
    width: int
    interval: float = 1.0
    slack: float = 1e-6

    @property
    def tokens(self) -> int:
        return self.frames * self.height * self.width


def plain_positions(tokens: int, axes: int = 1, start: int = 0) -> Tensor:
    """Return positions [axes, tokens] of a run of text: each token one further, the same on every axis."""
    return torch.arange(start, start + tokens, dtype=torch.int64).expand(axes, tokens).clone()


def grid_positions(grid: Grid, start: int = 0) -> Tensor:
    """Return positions [3, tokens] of a grid whose corner is at `start`."""
    frame = (torch.arange(grid.frames, dtype=torch.float64) * grid.interval + grid.slack).floor().to(torch.int64)
    axes = torch.meshgrid(frame, torch.arange(grid.height), torch.arange(grid.width), indexing="ij")
    return torch.stack([axis.reshape(-1) for axis in axes]) + start


def chunk_positions(tokens: int, axes: int, grids: Sequence[Grid] = ()) -> tuple[Tensor, int]:
    """Return positions [axes, tokens] int64 of a chunk from 0, and its span: where the next part continues.

    Text after a grid starts one past the largest position before it on any axis, so nothing ever overlaps (the stock
    function of some families restarts inside a long video's time axis). With one axis, grids are runs like text.
    """
    if axes == 1 or not grids:
        return plain_positions(tokens, axes), tokens
    pieces: list[Tensor] = []
    done, start = 0, 0
    for grid in sorted(grids, key=lambda grid: grid.start):
        text = grid.start - done
        pieces.append(plain_positions(text, axes, start))
        start += text
        pieces.append(grid_positions(grid, start))
        start = int(pieces[-1].max()) + 1
        done = grid.start + grid.tokens
    pieces.append(plain_positions(tokens - done, axes, start))
    return torch.cat(pieces, dim=1), start + tokens - done

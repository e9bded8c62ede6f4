"""Lines: what is kept of a frame for one purpose, as bytes of one length; the newest in memory, older ones on disk."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.buffers import host_buffer

FrameNumbers = NDArray[numpy.int64]
LEAST_LINES = 64
"""Lines of the first buffer; each later one is as long as all before it."""


@dataclass(frozen=True, slots=True)
class LineField:
    """A part of a line: a tensor of one shape and dtype for each frame."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def join_fields(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors [frames, ...] as lines [frames, bytes] uint8."""
    return torch.cat([part.contiguous().reshape(len(part), -1).view(torch.uint8) for part in parts], dim=1)


def split_fields(lines: Tensor, fields: Sequence[LineField]) -> list[Tensor]:
    """Return the tensors [frames, ...] that `join_fields` made lines of."""
    parts = lines.split([field.bytes for field in fields], dim=1)
    return [
        part.contiguous().view(field.dtype).reshape(len(lines), *field.shape)
        for part, field in zip(parts, fields, strict=True)
    ]


class LineSource(Protocol):
    """Where lines are that are not in memory."""

    def read(self, frames: FrameNumbers, out: NDArray[numpy.uint8]) -> None:
        """Write lines of frames, which rise, into `out` [n, bytes]."""


class FrameLines:
    """Lines [width] of consecutive frames.

    They lie in buffers, so that none is copied when there are more. Without `step` each buffer is as long as all before
    it, and there are few; with it each has `step` lines, and the oldest can be given up.

    Attributes:
        first: the first frame; what is before it was never here.
        count: frames.
        held: the first frame whose line is in memory; lines before it are read from `below`.
    """

    def __init__(self, width: int, dtype: torch.dtype, step: int | None = None) -> None:
        self.width, self.dtype = width, dtype
        self.first = self.count = self.held = 0
        self.below: LineSource | None = None
        self._step = step
        self._buffers: list[Tensor] = []
        # The first frame of each buffer, and the end of the last one.
        self._starts = [0]

    @property
    def frames(self) -> range:
        return range(self.first, self.first + self.count)

    @property
    def line_bytes(self) -> int:
        return self.width * self.dtype.itemsize

    @property
    def bytes(self) -> int:
        """Bytes in memory; lines of the last buffer that are not written take none."""
        return (self.frames.stop - self.held) * self.line_bytes

    @property
    def oldest(self) -> int:
        """The end of the oldest buffer's frames."""
        return min(self._starts[1], self.frames.stop) if self._buffers else self.held

    def begin(self, first: int, count: int = 0) -> None:
        """Go on after frames whose lines are not in memory; there is no line yet."""
        self.first, self.count = first, count
        self.held, self._starts = first + count, [first + count]

    def append(self, frames: range, lines: Tensor) -> None:
        """Write lines [n, width] of the next frames."""
        if self.count == 0:
            self.begin(frames.start)
        done = 0
        while done < len(lines):
            stop = self.frames.stop
            if stop == self._starts[-1]:
                more = max(LEAST_LINES, self.count) if self._step is None else self._step
                self._buffers.append(host_buffer((more, self.width), self.dtype))
                self._starts.append(stop + more)
            begin = stop - self._starts[-2]
            part = lines[done : done + self._starts[-1] - stop]
            self._buffers[-1][begin : begin + len(part)].copy_(part)
            done, self.count = done + len(part), self.count + len(part)

    def drop(self, until: int) -> None:
        """Give up the memory of frames before `until`, the end of a buffer or of all lines."""
        while self._buffers and min(self._starts[1], self.frames.stop) <= until:
            self._buffers.pop(0)
            del self._starts[0]
        if not self._buffers:
            self._starts = [self.frames.stop]
        self.held = max(self.held, self._starts[0])

    def clear(self, frames: FrameNumbers) -> None:
        """Overwrite lines in memory with zeros."""
        for buffer, own, begin, _ in self._divided(frames[frames >= self.held]):
            buffer[torch.from_numpy(own - begin)] = 0

    def copy(self, frames: FrameNumbers) -> Tensor:
        """Return a copy of the lines of frames, which rise, [n, width]."""
        away = int(numpy.searchsorted(frames, self.held))
        found = torch.empty(len(frames), self.width, dtype=self.dtype)
        if away:
            if self.below is None:
                raise ValueError(f"frame {frames[0]} is nowhere")
            self.below.read(frames[:away], found[:away].view(torch.uint8).numpy())
        for buffer, own, begin, place in self._divided(frames[away:]):
            lines = torch.from_numpy(own - begin)
            torch.index_select(buffer, 0, lines, out=found[away + place : away + place + len(own)])
        return found

    def _divided(self, frames: FrameNumbers) -> list[tuple[Tensor, FrameNumbers, int, int]]:
        """Return by buffer: the buffer, the frames in it, its first frame, and the place of the first of them."""
        bounds = numpy.searchsorted(frames, self._starts)
        return [
            (self._buffers[index], frames[bounds[index] : bounds[index + 1]], self._starts[index], int(bounds[index]))
            for index in (bounds[1:] > bounds[:-1]).nonzero()[0]
        ]

"""Lines of one column that were read from the log, and stay in memory as long as there is room for them."""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.buffers import host_buffer
from emblema.stream.lines import FrameNumbers

BUFFER_BYTES = 2**22
"""Of a buffer; what is not written of it takes no memory."""
PAGE_BYTES, PAGE_LINES = 2**17, 16
"""What is read at once around a line that is wanted, at the most; a larger line is read alone."""


class RecalledLines:
    """Lines [bytes] uint8 of frames that lie in the log. Each was verified when it was read.

    Args:
        width: bytes of a line.

    Attributes:
        page: lines that are read at once, those of frames from a multiple of it on.
        count: lines that are here.
    """

    def __init__(self, width: int) -> None:
        self.width, self.count = width, 0
        self.page = max(1, min(PAGE_LINES, PAGE_BYTES // width))
        self._step = self.page * max(1, BUFFER_BYTES // (self.page * width))
        # By the number of the first frame's multiple of `_step`: a buffer, and when it was used last.
        self._buffers: dict[int, NDArray[numpy.uint8]] = {}
        self._used: dict[int, int] = {}
        self._uses = 0
        self._here: NDArray[numpy.bool] = numpy.zeros(0, dtype=bool)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.count * self.width

    def missing(self, frames: FrameNumbers) -> FrameNumbers:
        """Return those of frames, which rise, that are not here."""
        more = int(frames[-1]) + 1 - len(self._here)
        if more > 0:
            self._here = numpy.concatenate((self._here, numpy.zeros(more + len(self._here) // 2, dtype=bool)))
        return frames[~self._here[frames]]

    def around(self, frames: FrameNumbers) -> FrameNumbers:
        """Return the frames of the pages of frames, which rise."""
        pages = numpy.unique(frames // self.page)
        return (pages[:, None] * self.page + numpy.arange(self.page)).ravel()

    def keep(self, frames: FrameNumbers, lines: Tensor) -> None:
        """Keep lines [n, bytes] of frames that rise and are `missing`."""
        for number, begin, end in self._divided(frames):
            if number not in self._buffers:
                # Torch writes a tensor that was made in inference mode in no other mode.
                self._buffers[number] = host_buffer((self._step, self.width), torch.uint8).numpy()
            self._use(number)
            self._buffers[number][frames[begin:end] - number * self._step] = lines[begin:end].numpy()
        self._here[frames] = True
        self.count += len(frames)

    def copy(self, frames: FrameNumbers) -> Tensor:
        """Return a copy of the lines of frames, which rise and are here, [n, bytes]."""
        found = torch.empty(len(frames), self.width, dtype=torch.uint8)
        rows, places = found.numpy(), frames % self._step
        for number, begin, end in self._divided(frames):
            self._use(number)
            # Frames lie in many buffers: NumPy takes half as long for each. What clips is not copied twice.
            self._buffers[number].take(places[begin:end], 0, rows[begin:end], "clip")
        return found

    def drop_unused(self) -> None:
        """Give up the buffer that was not used for longest; there is one."""
        number = min(self._buffers, key=self._used.__getitem__)
        del self._buffers[number]
        own = self._here[number * self._step : (number + 1) * self._step]
        self.count -= int(own.sum())
        own[:] = False

    def _use(self, number: int) -> None:
        self._uses += 1
        self._used[number] = self._uses

    def clear(self, frames: range) -> None:
        """Overwrite lines of frames with zeros; they are not here any more."""
        own = self._here[frames.start : frames.stop].nonzero()[0] + frames.start
        for number, begin, end in self._divided(own):
            self._buffers[number][own[begin:end] - number * self._step] = 0
        self._here[own] = False
        self.count -= len(own)
        for number in numpy.unique(own // self._step).tolist():
            if not self._here[number * self._step : (number + 1) * self._step].any():
                del self._buffers[number]

    def _divided(self, frames: FrameNumbers) -> list[tuple[int, int, int]]:
        """Return by buffer: its number, and the places of its first frame and after its last one."""
        numbers = frames // self._step
        edges = [*(numpy.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(frames)] if len(frames) else []
        begins = [0, *edges][: len(edges)]
        return list(zip(numbers[begins].tolist() if begins else (), begins, edges, strict=True))

"""Lines that a stream was loaded with: read once, kept, and given up."""

import numpy
import pytest
import torch
from torch import Tensor

from emblema.stream.lines import FrameLines, FrameNumbers, KeptLines


class Source:
    """Lines of one float32 each, the frame's number; notes what is read."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def read(self, frames: FrameNumbers) -> Tensor:
        self.asked.append(frames.tolist())
        return torch.from_numpy(frames.astype(numpy.float32))[:, None].view(torch.uint8)


def frames(*numbers: int) -> FrameNumbers:
    return numpy.array(numbers, dtype=numpy.int64)


def loaded(source: Source) -> FrameLines:
    """Frames 0 to 9 on disk, and two that came since."""
    lines = FrameLines(1, torch.float32)
    lines.begin(0, 10)
    lines.below = KeptLines(source)
    lines.append(range(10, 12), torch.tensor([[10.0], [11.0]]))
    return lines


def test_a_line_is_read_once_and_stays() -> None:
    source = Source()
    lines = loaded(source)
    assert lines.bytes == 2 * 4
    for asked in (frames(1, 4, 9), frames(4, 5, 10), frames(1, 4, 5, 9, 11)):
        assert lines.copy(asked)[:, 0].tolist() == asked.tolist()
    assert source.asked == [[1, 4, 9], [5]]
    assert lines.bytes == (2 + 4) * 4


def test_what_is_cleared_or_dropped_is_given_up() -> None:
    source = Source()
    lines = loaded(source)
    lines.copy(frames(1, 2, 4, 9))
    lines.clear(frames(2))
    lines.drop(4)
    assert lines.bytes == (2 + 2) * 4
    lines.copy(frames(1, 4, 9))
    assert source.asked == [[1, 2, 4, 9], [1]]


def test_a_copy_does_not_share_what_is_kept() -> None:
    lines = loaded(Source())
    lines.copy(frames(3)).zero_()
    assert lines.copy(frames(3)).item() == 3.0


def test_a_line_that_cannot_be_read_is_asked_for_again() -> None:
    class Broken(Source):
        def read(self, frames: FrameNumbers) -> Tensor:
            super().read(frames)
            if len(self.asked) == 1:
                raise OSError("gone")
            return torch.zeros(len(frames), 4, dtype=torch.uint8)

    source = Broken()
    lines = loaded(source)
    with pytest.raises(OSError, match="gone"):
        lines.copy(frames(3))
    assert lines.bytes == 2 * 4 and lines.copy(frames(3)).item() == 0.0

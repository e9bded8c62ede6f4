"""Lines that were read from a log come back as they were put in, whatever came between."""

import random

import numpy
import pytest
import torch

from emblema.stream import recalled
from emblema.stream.recalled import RecalledLines


@pytest.mark.parametrize(("width", "page"), [(1, 16), (2**14, 8), (2**17 + 1, 1)])
def test_a_page_is_no_larger_than_it_may_be(width: int, page: int) -> None:
    lines = RecalledLines(width)
    assert lines.page == page
    around = lines.around(numpy.array([3, 5, 40]))
    assert around.tolist() == [frame for frame in range(48) if frame // page in {own // page for own in (3, 5, 40)}]


def test_lines_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalled, "BUFFER_BYTES", 16 * 6 * 3)
    chance, every, lines = random.Random(4), torch.randint(256, (600, 6), dtype=torch.uint8), RecalledLines(6)
    here: set[int] = set()
    used: dict[int, None] = {}
    for _ in range(300):
        frames = numpy.array(sorted(chance.sample(range(600), 20)))
        missing = lines.missing(frames)
        assert missing.tolist() == [frame for frame in frames.tolist() if frame not in here]
        lines.keep(missing, every[torch.from_numpy(missing)])
        here |= set(missing.tolist())
        assert torch.equal(lines.copy(frames), every[torch.from_numpy(frames)])
        for buffer in dict.fromkeys((frames // 48).tolist()):
            used.pop(buffer, None)
            used[buffer] = None
        if chance.random() < 0.2:
            start = chance.randrange(600)
            lines.clear(range(start, start + 9))
            here -= set(range(start, start + 9))
        if chance.random() < 0.2:
            unused = next(buffer for buffer in used if any(frame // 48 == buffer for frame in here))
            lines.drop_unused()
            here = {frame for frame in here if frame // 48 != unused}
        assert lines.count == len(here) and lines.bytes == 6 * len(here)


def test_what_is_cleared_is_overwritten() -> None:
    lines, frames = RecalledLines(4), numpy.array([5, 6])
    lines.keep(lines.missing(frames), torch.full((2, 4), 7, dtype=torch.uint8))
    buffer = next(iter(lines._buffers.values()))
    lines.clear(range(6, 9))
    assert buffer[5].tolist() == [7] * 4 and not buffer[6].any()
    assert lines.missing(frames).tolist() == [6]

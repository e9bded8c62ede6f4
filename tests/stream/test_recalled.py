"""Lines that were read from a log come back as they were put in, whatever came between."""

import random

import numpy
import pytest
import torch

from emblema.stream import recalled
from emblema.stream.lines import FrameNumbers
from emblema.stream.recalled import RecalledLines

WIDTH, EACH = 6, 50


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalled, "BUFFER_BYTES", WIDTH * EACH)


def every_line() -> numpy.ndarray:
    return torch.randint(256, (600, WIDTH), generator=torch.Generator().manual_seed(3), dtype=torch.uint8).numpy()


def copied(lines: RecalledLines, frames: FrameNumbers) -> tuple[numpy.ndarray, FrameNumbers]:
    out = numpy.zeros((len(frames), WIDTH), dtype=numpy.uint8)
    return out, lines.copy(frames, out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 4))])
def test_lines_come_back(seed: int) -> None:
    chance, every, lines = random.Random(seed), every_line(), RecalledLines(WIDTH)
    here: set[int] = set()
    for _ in range(300):
        frames = numpy.array(sorted(chance.sample(range(600), 20)))
        found, missing = copied(lines, frames)
        assert frames[missing].tolist() == [frame for frame in frames.tolist() if frame not in here]
        known = numpy.setdiff1d(numpy.arange(20), missing)
        assert numpy.array_equal(found[known], every[frames[known]])
        before, more = lines.bytes, chance.choice((0, 3, 40))
        kept = lines.keep(frames[missing], every[frames[missing]], more)
        assert lines.bytes <= before + WIDTH * more
        again = copied(lines, frames)[1]
        # Nothing that was asked for leaves for what was asked for with it.
        assert again.tolist() == missing[kept:].tolist()
        now = {frame for frame in range(600) if not len(copied(lines, numpy.array([frame]))[1])}
        assert now <= here | set(frames[missing][:kept].tolist())
        here = now
        if chance.random() < 0.2:
            start = chance.randrange(600)
            lines.clear(range(start, start + 9))
            here -= set(range(start, start + 9))
        if lines.bytes and chance.random() < 0.1:
            before = lines.bytes
            lines.drop_unused()
            assert before - EACH * WIDTH <= lines.bytes < before
            here = {frame for frame in here if not len(copied(lines, numpy.array([frame]))[1])}
        assert lines.count == len(here) <= lines.bytes // WIDTH


@pytest.mark.parametrize("way", ["keep", "drop"])
def test_what_was_not_used_for_longest_goes_first(way: str) -> None:
    every, lines = every_line(), RecalledLines(WIDTH)
    for start in range(0, 2 * EACH, 10):
        frames = numpy.arange(start, start + 10)
        copied(lines, frames)
        lines.keep(frames, every[frames], 10)
    copied(lines, numpy.arange(0, 40))
    if way == "keep":
        new = numpy.arange(300, 330)
        copied(lines, new)
        assert lines.keep(new, every[new], 0) == 30
    else:
        lines.drop_unused()
    gone = copied(lines, numpy.arange(100))[1]
    assert gone.tolist() == list(range(40, 70 if way == "keep" else 40 + EACH))
    assert numpy.array_equal(copied(lines, numpy.arange(0, 40))[0], every[:40])


def test_what_is_cleared_is_overwritten_also_where_it_was_given_up() -> None:
    lines = RecalledLines(WIDTH)
    for frames in (numpy.array([5, 6]), numpy.array([7, 8])):
        copied(lines, frames)
        lines.keep(frames, numpy.full((2, WIDTH), frames[0], dtype=numpy.uint8), 2)
    copied(lines, numpy.array([9]))
    lines.keep(numpy.array([9]), numpy.full((1, WIDTH), 9, dtype=numpy.uint8), 0)
    (buffer,) = lines._buffers
    assert sorted(buffer[:4, 0].tolist()) == [5, 7, 7, 9]
    lines.clear(range(5, 8))
    assert sorted(buffer[:4, 0].tolist()) == [0, 0, 7, 9]
    assert copied(lines, numpy.arange(5, 10))[1].tolist() == [0, 1, 2]
    lines.clear(range(0, 600))
    assert lines.count == 0 and not buffer.any()

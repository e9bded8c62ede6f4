"""The log of frames' lines: what is read is what was written, or an error."""

import os
import random
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.stream.lines import FrameLines, LineField, join_fields, split_fields
from emblema.stream.log import AMPLIFICATION, HEADER, LogCounts, StreamLog
from emblema.stream.log_files import delete_leftovers, new_log, open_log
from emblema.stream.state import StreamState

WIDTHS = ((5,), (16, 3))


def drawn(count: int, width: int, seed: int) -> Tensor:
    return torch.randint(256, (count, width), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def columns(series: int, frames: range) -> list[Tensor]:
    """Return lines that follow from series, column and frame."""
    every = [drawn(400, width, 10 * series + column) for column, width in enumerate(WIDTHS[series])]
    return [lines[frames.start : frames.stop] for lines in every]


def filled(folder: Path, name: str = "walk", last: int = 300) -> StreamLog:
    log = new_log(folder, name, WIDTHS, LogCounts())
    for frames in (range(0, 40), range(40, 41), range(41, 200), range(210, last)):
        for series in (0, 1):
            log.append(series, frames, columns(series, frames))
    return log


def reopened(log: StreamLog, state: StreamState | None = None) -> StreamLog:
    state = log.state() if state is None else state
    log.close()
    return open_log(log.path.parent, state, WIDTHS, LogCounts())


@pytest.mark.parametrize("seed", range(5))
def test_lines_come_back_in_few_reads(seed: int, tmp_path: Path) -> None:
    chance, log = random.Random(seed), reopened(filled(tmp_path))
    there = [*range(0, 200), *range(210, 300)]
    for count in (1, 7, 60, len(there)):
        frames = numpy.array(sorted(chance.sample(there, count)), dtype=numpy.int64)
        for series, widths in enumerate(WIDTHS):
            for column in range(len(widths)):
                every = columns(series, range(0, 300))[column]
                assert torch.equal(log.read(series, column, frames), every[torch.from_numpy(frames)])
    assert log.counts.disk_read_bytes <= AMPLIFICATION * log.counts.disk_wanted_bytes
    before = log.counts.disk_reads
    log.read(1, 0, numpy.arange(41, 200))
    log.read(1, 0, numpy.array([50, 52, 53, 90]))
    assert log.counts.disk_reads - before == 3
    for missing in (205, 300):
        with pytest.raises(StoreError, match="nothing is kept of frame"):
            log.read(0, 0, numpy.array([3, missing]))
    log.close()


def test_every_flipped_byte_is_told(tmp_path: Path) -> None:
    log = filled(tmp_path, last=215)
    state, whole = log.state(), log.path.read_bytes()
    assert len(whole) == log.size == HEADER + log.live_bytes
    frames = numpy.array([*range(200), *range(210, 215)])
    for offset in random.Random(1).sample(range(len(whole)), 60):
        log.path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with pytest.raises(StoreError, match="damaged|another stream's"):
            log = reopened(log, state)
            for series, widths in enumerate(WIDTHS):
                for column in range(len(widths)):
                    log.read(series, column, frames)


def test_a_line_of_another_log_or_place_is_told(tmp_path: Path) -> None:
    left, right = filled(tmp_path, "left"), filled(tmp_path, "right")
    state = left.state()
    first, second = left.path.read_bytes(), right.path.read_bytes()
    left.path.write_bytes(second)
    with pytest.raises(StoreError, match="another stream's"):
        reopened(left, state)
    left.path.write_bytes(first[:HEADER] + second[HEADER:])
    mixed = open_log(tmp_path, state, WIDTHS, LogCounts())
    with pytest.raises(StoreError, match="frame 7 is damaged"):
        mixed.read(0, 0, numpy.array([7]))
    line = 8 + WIDTHS[0][0]
    swapped = first[:HEADER] + first[HEADER + line : HEADER + 2 * line] + first[HEADER : HEADER + line]
    left.path.write_bytes(swapped + first[HEADER + 2 * line :])
    with pytest.raises(StoreError, match="frame 0 is damaged"):
        mixed.read(0, 0, numpy.array([0]))


def test_what_a_saved_stream_says_of_its_log_is_checked(tmp_path: Path) -> None:
    log = filled(tmp_path)
    good = log.state()
    log.close()
    extents = good.tensors["extents1"]
    bad = [
        extents.flip(0),
        extents + torch.tensor([0, 0, 2**40]),
        extents * torch.tensor([1, -1, 1]),
        extents + torch.tensor([0, 2**62, 0]),
        extents.float(),
        extents[:, :2],
        extents - torch.tensor([0, 0, 2**20]),
    ]
    for wrong in bad:
        with pytest.raises((ValueError, TypeError)):
            reopened(_again(log), StreamState({**good.tensors, "extents1": wrong}, good.facts))
    for name in ("../walk", "walk.log", f"a/b~{'0' * 32}.log", f"..~{'0' * 31}.log"):
        with pytest.raises(ValueError, match="no log"):
            open_log(tmp_path, StreamState(good.tensors, {**good.facts, "file": name}), WIDTHS, LogCounts())
    with pytest.raises(StreamError, match="is gone"):
        gone = {**good.facts, "file": f"walk~{'0' * 32}.log"}
        open_log(tmp_path, StreamState(good.tensors, gone), WIDTHS, LogCounts())
    link = tmp_path / f"walk~{'1' * 32}.log"
    link.symlink_to(log.path)
    with pytest.raises(StoreError, match="cannot be read"):
        open_log(tmp_path, StreamState(good.tensors, {**good.facts, "file": link.name}), WIDTHS, LogCounts())


def _again(log: StreamLog) -> StreamLog:
    """Return a log of the same file that may be closed."""
    return StreamLog(log.path, os.open(log.path, os.O_RDWR), log.identity, WIDTHS, LogCounts())


def test_a_tail_that_no_save_knows_is_given_back_and_a_short_file_refused(tmp_path: Path) -> None:
    log = filled(tmp_path)
    state, size = log.state(), log.size
    log.append(0, range(300, 330), columns(0, range(300, 330)))
    log.path.write_bytes(log.path.read_bytes()[:-7])
    log = reopened(log, state)
    assert log.path.stat().st_size == size == log.size and log.end(0) == 300
    os.truncate(log.path, size - 1)
    with pytest.raises(StoreError, match="ends too early"):
        reopened(log, state)


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, real, room = filled(tmp_path), os.pwrite, [100]

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        done = real(descriptor, data[: room[0]], offset)
        room[0] -= done
        return done

    frames, size = range(300, 330), log.size
    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(StoreError, match="No space left"):
        log.append(1, frames, columns(1, frames))
    assert (log.size, log.end(1)) == (size, 300)
    monkeypatch.undo()
    log.append(1, frames, columns(1, frames))
    log = reopened(log)
    assert torch.equal(log.read(1, 0, numpy.arange(290, 330)), columns(1, range(290, 330))[0])
    log.close()


def test_one_owner_appends_and_leftovers_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    log = filled(folder)
    assert folder.stat().st_mode & 0o777 == 0o700 and log.path.stat().st_mode & 0o777 == 0o600
    reader = open_log(folder, log.state(), WIDTHS, LogCounts())
    assert log.writable and not reader.writable
    reader.close()
    unsaved, other = new_log(folder, "", WIDTHS, LogCounts()), new_log(folder, "walk.on", WIDTHS, LogCounts())
    for left in (unsaved, other, log):
        delete_leftovers(folder, "walk", tmp_path)
        assert left.path.exists(), "its owner holds it"
        left.close()
    delete_leftovers(folder, "walk", log.path)
    assert (log.path.exists(), unsaved.path.exists(), other.path.exists()) == (True, False, True)


@pytest.mark.parametrize("step", [None, 1, 7])
def test_lines_that_left_memory_are_read_from_below(step: int | None) -> None:
    class Below:
        def read(self, frames: numpy.ndarray, out: numpy.ndarray) -> None:
            out[:] = every[torch.from_numpy(frames)].numpy()

    chance, every, lines = random.Random(2), drawn(500, 6, 1), FrameLines(3, torch.bfloat16, step)
    lines.below, stop = Below(), 3
    while stop < 400:
        count = chance.randint(1, 40)
        lines.append(range(stop, stop + count), every[stop : stop + count].view(torch.bfloat16))
        stop += count
        if step is not None and lines.bytes > 300:
            lines.drop(lines.oldest)
        assert lines.frames == range(3, stop) and lines.bytes == (stop - lines.held) * 6
        frames = numpy.array(sorted(chance.sample(range(3, stop), min(stop - 3, 30))))
        assert torch.equal(lines.copy(frames).view(torch.uint8), every[torch.from_numpy(frames)])


def test_fields_come_back_from_lines() -> None:
    parts = [torch.randn(4, 2, 3), torch.randint(9, (4, 5), dtype=torch.int8), torch.randn(4, 2).bfloat16()]
    fields = [LineField(tuple(part.shape[1:]), part.dtype) for part in parts]
    again = split_fields(join_fields(parts), fields)
    assert all(torch.equal(left, right) for left, right in zip(parts, again, strict=True))

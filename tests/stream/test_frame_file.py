"""A file of frames: every line comes back as it was or is told, one owner writes, and what is erased is gone."""

import os
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.stream.frame_file import HEADER, DiskCounts, FrameFile, delete_leftovers
from emblema.stream.lines import FrameLines, LineField, join_fields, split_fields

WIDTHS = (24, 7, 40)
IDENTITY = bytes(range(16))


def drawn(count: int, width: int, seed: int) -> Tensor:
    return torch.randint(256, (count, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


LINES = [drawn(400, width, column) for column, width in enumerate(WIDTHS)]


def create(folder: Path, name: str = "walk", first: int = 0) -> FrameFile:
    return FrameFile.create(folder, name, IDENTITY, first, WIDTHS, DiskCounts())


def filled(folder: Path, name: str = "walk", stop: int = 300) -> FrameFile:
    """Return a file with first columns of all frames, the others of all but the last twenty."""
    file = create(folder, name)
    file.write(0, range(stop), [LINES[0][:stop]])
    file.write(1, range(stop - 20), [own[: stop - 20] for own in LINES[1:]])
    file.resize(stop)
    return file


def opened(folder: Path, facts: dict[str, Any], held: bool = True) -> FrameFile:
    return FrameFile.open(folder, facts, WIDTHS, DiskCounts(), held)


def read(file: FrameFile, column: int, frames: list[int]) -> Tensor:
    out = numpy.empty((len(frames), WIDTHS[column]), dtype=numpy.uint8)
    file.read_into(column, numpy.array(frames, dtype=numpy.int64), out)
    return torch.from_numpy(out)


@pytest.mark.parametrize("seed", range(3))
def test_lines_come_back(seed: int, tmp_path: Path) -> None:
    chance, file = random.Random(seed), filled(tmp_path)
    facts = file.facts(300)
    file.close()
    file = opened(tmp_path, facts)
    for count in (1, 7, 200):
        for column in range(3):
            frames = sorted(chance.sample(range(280), count))
            assert torch.equal(read(file, column, frames), LINES[column][frames])
    assert file.counts.disk_reads == 3 * 208
    with pytest.raises(StoreError, match="frame 285 is damaged"):
        read(file, 1, [285])
    with pytest.raises(StoreError, match="ends too early"):
        read(file, 0, [300])
    file.close()


def test_every_flipped_byte_is_told(tmp_path: Path) -> None:
    file = filled(tmp_path, stop=30)
    facts, whole = file.facts(30), file.path.read_bytes()
    file.close()
    assert len(whole) == HEADER + 30 * (sum(WIDTHS) + 24)
    for offset in random.Random(1).sample(range(HEADER + 10 * (sum(WIDTHS) + 24)), 60):
        file.path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 4]) + whole[offset + 1 :])
        with pytest.raises(StoreError, match="damaged|another stream's"):
            again = opened(tmp_path, facts)
            try:
                for column in range(3):
                    read(again, column, list(range(10)))
            finally:
                again.close()


def test_a_line_of_another_stream_or_place_is_told(tmp_path: Path) -> None:
    file = filled(tmp_path)
    whole, record = file.path.read_bytes(), file.record_bytes
    other = FrameFile.create(tmp_path, "other", bytes(16), 0, WIDTHS, DiskCounts())
    other.write(0, range(300), [LINES[0][:300]])
    file.path.write_bytes(other.path.read_bytes() + bytes(record))
    with pytest.raises(StoreError, match="another stream's"):
        opened(tmp_path, file.facts(300))
    file.path.write_bytes(whole[:HEADER] + other.path.read_bytes()[HEADER:])
    with pytest.raises(StoreError, match="frame 7 is damaged"):
        read(file, 0, [7])
    first, second = whole[HEADER : HEADER + record], whole[HEADER + record : HEADER + 2 * record]
    file.path.write_bytes(whole[:HEADER] + second + first + whole[HEADER + 2 * record :])
    with pytest.raises(StoreError, match="frame 0 is damaged"):
        read(file, 0, [0])


def test_what_a_saved_stream_says_of_its_file_is_checked(tmp_path: Path) -> None:
    file = filled(tmp_path)
    good = file.facts(300)
    file.close()
    for name in ("../walk", "walk.frames", f"a/b~{'0' * 32}.frames", f"..~{'0' * 31}.frames"):
        with pytest.raises(ValueError, match="no file of frames"):
            opened(tmp_path, {**good, "file": name})
    with pytest.raises(StreamError, match="is gone"):
        opened(tmp_path, {**good, "file": f"walk~{'0' * 32}.frames"})
    link = tmp_path / f"walk~{'1' * 32}.frames"
    link.symlink_to(file.path)
    with pytest.raises(StoreError, match="cannot be read"):
        opened(tmp_path, {**good, "file": link.name})
    with pytest.raises(StoreError, match="another stream's"):
        opened(tmp_path, {**good, "first": 3})


def test_a_tail_that_no_save_knows_is_given_back_and_a_short_file_refused(tmp_path: Path) -> None:
    file = filled(tmp_path)
    facts, size = file.facts(300), file.path.stat().st_size
    file.write(0, range(300, 330), [LINES[0][300:330]])
    file.close()
    file = opened(tmp_path, facts)
    assert file.path.stat().st_size == size == file.end(300)
    file.close()
    os.truncate(file.path, size - 1)
    with pytest.raises(StoreError, match="ends too early"):
        opened(tmp_path, facts)


def test_what_is_erased_is_gone_and_takes_no_room(tmp_path: Path) -> None:
    file = create(tmp_path)
    wide = drawn(64, 40, 5)
    for start in range(0, 4096, 64):
        file.write(2, range(start, start + 64), [wide])
    size, blocks = file.path.stat().st_size, file.path.stat().st_blocks
    file.erase(range(10, 4000))
    whole = file.path.read_bytes()
    assert len(whole) == size and not any(whole[file.end(10) : file.end(4000)])
    assert file.path.stat().st_blocks < blocks / 4
    assert torch.equal(read(file, 2, [9, 4000]), wide[[9, 4000 % 64]])
    file.erase(range(4090, 9999))
    assert file.path.stat().st_size == size
    file.close()


def test_a_copy_has_what_was_wanted(tmp_path: Path) -> None:
    file, copied = filled(tmp_path), create(tmp_path, "run", first=50)
    file.copy(copied, [range(50, 60), range(100, 300)])
    copied.resize(300)
    assert torch.equal(read(copied, 2, [50, 59, 100, 279]), LINES[2][[50, 59, 100, 279]])
    with pytest.raises(StoreError, match="frame 70 is damaged"):
        read(copied, 0, [70])
    facts = copied.facts(300)
    copied.close()
    copied = opened(tmp_path, facts)
    assert torch.equal(read(copied, 0, [50, 299]), LINES[0][[50, 299]])


def test_a_full_disk_leaves_the_other_frames_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, real, room = filled(tmp_path), os.pwrite, [100]

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        done = real(descriptor, data[: room[0]], offset)
        room[0] -= done
        return done

    monkeypatch.setattr(os, "pwrite", write)
    with pytest.raises(StoreError, match="No space left"):
        file.write(1, range(280, 310), [own[280:310] for own in LINES[1:]])
    monkeypatch.undo()
    file.write(1, range(280, 310), [own[280:310] for own in LINES[1:]])
    assert torch.equal(read(file, 1, [279, 309]), LINES[1][[279, 309]])
    file.close()


def test_one_owner_writes_and_leftovers_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "owner"
    file = filled(folder)
    assert folder.stat().st_mode & 0o777 == 0o700 and file.path.stat().st_mode & 0o777 == 0o600
    reader = opened(folder, file.facts(300))
    assert file.writable and not reader.writable
    reader.close()
    unsaved, other = create(folder, ""), create(folder, "walk.on")
    for left in (unsaved, other, file):
        delete_leftovers(folder, "walk", tmp_path)
        assert left.path.exists(), "its owner holds it"
    other.close()
    file.close()
    unsaved.rename("gone")
    unsaved.rename("")
    os.close(unsaved._descriptor)
    delete_leftovers(folder, "walk", file.path)
    assert (file.path.exists(), unsaved.path.exists(), other.path.exists()) == (True, False, True)


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

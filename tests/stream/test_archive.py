"""A stream whose older frames lie on disk answers as one that has them in memory; a save is an append."""

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from emblema.errors import StoreError, StreamError
from emblema.stream.frame_file import HEADER
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.stream.plain import shown
from tests.stream.test_state import NAME, QUESTION, SMALL, kept

FRAMES = 45
PACKED: dict[str, Any] = {"positions": "packed"}


def logs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.frames"))


def answers(stream: Stream) -> list[torch.Tensor]:
    asked = [{}, {"at": 20.0}, {"between": (3.0, 17.0)}, {"at": 30.0, "window": 9}]
    return [stream.prefill(QUESTION, **when) for when in asked]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(PACKED, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_a_budget_changes_no_bit(options: dict[str, Any], tmp_path: Path) -> None:
    frames, rounds = shown(NAME, FRAMES), range(0, FRAMES, 9)
    with kept(tmp_path) as made, made.stream(**{**SMALL, **options}) as whole:
        expected = []
        for start in rounds:
            whole.push(frames[start : start + 9])
            expected.append(answers(whole))
        every = whole.bytes.host
        line = (every["rows"] + every["codes"]) // FRAMES
        for budget in (0, 3, 11):
            with made.stream(**{**SMALL, **options}, host_bytes=1 + budget * line) as stream:
                for start, before in zip(rounds, expected, strict=True):
                    stream.push(frames[start : start + 9])
                    assert same(answers(stream), before)
                own = stream.bytes.host
                assert own["rows"] + own["codes"] < (budget + SMALL["window"] + 2 * SMALL["block"]) * line
                assert stream.counts["disk_read_bytes"] > 0
                assert len(logs(tmp_path)) == 1 and logs(tmp_path)[0].stat().st_mode & 0o777 == 0o600
            # Nothing is left of a stream that was not saved.
            assert not logs(tmp_path)


@pytest.mark.slow
def test_a_second_save_writes_what_came_between(tmp_path: Path) -> None:
    frames = shown(NAME, FRAMES)
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        stream.push(frames[:21])
        path = stream.save("walk")
        (log,) = logs(tmp_path)
        whole, first, identity = log.read_bytes(), stream.counts["disk_written_bytes"], log.stat().st_ino
        stream.save("walk")
        assert log.read_bytes() == whole
        stream.push(frames[21:24])
        stream.save("walk")
        assert logs(tmp_path) == [log] and log.stat().st_ino == identity
        left = stream.recent.done - SMALL["window"] - SMALL["sinks"]
        before = 20 - SMALL["window"] - SMALL["sinks"]
        one = (stream.log.lines.line_bytes + 8) * 3
        one += (left - before) * (sum(own.line_bytes + 8 for own in (s.lines for s in stream.memory.stores)))
        one += (left - before) * (stream.memory.index_bytes + 8)
        assert stream.counts["disk_written_bytes"] - first == one
        assert {entry.stat().st_mode & 0o777 for entry in (path, log)} == {0o600}
        assert path.parent.stat().st_mode & 0o777 == 0o700
        now = answers(stream)
        # Another name has a log of its own.
        stream.save("run")
        assert len(logs(tmp_path)) == 2
        stream.push(frames[24:])
        stream.save("run")
        later = answers(stream)
    with kept(tmp_path) as made:
        for name, expected in (("walk", now), ("run", later)):
            with made.load_stream(name, template=False) as stream:
                assert stream.bytes.host["rows"] == stream.bytes.host["codes"] == 0
                assert same(answers(stream), expected)
        with made.load_stream("walk", template=False) as stream:
            stream.push(frames[24:])
            assert same(answers(stream), later)
            chunks = [chunk.id for chunk in stream.chunks()]
        with made.load_stream("run", template=False) as stream:
            assert [chunk.id for chunk in stream.chunks()] == chunks


def test_a_damaged_frame_beside_one_that_is_wanted_is_no_error(tmp_path: Path) -> None:
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        stream.push(shown(NAME, FRAMES))
        stream.save("walk")
        past = stream.prefill(QUESTION, between=(20.0, 24.0))
        line = next(iter(stream.memory.stores)).copy(numpy.array([17]), torch.device("cpu"))
    (log,) = logs(tmp_path)
    whole = log.read_bytes()
    place = whole.index(line.view(torch.uint8).numpy().tobytes())
    with kept(tmp_path) as made, made.load_stream("walk", template=False) as stream:
        log.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert stream.prefill(QUESTION, between=(20.0, 24.0)).equal(past)
        with pytest.raises(StoreError, match="frame 17 is damaged"):
            stream.prefill(QUESTION, between=(15.0, 19.0))


def test_two_streams_of_one_name(tmp_path: Path) -> None:
    """The second one, loaded while the first is open, goes on in a log of its own; whoever saves last is loaded."""
    frames = shown(NAME, FRAMES)
    with kept(tmp_path) as made, made.stream(**SMALL, host_bytes=1) as first:
        first.push(frames[:24])
        first.save("walk")
        with made.load_stream("walk", template=False) as second:
            second.push(frames[24:40])
            first.push(frames[24:32])
            short, long = answers(first), answers(second)
            second.save("walk")
            first.save("walk")
            assert same(answers(first), short) and same(answers(second), long)
            with made.load_stream("walk", template=False) as loaded:
                assert same(answers(loaded), short)
            second.save("walk")
        with made.load_stream("walk", template=False) as loaded:
            assert same(answers(loaded), long)
            loaded.save("walk")
            assert same(answers(first), short)
    with kept(tmp_path) as made, made.load_stream("walk", template=False) as loaded:
        assert same(answers(loaded), long)
        assert len(logs(tmp_path)) == 1


def test_a_damaged_frame_is_an_error_where_it_is_wanted(tmp_path: Path) -> None:
    frames = shown(NAME, FRAMES)
    with kept(tmp_path) as made, made.stream(**{**SMALL, **PACKED, "budget": 20}) as stream:
        stream.push(frames[:40])
        stream.save("walk")
        good = answers(stream)
        past = stream.prefill(QUESTION, between=(35.0, 39.0))
        stream.push(frames[40:44])
        later = answers(stream)
    (log,) = logs(tmp_path)
    whole = log.read_bytes()
    with kept(tmp_path) as made, made.load_stream("walk", template=False) as stream:
        log.write_bytes(whole[:HEADER] + bytes(len(whole) - HEADER))
        for _ in range(2):
            with pytest.raises(StoreError, match="damaged"):
                stream.prefill(QUESTION)
            with pytest.raises(StoreError, match="damaged"):
                stream.push(frames[40:44] if not stream.waiting else [])
                stream.advance()
            assert (stream.frames, stream.waiting) == (40, 4)
        log.write_bytes(whole)
        stream.advance()
        assert stream.frames == 44
        assert same(answers(stream), later)
    with kept(tmp_path) as made, made.load_stream("walk", template=False) as stream:
        assert same(answers(stream), good)
        assert stream.prefill(QUESTION, between=(35.0, 39.0)).equal(past)
    log.unlink()
    with kept(tmp_path) as made, pytest.raises(StreamError, match="is gone"):
        made.load_stream("walk", template=False)


def test_a_disk_that_is_full_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = shown(NAME, FRAMES)

    def full(*given: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with kept(tmp_path) as made, made.stream(**SMALL, host_bytes=1) as stream, made.stream(**SMALL) as plain:
        stream.push(frames[:12])
        stream.save("walk")
        plain.push(frames[:12])
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(StoreError, match="No space left"):
                stream.push(frames[12:20])
            with pytest.raises(StoreError, match="No space left"):
                stream.save("walk")
        stream.advance()
        plain.push(frames[12:20])
        assert stream.frames == 20 and same(answers(stream), answers(plain))
        with made.load_stream("walk", template=False) as loaded:
            assert loaded.frames == 12
        shutil.rmtree(tmp_path / "streams")
        # What the open file holds can be read still.
        assert same(answers(stream), answers(plain))
        stream.save("walk")
        with made.load_stream("walk", template=False) as loaded:
            assert same(answers(loaded), answers(plain))


def test_what_a_budget_needs(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="open it with store="):
        engine(NAME).stream(**SMALL, host_bytes=1000)
    with kept(tmp_path) as made:
        with pytest.raises(StreamError, match="need the method mosaic"):
            made.stream("mosaic-paper", **SMALL, host_bytes=1000)
        with pytest.raises(StreamError, match="host_bytes is 0"):
            made.stream(**SMALL, host_bytes=0)

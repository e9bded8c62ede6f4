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
from emblema.stream import recalled
from emblema.stream.log import AMPLIFICATION, HEADER
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.stream.plain import shown
from tests.stream.test_state import NAME, QUESTION, SMALL, kept

FRAMES = 45
PACKED: dict[str, Any] = {"positions": "packed"}
EAGER: dict[str, Any] = {"splitting": "eager", "largest": 2, "retrieve_while_encoding": False}
CLUSTERS: dict[str, Any] = {"retrieval": "clusters", "representatives": True, "largest": 2, "clusters": 6}


def logs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.log"))


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
        *(pytest.param(one, marks=pytest.mark.nightly) for one in (PACKED, {"prefetch": True})),
        *(pytest.param(one, marks=pytest.mark.nightly) for one in (CLUSTERS, EAGER)),
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
                counts = stream.counts
                assert 0 < counts["disk_wanted_bytes"] <= counts["disk_read_bytes"]
                assert counts["disk_read_bytes"] <= AMPLIFICATION * counts["disk_wanted_bytes"]
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
        assert log.read_bytes()[: len(whole)] == whole
        left = stream.recent.done - SMALL["window"] - SMALL["sinks"]
        before = 20 - SMALL["window"] - SMALL["sinks"]
        one = (stream.log.lines.line_bytes + 8) * 3
        one += (left - before) * (sum(own.line_bytes + 8 for own in (s.lines for s in stream.memory.stores)))
        one += (left - before) * (stream.memory.index_bytes + 8)
        assert stream.counts["disk_written_bytes"] - first == one == log.stat().st_size - len(whole)
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


def test_posting_lists_are_written_once_and_then_again_when_many_frames_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = shown(NAME, FRAMES)
    monkeypatch.setattr("emblema.stream.archive.REPEATED", 8)
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        files: list[Path] = []
        for stop in (13, 17, 21, 25, 29, 41):
            stream.push(frames[stream.frames : stop])
            stream.save("walk")
            (own,) = tmp_path.rglob("*.postings")
            files.append(own)
            assert own.stat().st_mode & 0o777 == 0o600
            with made.load_stream("walk", template=False) as again:
                lists = zip(stream.memory.postings, again.memory.postings, strict=True)
                for left, right in (pair for pair in lists):
                    one, other = left.state(), right.state()
                    assert one.facts["lists"] == other.facts["lists"]
                    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
                assert same(answers(again), answers(stream))
        assert files[0] == files[1] == files[2] != files[3] == files[4] != files[5]
        files[5].unlink()
        with pytest.raises(StreamError, match="is gone, and frames cannot be found without it"):
            made.load_stream("walk", template=False)
        stream.save("walk")
        (own,) = tmp_path.rglob("*.postings")
        own.write_bytes(own.read_bytes()[:-1] + b"!")
        with pytest.raises(StoreError, match="damaged"):
            made.load_stream("walk", template=False)


@pytest.mark.slow
@pytest.mark.parametrize("prefetch", [False, True])
def test_rows_of_a_loaded_stream_are_read_once(prefetch: bool, tmp_path: Path) -> None:
    frames = shown(NAME, FRAMES)
    with kept(tmp_path) as made, made.stream(**SMALL, prefetch=prefetch) as stream:
        stream.push(frames)
        stream.save("walk")
        expected, held = answers(stream), stream.bytes.host["rows"]
    (log,) = logs(tmp_path)
    whole = log.read_bytes()
    with kept(tmp_path) as made, made.load_stream("walk", template=False) as stream:
        assert stream.bytes.host["recalled"] == 0
        assert same(answers(stream), expected)
        reads = stream.counts["disk_reads"]
        assert 0 < stream.bytes.host["recalled"] <= held
        # What was read is verified, and wanted from the file no more.
        log.write_bytes(bytes(len(whole)))
        assert same(answers(stream), expected)
        assert stream.counts["disk_reads"] == reads
        log.write_bytes(whole)


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 9, *(pytest.param(room, marks=pytest.mark.nightly) for room in (1, 30, 1000))])
def test_rows_that_were_read_keep_to_the_budget(room: int, tmp_path: Path) -> None:
    frames = shown(NAME, FRAMES + 24)
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        stream.push(frames[:FRAMES])
        codes = stream.log.lines.line_bytes
        line = codes + sum(store.lines.line_bytes for store in stream.memory.stores)
    budget = 1 + room * line
    with kept(tmp_path) as made, made.stream(**SMALL) as whole:
        with made.stream(**SMALL, host_bytes=budget) as stream:
            stream.push(frames[:FRAMES])
            stream.save("walk")
        whole.push(frames[:FRAMES])
        with made.load_stream("walk", template=False) as stream:
            most = 0
            for start in range(FRAMES, len(frames) + 1, 3):
                assert same(answers(stream), answers(whole))
                host = stream.bytes.host
                window = (SMALL["window"] + 2 * SMALL["block"]) * codes
                assert host["recalled"] + host["rows"] + host["codes"] <= budget + window
                most = max(most, host["recalled"])
                for own in (stream, whole):
                    own.push(frames[start : start + 3])
            assert (most > 0) == (room > 0)


@pytest.mark.slow
def test_rows_that_questions_ask_for_stay_though_new_frames_fill_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to half of the budget; else every question would read its frames from disk again."""
    monkeypatch.setattr(recalled, "BUFFER_BYTES", 1)
    frames = shown(NAME, 3 * FRAMES + 12)
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        stream.push(frames[:FRAMES])
        budget = 2 * sum(stream.bytes.host[name] for name in ("codes", "rows"))
    # Frames that are encoded read nothing of their own.
    quiet = {**SMALL, "retrieve_while_encoding": False}
    with kept(tmp_path) as made, made.stream(**quiet, host_bytes=budget) as stream:
        stream.push(frames[: 3 * FRAMES])
        stream.prefill(QUESTION, at=8.0)
        stream.push(frames[3 * FRAMES : 3 * FRAMES + 3])
        stream.prefill(QUESTION, at=8.0)
        reads = stream.counts["disk_reads"]
        assert reads > 0
        for start in range(3 * FRAMES + 3, len(frames), 3):
            stream.push(frames[start : start + 3])
            assert 0 < stream.bytes.host["recalled"] <= budget // 2
            assert sum(stream.bytes.host[name] for name in ("codes", "rows", "recalled")) <= budget
            stream.prefill(QUESTION, at=8.0)
            assert stream.counts["disk_reads"] == reads


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
        with pytest.raises(StreamError, match="needs the method mosaic"):
            made.stream("rekv", **SMALL, host_bytes=1000)
        with pytest.raises(StreamError, match="host_bytes is 0"):
            made.stream(**SMALL, host_bytes=0)

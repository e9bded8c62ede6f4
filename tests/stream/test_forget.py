"""Frames that were forgotten are in no answer and in no file; what is too old is forgotten by itself."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from emblema.errors import StoreError, StreamError
from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.mosaic import retrieval
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.postings import Postings
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.stream.plain import shown
from tests.stream.test_archive import PACKED, logs
from tests.stream.test_state import NAME, ONE_THREAD, QUESTION, SMALL, kept

FRAMES = 45


@pytest.mark.parametrize("seed", range(5))
def test_runs_are_those_of_a_set(seed: int) -> None:
    chance, gone, held = random.Random(seed), ForgottenFrames(), set()
    for _ in range(30):
        start = chance.randrange(90)
        frames = range(start, start + chance.randrange(12))
        gone.add(frames)
        held |= set(frames)
        again = ForgottenFrames()
        again.restore(gone.state())
        for own in (gone, again):
            low, high = sorted(chance.sample(range(100), 2))
            live = [frame for frame in range(low, high) if frame not in held]
            assert own.live(low, high).tolist() == live
            assert own.count_live(low, high) == len(live)
            assert [frame for run in own.live_runs(range(low, high)) for frame in run] == live
            assert [frame in own for frame in range(100)] == [frame in held for frame in range(100)]
            assert own.first() == next(frame for frame in range(200) if frame not in held)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_posting_lists_have_the_other_frames(seed: int) -> None:
    chance, drawn = random.Random(seed), torch.Generator().manual_seed(seed)
    keys = FrameKeys(2, 2, 8)
    postings = Postings(keys)
    live, stop = set(), 5
    while stop < 900:
        frames = range(stop, stop + chance.randint(1, 9))
        keys.add(frames, torch.randn(len(frames), 2, 2, 8, generator=drawn))
        postings.add(list(frames))
        live, stop = live | set(frames), frames.stop
        if chance.random() < 0.1:
            start = chance.randrange(5, stop)
            gone = range(start, min(stop, start + chance.randint(1, 200)))
            postings.forget(gone)
            keys.clear(torch.tensor(list(gone)))
            live -= set(gone)
    entries, _ = postings.find(torch.randn(2, 3, 8, generator=drawn), 5, stop, 10**6)
    expected = sorted(2 * (frame - 5) + part for frame in live for part in (0, 1))
    again = Postings(keys)
    again.restore(postings.state())
    for own in (postings, again):
        for head, lists in zip(entries, own._lists, strict=True):
            assert sorted(head[head >= 0].tolist()) == sorted(entry for each in lists for entry in each) == expected
    postings.forget(range(5, stop))
    postings.add([5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        *(pytest.param(one, marks=pytest.mark.nightly) for one in (PACKED, {"host_bytes": 1})),
    ],
    ids=str,
)
def test_what_was_forgotten_leaves_no_trace(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two streams that differ in the frames that are forgotten answer the same; of frames before, nothing changes."""
    frames, others = shown(NAME, FRAMES), shown(NAME, 2 * FRAMES)[FRAMES:]
    # All keys are compared: which lists they are in depends on what came between.
    monkeypatch.setattr(retrieval, "EXACT", 99)
    for start, stop in ((28, 43), (40, 43), (24, 41), (0, 43)):
        after = []
        with kept(tmp_path) as made:
            for span in (frames, others):
                with made.stream(**{**SMALL, **options}) as stream:
                    stream.push(frames[:start] + span[start:stop])
                    assert stream.forget((start, stop - 1)) == stop - start
                    answers = []
                    if start:
                        reply = stream.ask(list(QUESTION), max_new_tokens=1)
                        assert all(moment.frame < start for moment in reply.moments)
                        assert reply.usage.frames == start
                        answers.append(stream.prefill(QUESTION))
                        answers.append(stream.prefill(QUESTION, at=start + 2.0))
                    with pytest.raises(StreamError, match="nothing had been seen"):
                        stream.prefill(QUESTION, between=(start, stop - 1))
                    assert stream.forget((start, stop - 1)) == 0
                    stream.push(frames[stop:])
                    answers.append(stream.prefill(QUESTION, window=2))
                    after.append(answers)
        assert [left.equal(right) for left, right in zip(*after, strict=True)] == [True] * len(after[0])


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, PACKED], ids=str)
def test_a_stream_without_its_beginning_is_one_asked_about_the_rest(options: dict[str, Any], tmp_path: Path) -> None:
    frames = shown(NAME, FRAMES)
    with (
        kept(tmp_path) as made,
        made.stream(**{**SMALL, **options}) as whole,
        made.stream(**{**SMALL, **options}) as cut,
    ):
        for stream in (whole, cut):
            stream.push(frames[:40])
        assert cut.forget((0, 17)) == 18
        assert cut.prefill(QUESTION).equal(whole.prefill(QUESTION, between=(18.0, 39.0)))
        cut.save("walk")
        assert cut.forget((22.5, 24)) == 2
        now = cut.prefill(QUESTION)
        cut.push(frames[40:])
        later = cut.prefill(QUESTION)
        with made.load_stream("walk", template=False) as loaded:
            assert loaded.prefill(QUESTION).equal(now)
            loaded.push(frames[40:])
            assert loaded.prefill(QUESTION).equal(later)
            assert sum(len(chunk.encoded.visual) > 0 for chunk in loaded.chunks())


def written(stream: Stream, frames: range) -> list[bytes]:
    """Return bytes that frames alone have: rows of each layer that left the window, and codes."""
    numbers = numpy.array(frames, dtype=numpy.int64)
    lines = [stream.log.lines, *(store.lines for store in stream.memory.stores)]
    return [line.numpy().tobytes()[:64] for own in lines for line in own.copy(numbers).view(torch.uint8)]


BLOCKS = 2**15
"""Bytes that a file may take beside what is in it."""


def on_disk(folder: Path) -> int:
    return sum(512 * path.stat().st_blocks for path in logs(folder))


def holds(folder: Path, parts: list[bytes]) -> int:
    every = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return sum(part in every for part in parts)


@pytest.mark.parametrize("options", [{}, {"host_bytes": 1}], ids=str)
def test_no_file_has_what_was_forgotten(options: dict[str, Any], tmp_path: Path) -> None:
    frames = shown(NAME, FRAMES)
    with kept(tmp_path) as made, made.stream(**SMALL, **options) as stream:
        stream.push(frames[:30])
        stream.save("walk")
        parts, kept_parts = written(stream, range(5, 12)), written(stream, range(12, 20))
        assert holds(tmp_path, parts) == len(parts)
        assert stream.forget((5, 11)) == 7
        assert holds(tmp_path, parts) == 0 and holds(tmp_path, kept_parts) == len(kept_parts)
        window = [stream.recent.rows(0).kv.keys[0, -1].numpy().tobytes()]
        assert holds(tmp_path, window) == 1
        stream.forget((29, 29))
        assert holds(tmp_path, window) == 0
        stream.push(frames[30:])
        stream.save("walk")
        assert holds(tmp_path, parts) == 0


def test_a_full_disk_at_forgetting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = shown(NAME, FRAMES)
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        stream.push(frames[:30])
        stream.save("walk")
        parts = written(stream, range(5, 12))
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", _full)
            with pytest.raises(StoreError, match="No space left"):
                stream.forget((5, 11))
        now = stream.prefill(QUESTION)
        assert len(logs(tmp_path)) == 1
        assert stream.forget((5, 11)) == 0 and holds(tmp_path, parts) == 0
        assert stream.prefill(QUESTION).equal(now)


def _full(*given: Any) -> int:
    raise OSError(28, "No space left on device")


BOUNDS: list[tuple[dict[str, Any], Callable[[int], dict[str, Any]]]] = [
    ({}, lambda frame: {"keep_seconds": 20.0}),
    ({"positions": "packed"}, lambda frame: {"keep_bytes": 20 * frame}),
    ({"host_bytes": 1}, lambda frame: {"keep_seconds": 20.0, "keep_bytes": 25 * frame}),
]


@pytest.mark.slow
@pytest.mark.parametrize("options, bound", BOUNDS)
def test_what_is_too_old_goes(options: dict[str, Any], bound: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    frames = shown(NAME, 30)
    with kept(tmp_path) as made:
        with made.stream(**SMALL) as stream:
            stream.push(frames)
            line = stream.log.lines.line_bytes + stream.memory.frame_bytes
            logged = line + stream.memory.index_bytes + 8 * (2 + len(stream.memory.stores))
            left = len(stream.memory.frames)
            keys = stream.bytes.host["keys"] // left
        with made.stream(**{**SMALL, **options, **bound(line)}) as stream:
            for number in range(200):
                stream.push(frames[number % 30])
                if number % 10 == 9:
                    reply = stream.ask(list(QUESTION), max_new_tokens=1)
                    assert all(moment.at >= number - 20 for moment in reply.moments)
                if number == 99:
                    stream.save("walk")
            own = stream.bytes.host
            # What is kept and a batch; memory is given back in buffers of up to 64 frames.
            most = 25 + SMALL["block"]
            assert own["rows"] + own["codes"] < (most + 64) * line
            assert own["keys"] <= most * keys
            # What the last save needs is there until the next one; a system gives back blocks.
            assert on_disk(tmp_path) <= 2 * (2 * most * logged) + BLOCKS
            stream.save("walk")
            assert len(logs(tmp_path)) == 1 and on_disk(tmp_path) <= 2 * most * logged + BLOCKS
            now = stream.prefill(QUESTION)
            with made.load_stream("walk", template=False) as loaded:
                assert loaded.prefill(QUESTION).equal(now)
                assert loaded.bytes.host["keys"] == stream.bytes.host["keys"] <= most * keys


def test_what_cannot_be_forgotten(tmp_path: Path) -> None:
    with engine(NAME).stream(**SMALL) as stream:
        with pytest.raises(StreamError, match="nothing has been seen"):
            stream.forget((0, 1))
        stream.push(shown(NAME, 9))
        for span in ((2, 1), (1,), "ab", None):
            with pytest.raises(StreamError, match="between"):
                stream.forget(span)  # type: ignore[arg-type]
        assert stream.forget((100, 200)) == 0
        assert stream.forget((2, 4)) == 3
    with engine(NAME).stream("mosaic-paper", **SMALL) as stream:
        stream.push(shown(NAME, 9))
        with pytest.raises(StreamError, match="use mosaic"):
            stream.forget((0, 1))
    for wrong in ({"keep_seconds": 0}, {"keep_seconds": float("nan")}, {"keep_bytes": 0}, {"keep_bytes": 2.5}):
        with pytest.raises(StreamError, match="keep_"):
            engine(NAME).stream(**SMALL, **wrong)
    with pytest.raises(StreamError, match="need the method mosaic"):
        engine(NAME).stream("mosaic-paper", **SMALL, keep_seconds=9.0)


KILLED = """
import os, random, sys
from pathlib import Path
from tests.stream.crash import child, die_at
from tests.stream.plain import shown
from tests.stream.test_forget import NAME, QUESTION, SMALL, holds, kept, written
from tests.families import loaded

loaded(NAME)
frames, folder = shown(NAME, 30), Path(sys.argv[1])

def save(tell):
    with kept(folder) as made, made.stream(**SMALL) as stream:
        stream.push(frames)
        stream.save("walk")

def forget(tell):
    with kept(folder) as made, made.load_stream("walk", template=False) as stream:
        die_at(calls)
        stream.forget((5, 11))
        tell(1)

def look(tell):
    with kept(folder) as made, made.load_stream("walk", template=False) as stream:
        assert stream.frames == 30
        live = len(stream.log.gone.live(0, 30))
        assert live in ((23,) if ended else (23, 30)), live
        stream.prefill(QUESTION)
        parts = written(stream, range(12, 20))
        assert holds(folder, parts) == len(parts)
        left = sorted(path.name for path in folder.rglob("streams/*/*"))
        assert len(left) == 3, left
        tell(live)

found = []
for calls in map(int, sys.argv[2].split(",")):
    assert child(save) == ([], False)
    told, killed = child(forget)
    ended = bool(told)
    told, failed = child(look)
    assert not failed, calls
    found += told
print(set(found) <= {23, 30}, ended)
"""


@pytest.mark.slow
@pytest.mark.parametrize("calls", ["4,9,1000", pytest.param("1,2,3,5,6,7,8,10,11,12,13,14", marks=pytest.mark.nightly)])
def test_forgetting_that_is_killed_was_done_or_was_not(calls: str, tmp_path: Path) -> None:
    """Killed right before its n-th change to a file."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), calls]
    run = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=ONE_THREAD, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout == f"True {calls.endswith('1000')}\n" or not calls.endswith("1000")

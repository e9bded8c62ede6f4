"""Streams that are saved, killed and loaded answer as before; their frames are chunks for other prompts."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema import Engine
from emblema.errors import StoreError, StreamError
from emblema.kv.rotation import PhaseBook, relocate
from emblema.stream import state
from tests.engine.engines import engine, largest_error
from tests.families import loaded, words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 3, "block": 4, "sinks": 1, "budget": 6, "template": False}


def kept(folder: Path, name: str = NAME) -> Engine:
    item = loaded(name)
    return Engine(item.model, item.bundle, store=folder)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"positions": "packed"}], ids=str)
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
@pytest.mark.parametrize("count", [2, 22])
def test_a_loaded_stream_goes_on_as_it_was(name: str, count: int, options: dict[str, Any], tmp_path: Path) -> None:
    frames = shown(name, count + 11)
    with kept(tmp_path, name) as made, made.stream(**{**SMALL, **options}) as stream:
        stream.push(frames[:count], at=list(range(count)))
        stream.save("walk")
        now = stream.prefill(QUESTION)
        past = stream.prefill(QUESTION, at=1.0)
        stream.push(frames[count:])
        later = stream.prefill(QUESTION)
        held = stream.bytes
    with kept(tmp_path, name) as made, made.load_stream("walk", template=False) as stream:
        assert stream.frames == count and stream.settings.window == 3
        assert stream.prefill(QUESTION).equal(now)
        assert stream.prefill(QUESTION, at=1.0).equal(past)
        with pytest.raises(StreamError, match="time does not go back"):
            stream.push(frames[count], at=0.5)
        stream.push(frames[count:])
        assert stream.prefill(QUESTION).equal(later)
        assert stream.bytes.host["rows"] <= held.host["rows"] * 1.5


def test_what_cannot_be_saved_or_loaded(tmp_path: Path) -> None:
    with engine(NAME).stream(**SMALL) as stream:
        stream.push(shown(NAME, 4))
        with pytest.raises(StreamError, match="open it with store="):
            stream.save("walk")
    with kept(tmp_path) as made:
        with made.stream(**SMALL) as stream:
            with pytest.raises(StreamError, match="nothing has been seen"):
                stream.save("walk")
            stream.push(shown(NAME, 4))
            for name in ("", "../walk", "a/b", ".hidden", 5):
                with pytest.raises(StreamError, match="no name"):
                    stream.save(name)  # type: ignore[arg-type]
            path = stream.save("walk")
        with made.stream("mosaic-paper", **SMALL) as stream:
            stream.push(shown(NAME, 4))
            with pytest.raises(StreamError, match="cannot be saved"):
                stream.save("walk")
            with pytest.raises(StreamError, match="keeps no frames for chunks"):
                stream.chunks()
        with pytest.raises(StreamError, match="no saved stream 'run'"):
            made.load_stream("run", template=False)
        whole = path.read_bytes()
        middle = len(whole) // 2
        for damaged in (whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :], b""):
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match="damaged"):
                made.load_stream("walk", template=False)
    path.write_bytes(whole)
    with kept(tmp_path, "qwen2_vl") as made, pytest.raises(StreamError, match="another model"):
        made.load_stream("walk", template=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "every", [{"save_blocks": 2}, {"save_blocks": None, "save_seconds": 8.0}, {"save_blocks": 99, "save_seconds": 7.5}]
)
def test_a_stream_saves_itself(every: dict[str, Any], tmp_path: Path) -> None:
    frames, block = shown(NAME, 30), SMALL["block"]
    with kept(tmp_path) as made:
        with made.stream(**SMALL, save_as="walk", **every) as stream:
            saved = []
            for stop in range(block, 29, block):
                stream.push(frames[stop - block : stop])
                saved.append(bool(list(tmp_path.rglob("walk.safetensors"))))
            expected = stream.prefill(QUESTION)
            # Of blocks of four frames, a second each, the first one ends after three seconds.
            assert (
                saved == [False, True, *[True] * 5]
                if "save_seconds" not in every
                else saved[:3] == [False, False, True]
            )
        with made.load_stream("walk", template=False) as again:
            begun = again.frames
            assert begun % block == 0 and 28 - begun < 3 * block and again.settings.save_as == "walk"
            again.push(frames[begun:28])
            assert again.prefill(QUESTION).equal(expected)
            again.save("copy")
        with made.load_stream("copy", template=False) as other:
            assert other.settings.save_as == "copy"
    with kept(tmp_path) as made:
        for changes, said in (
            ({"save_as": "../walk"}, "no name"),
            ({"save_as": "walk", "save_blocks": None}, "how often"),
            ({"save_as": "walk", "save_seconds": 0}, "save_seconds is 0"),
            ({"save_as": "walk", "save_blocks": 0}, "save_blocks is 0"),
        ):
            with pytest.raises(StreamError, match=said):
                made.stream(**{**SMALL, **changes})
        with pytest.raises(StreamError, match="save_as need the method mosaic"):
            made.stream("mosaic-paper", **SMALL, save_as="walk")
    with pytest.raises(StreamError, match="open it with store="):
        engine(NAME).stream(**SMALL, save_as="walk")


def test_a_stream_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept(tmp_path) as made, made.stream(**SMALL) as stream:
        stream.push(shown(NAME, 4))
        with monkeypatch.context() as patch:
            patch.setattr(state, "VERSION", 2)
            stream.save("walk")
        with pytest.raises(StoreError, match="another version of the program: load it there, or watch the video again"):
            made.load_stream("walk", template=False)


def test_frames_are_chunks_for_other_prompts(tmp_path: Path) -> None:
    """Every frame is in one of them, and its rows in another prompt are those that the stream wrote, relocated."""
    with kept(tmp_path) as made:
        with made.stream(**SMALL) as stream:
            stream.push(shown(NAME, 22))
            chunks = stream.chunks()
            recent, adapter = stream.recent, made.adapter
            tokens = recent.positions.tokens
            front, last = len(stream.turn.markers[0]), chunks[-1]
            assert sum(int(chunk.encoded.visual.sum()) for chunk in chunks) == 22 * tokens
            near = [recent.rows(layer) for layer in range(len(adapter.layouts))]
            parts = [list(words(7).tolist()), chunks[0], list(words(3, 1).tolist()), last, list(words(4, 2).tolist())]
            prefill = made.prefill(parts, "blind", template=False)
            start = 7 + chunks[0].tokens + 3 + front
            moved = start - (7 + chunks[0].tokens + 3) + 7 + chunks[0].encoded.span + 3
            frames = int(last.encoded.visual.sum()) // tokens
            corners = torch.arange(frames) * recent.positions.span + moved
            target = (corners[None, :, None] + recent.positions.offsets[:, None]).flatten(1)
            for layer, (layout, rows) in enumerate(zip(adapter.layouts, near, strict=True)):
                own = (rows.frames >= 0).nonzero().squeeze(1)
                books = (PhaseBook(adapter.tables, places) for places in (rows.positions[:, own], target))
                expected = relocate(rows.kv.select(own), layout, *books)
                found = prefill.kv[layer].slice(start, start + frames * tokens)
                assert largest_error(found.keys, expected.keys) < 1e-4
                assert largest_error(found.values, expected.values) < 1e-4
            assert [int(chunk.encoded.visual.sum()) // tokens for chunk in chunks] == [16, 6]
            smaller = stream.chunks(most=2)
            assert max(int(chunk.encoded.visual.sum()) for chunk in smaller) == 2 * tokens
            with pytest.raises(StreamError, match="most"):
                stream.chunks(most=0)
        ids = [chunk.id for chunk in chunks]
    with kept(tmp_path) as made:
        again = made.prefill([list(words(7).tolist()), made.store.get(ids[0])], "blind", template=False)
        assert torch.isfinite(again.logits).all()


ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""Of a process that forks: its children would wait for ever for other threads, which they do not have."""
KILLED = """
import sys, os, signal, torch
from emblema import Engine
from tests.families import loaded, words
from tests.stream.plain import shown
from tests.stream.test_state import NAME, QUESTION, SMALL, kept
made = kept(sys.argv[1])
stream = made.stream(**SMALL)
for number, frame in enumerate(shown(NAME, 40)):
    stream.push(frame)
    if number == 20:
        stream.save("walk")
        torch.save(stream.prefill(QUESTION), sys.argv[1] + "/expected")
    if number == 30:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_stream_resumes_from_where_it_was_saved(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], cwd=Path(__file__).parents[2], capture_output=True, timeout=120
    )
    assert run.returncode == -9, run.stderr.decode()[-2000:]
    with kept(tmp_path) as made, made.load_stream("walk", template=False) as stream:
        assert stream.frames == 21
        assert largest_error(stream.prefill(QUESTION), torch.load(tmp_path / "expected")) < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.nightly)])
def test_a_stream_that_is_saved_after_every_block_loses_no_block_that_was_saved(rounds: int, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.stream.crash", str(tmp_path), "--rounds", str(rounds)],
        cwd=Path(__file__).parents[2],
        env=ONE_THREAD,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert f"{rounds} rounds" in run.stdout

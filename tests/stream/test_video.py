"""Videos pushed into a stream: whole, cut short, of uneven rate, one after another."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emblema import Engine
from emblema.errors import MediaError
from emblema.media import DEFAULT_LIMITS
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.families import words

QUESTION = tuple(words(5, 3).tolist())
Clip = Callable[..., bytes]


def opened(**changes: Any) -> Stream:
    return engine("qwen2_5_vl").stream("mosaic", template=False, **{"window": 2, "block": 2, **changes})


def test_a_video_and_one_after_it(clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(clip(frames=20, rate=10))
    with opened() as stream:
        assert stream.push_video(path, fps=5) == 10
        assert stream.push_video(path.read_bytes(), fps=2) == 4
        stream.advance()
        assert stream.log.times == pytest.approx([0.2 * i for i in range(10)] + [1.8 + 0.5 * (i + 1) for i in range(4)])


def test_a_video_cut_short_leaves_what_could_be_read(clip: Clip) -> None:
    whole = clip(frames=40, rate=10, movflags="faststart")
    with opened() as stream:
        with pytest.raises(MediaError, match="truncated"):
            stream.push_video(whole[: len(whole) * 2 // 3], fps=5)
        stream.advance()
        assert 0 < stream.frames < 20
        assert stream.ask(QUESTION, max_new_tokens=1).usage.frames == stream.frames


def test_a_video_of_uneven_rate_keeps_its_pace(clip: Clip) -> None:
    uneven = clip(frames=5, rate=100, kind="matroska", times=[0, 10, 20, 150, 200])
    with opened() as stream:
        stream.push_video(uneven, fps=2)
        stream.advance()
        # The frame that stays on screen from 0.2 s to 1.5 s comes again.
        assert stream.log.times == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0][: stream.frames])
        assert stream.frames >= 4


def test_no_video(tmp_path: Path) -> None:
    with opened() as stream, pytest.raises(MediaError, match="no file"):
        stream.push_video(tmp_path / "none.mp4")


def test_a_video_of_another_size_is_refused_and_the_stream_goes_on(clip: Clip) -> None:
    from PIL import Image

    with opened() as stream:
        stream.push(Image.new("RGB", (40, 30)))
        with pytest.raises(MediaError, match="those before it"):
            stream.push_video(clip(), fps=5)
        assert stream.ask(QUESTION, max_new_tokens=1).usage.frames == 1


def test_length_is_no_matter_unless_a_limit_was_set(clip: Clip, tmp_path: Path) -> None:
    path = tmp_path / "long.mkv"
    path.write_bytes(clip(frames=3, rate=100, kind="matroska", times=[0, 100, 400_000]))
    with opened() as stream:
        assert stream.push_video(path, fps=0.001) == 5
    made = Engine.load("reference", limits=replace(DEFAULT_LIMITS, video_seconds=60))
    with made.stream() as stream, pytest.raises(MediaError, match="limit is 60 s"):
        stream.push_video(path, fps=0.001)

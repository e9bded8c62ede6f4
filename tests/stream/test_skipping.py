"""Frames that show nothing new are left out, and their time can be asked about all the same."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from emblema import Store
from emblema.errors import StreamError
from emblema.stream.skipping import FrameSkipper
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.families import words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 3, "block": 2, "budget": 6, "template": False}


def repeated(count: int, times: int, seed: int = 0) -> list[Image.Image]:
    return [picture for picture in shown(NAME, count, seed=seed) for _ in range(times)]


def test_what_is_left_out_might_not_have_come() -> None:
    """A stream that skips is, to the bit, one that was never given the frames that it skipped."""
    made = engine(NAME)
    with made.stream(skip=0.02, **SMALL) as skipping, made.stream(**SMALL) as other:
        taken = skipping.push(repeated(10, 4), at=[0.5 * index for index in range(40)])
        other.push(shown(NAME, 10), at=[2.0 * index for index in range(10)])
        assert (taken, skipping.frames, skipping.skipped, other.skipped) == (10, 10, 30, 0)
        assert skipping.prefill(QUESTION).equal(other.prefill(QUESTION))
        assert skipping.prefill(QUESTION, at=7.5).equal(other.prefill(QUESTION, at=7.5))


def test_a_time_at_which_nothing_was_kept_can_be_asked_about() -> None:
    with engine(NAME).stream(skip=0.02, **SMALL) as stream:
        stream.push(repeated(5, 4), at=[float(index) for index in range(20)])
        stream.advance()
        assert stream.log.times == [0, 4, 8, 12, 16]

        def seen(start: float, end: float) -> int:
            return stream.ask(QUESTION, between=(start, end), max_new_tokens=1).usage.frames

        # What was on show from 5 to 7 s came at 4 s; from 5 to 9 s another frame came.
        assert [seen(5, 7), seen(5, 9), seen(4, 4), seen(3, 9), seen(17, 19), seen(-3, 1)] == [1, 2, 1, 3, 1, 1]
        for span in ((20, 30), (-5, -1)):
            with pytest.raises(StreamError, match="nothing had been seen"):
                seen(*span)


def test_noise_is_nothing_new_and_a_slow_change_adds_up() -> None:
    random, skipper = np.random.default_rng(0), FrameSkipper(0.1)
    flat = np.full((112, 112, 3), 120.0)

    def noisy(level: float) -> Image.Image:
        pixels = flat + level + random.normal(0, 10, flat.shape)
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    skipper.keep(noisy(0))
    assert all(skipper.shows_nothing_new(noisy(0)) for _ in range(20))
    assert [skipper.shows_nothing_new(noisy(level)) for level in (5, 10, 15, 40)] == [True, True, True, False]
    # A small thing in a corner, a three-hundredth of the picture.
    small = flat.copy()
    small[:7, :7] = 255
    assert not skipper.shows_nothing_new(Image.fromarray(small.astype(np.uint8)))


def test_a_frame_that_found_no_room_is_not_what_others_are_compared_with() -> None:
    with engine(NAME).stream(skip=0.02, queue=1, drop="newest", **SMALL) as stream:
        first, second = shown(NAME, 2)
        thread = threading.Thread(target=lambda: stream.push([first, second, first, second]))
        thread.start()
        thread.join()
        # The second finds no room, twice; the third shows what the first did.
        assert (stream.waiting, stream.dropped, stream.skipped) == (1, 2, 1)


@pytest.mark.parametrize("cut", [17, 18, 20])
def test_a_saved_stream_goes_on_skipping(cut: int, tmp_path: Path) -> None:
    frames, times = repeated(10, 4), [float(index) for index in range(40)]
    with Store(str(tmp_path)) as store:
        made = engine(NAME).on(store)

        def half(stream: Stream, part: slice) -> None:
            stream.push(frames[part], at=times[part])

        with made.stream(skip=0.02, **SMALL) as whole, made.stream(skip=0.02, **SMALL) as saved:
            half(whole, slice(0, cut))
            half(saved, slice(0, cut))
            whole.advance()
            saved.save("kept")
            with made.load_stream("kept", template=False) as loaded:
                half(whole, slice(cut, 40))
                half(loaded, slice(cut, 40))
                assert loaded.skipped == whole.skipped == 30 and loaded.log.times == whole.log.times
                assert loaded.prefill(QUESTION).equal(whole.prefill(QUESTION))


@pytest.mark.parametrize("skip", [0, 1, -0.1, float("nan"), "much", True])
def test_a_share_that_is_not_right(skip: Any) -> None:
    with pytest.raises(StreamError, match="skip"):
        engine(NAME).stream(skip=skip, **SMALL)

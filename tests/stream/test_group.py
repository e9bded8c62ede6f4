"""Several streams on one engine: turns, and a question to each."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from emblema.errors import CapacityError, MediaError, StreamError
from emblema.stream.feed import LiveFeed
from emblema.stream.frames import TimedFrame
from emblema.stream.group import StreamGroup
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.families import words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 3, "block": 4, "first": 6, "largest": 4, "budget": 6, "template": False}


def pushed(stream: Stream, count: int, seed: int = 0) -> None:
    """Push frames from another thread, so that they wait."""
    frames = shown(NAME, count, seed=seed)
    thread = threading.Thread(target=lambda: stream.push(frames))
    thread.start()
    thread.join()


def test_blocks_are_encoded_in_turns() -> None:
    """A stream with much to encode does not hold up one with little, and frames of an incomplete block wait."""
    made = engine(NAME)
    with made.stream(**SMALL) as much, made.stream(**SMALL) as little, made.stream(**SMALL) as none:
        group = StreamGroup({"much": much, "little": little, "none": none})
        pushed(much, 21)
        pushed(little, 9, seed=40)
        order = []
        while (name := group.turn()) is not None:
            order.append(name)
        assert order == ["much", "little", "much", "little", "much", "much", "much"]
        assert (much.frames, little.frames, none.frames) == (20, 8, 0)
        pushed(little, 3)
        assert group.turn() == "little" and group.turn() is None


def test_each_stream_answers_as_it_would_alone() -> None:
    made = engine(NAME)
    with made.stream(**SMALL) as first, made.stream("rekv", **SMALL) as second, made.stream(**SMALL) as none:
        group = StreamGroup({"first": first, "second": second, "none": none})
        with pytest.raises(StreamError, match="no stream has seen anything"):
            group.ask_each(QUESTION)
        first.push(shown(NAME, 18))
        second.push(shown(NAME, 13, seed=40), at=[100.0 + index for index in range(13)])
        replies = group.ask_each(QUESTION, max_new_tokens=3)
        assert list(replies) == ["first", "second"]
        for name, stream in (("first", first), ("second", second)):
            alone = stream.ask(QUESTION, max_new_tokens=3)
            assert (replies[name].token_ids, replies[name].moments) == (alone.token_ids, alone.moments)
        assert list(group.ask_each(QUESTION, between=(90.0, 105.0), max_new_tokens=1)) == ["second"]
        with pytest.raises(StreamError, match="had seen anything then"):
            group.ask_each(QUESTION, at=-5.0)
        with pytest.raises(StreamError, match="before its start"):
            group.ask_each(QUESTION, between=(5.0, 1.0))


class Camera:
    """A source of so many frames; then it breaks, or says nothing more."""

    def __init__(self, count: int, breaks: bool) -> None:
        self.count, self.breaks, self.closed = count, breaks, threading.Event()

    def frames(self) -> Iterator[TimedFrame]:
        for index, picture in enumerate(shown(NAME, self.count)):
            yield TimedFrame(picture, float(index))
        if self.breaks:
            raise MediaError("it broke")
        self.closed.wait(30)

    def close(self) -> None:
        self.closed.set()


def test_a_camera_that_breaks_or_is_silent_does_not_stop_the_others() -> None:
    made = engine(NAME)
    with made.stream(**SMALL) as broken, made.stream(**SMALL) as silent, made.stream(**SMALL) as good:
        sources = {"broken": Camera(5, True), "silent": Camera(2, False), "good": Camera(30, False)}
        feeds = {name: LiveFeed(source, good.settings) for name, source in sources.items()}
        group = StreamGroup({"broken": broken, "silent": silent, "good": good}, feeds)
        for _ in range(100_000):
            group.turn()
            if good.frames == 28 and "broken" in group.failed and silent.waiting == 2:
                break
        assert (good.frames, str(group.failed["broken"])) == (28, "it broke")
        assert list(group.ask_each(QUESTION, max_new_tokens=1)) == ["broken", "silent", "good"]
        for feed in feeds.values():
            feed.close()


class Backwards(Camera):
    """A source whose time goes back."""

    def frames(self) -> Iterator[TimedFrame]:
        for index, picture in enumerate(shown(NAME, self.count)):
            yield TimedFrame(picture, -float(index))


def test_a_stream_that_takes_no_more_frames_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine(NAME)
    with made.stream(**SMALL) as full, made.stream(**SMALL) as back, made.stream(**SMALL) as good:
        closed = made.stream(**SMALL)
        closed.close()

        def refusing(*_: object, **__: object) -> int:
            raise CapacityError("it is full")

        monkeypatch.setattr(full, "push", refusing)
        monkeypatch.setattr(full, "advance", refusing)
        sources = {"full": Camera(5, False), "closed": Camera(5, False), "back": Backwards(5, False)}
        streams = {"full": full, "closed": closed, "back": back, "good": good}
        feeds = {name: LiveFeed(source, good.settings) for name, source in sources.items()}
        feeds["good"] = LiveFeed(Camera(28, False), good.settings)
        group = StreamGroup(streams, feeds)
        began = time.monotonic()
        while time.monotonic() < began + 30:
            group.turn()
            if good.frames == 28 and len(group.failed) == 3:
                break
        assert (good.frames, good.log.times) == (28, [float(index) for index in range(28)])
        assert {name: type(error) for name, error in group.failed.items()} == {
            "full": CapacityError, "closed": StreamError, "back": StreamError,
        }  # fmt: skip
        assert str(group.failed["full"]) == "it is full" and "does not go back" in str(group.failed["back"])
        for feed in feeds.values():
            feed.close()


def test_frames_of_a_camera_that_show_nothing_new_are_counted_by_its_stream() -> None:
    class Still(Camera):
        def frames(self) -> Iterator[TimedFrame]:
            for index, picture in enumerate(shown(NAME, self.count)):
                yield from (TimedFrame(picture, 4.0 * index + step) for step in range(4))

    with engine(NAME).stream(skip=0.02, **SMALL) as stream:
        feed = LiveFeed(Still(5, False), stream.settings)
        group = StreamGroup({"one": stream}, {"one": feed})
        began = time.monotonic()
        while time.monotonic() < began + 30:
            group.turn()
            if stream.skipped == 15:
                break
        stream.advance()
        assert (stream.frames, stream.skipped, stream.last) == (5, 15, 19.0)
        feed.close()


def test_a_group_that_is_not_right() -> None:
    with engine(NAME).stream(**SMALL) as stream:
        for wrong in (({}, None), ({"a": stream}, {"b": LiveFeed(Camera(1, False), stream.settings)})):
            with pytest.raises(StreamError, match="a group needs"):
                StreamGroup(*wrong)  # type: ignore[arg-type]

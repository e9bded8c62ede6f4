"""What a stream refuses, and what it does when frames come faster than they are encoded."""

import threading
from typing import Any

import pytest
from PIL import Image

from emblema.errors import EmblemaError, MediaError, PromptError, StreamError
from emblema.stream.stream import Stream
from tests.engine.engines import engine
from tests.families import picture, words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())


def opened(**changes: Any) -> Stream:
    return engine(NAME).stream("mosaic", template=False, **{"window": 2, "block": 2, **changes})


SETTINGS: dict[str, Any] = {
    "budget": 0, "window": -1, "block": 2.5, "sinks": -1, "positions": "far", "drop": "all",
    "tau_small": 0.9, "scale": float("nan"), "largest": 1, "colour": "red", "queue": True,
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_are_not_right(name: str) -> None:
    with pytest.raises(StreamError, match=name):
        opened(**{name: SETTINGS[name]})


def test_an_unknown_method() -> None:
    with pytest.raises(StreamError, match="no stream method 'best': choose one of mosaic"):
        engine(NAME).stream("best", template=False)


def test_a_question_before_the_first_frame() -> None:
    with opened() as stream:
        with pytest.raises(StreamError, match="nothing had been seen yet"):
            stream.ask(QUESTION)
        stream.push(shown(NAME, 1), at=[5.0])
        with pytest.raises(StreamError, match="by 4 s"):
            stream.ask(QUESTION, at=4.0)
        assert stream.ask(QUESTION, at=5.0, max_new_tokens=1).usage.frames == 1


REFUSED: dict[str, tuple[dict[str, Any], type[EmblemaError], str]] = {
    "another size": ({"frames": picture(60, 60)}, MediaError, "those before it"),
    "no picture": ({"frames": b"nonsense"}, MediaError, "."),
    "a corrupt one among good ones": ({"frames": [*shown(NAME, 2), b"\x89PNG\r\n"]}, MediaError, "."),
    "time going back": ({"frames": shown(NAME, 2), "at": [9.0, 8.0]}, StreamError, "time does not go back"),
    "time before what came": ({"frames": shown(NAME, 1)[0], "at": 1.0}, StreamError, "time does not go back"),
    "no time": ({"frames": shown(NAME, 1)[0], "at": float("nan")}, StreamError, "give seconds"),
    "too few times": ({"frames": shown(NAME, 2), "at": [9.0]}, StreamError, "2 frames came with 1 times"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_frames_that_are_refused_leave_the_stream_as_it_was(case: str) -> None:
    given, error, message = REFUSED[case]
    with opened() as stream:
        stream.push(shown(NAME, 5), at=[1, 2, 3, 4, 5])
        before = stream.prefill(QUESTION)
        with pytest.raises(error, match=message):
            stream.push(**given)
        assert stream.frames == 5 and stream.waiting == 0
        assert stream.prefill(QUESTION).equal(before)
        stream.push(shown(NAME, 1), at=[6])
        assert stream.ask(QUESTION, max_new_tokens=1).usage.frames == 6


def test_questions_that_are_refused() -> None:
    with opened() as stream:
        stream.push(shown(NAME, 3))
        for knobs in ({"max_new_tokens": 0}, {"colour": 1}):
            with pytest.raises(PromptError):
                stream.ask(QUESTION, **knobs)
        with pytest.raises(PromptError, match="nothing to ask"):
            stream.ask("")
        with pytest.raises(StreamError, match="window"):
            stream.ask(QUESTION, window=0)
        with pytest.raises(PromptError, match="positions='packed'"):
            stream.ask(QUESTION, max_new_tokens=100_000)
        assert stream.ask(QUESTION, max_new_tokens=1).text is not None


def test_a_closed_stream() -> None:
    stream = opened()
    stream.push(shown(NAME, 3))
    stream.close()
    stream.close()
    with pytest.raises(StreamError, match="closed"):
        stream.push(shown(NAME, 1))
    with pytest.raises(StreamError, match="closed"):
        stream.ask(QUESTION)


@pytest.mark.parametrize(("drop", "left"), [("oldest", [3, 4, 5]), ("newest", [0, 1, 2])])
def test_a_full_queue_drops_and_counts(drop: str, left: list[int]) -> None:
    with opened(queue=3, drop=drop) as stream:
        frames = shown(NAME, 6)
        taken: list[int] = []
        thread = threading.Thread(target=lambda: taken.append(stream.push(frames, at=list(range(6)))))
        thread.start()
        thread.join(20)
        assert stream.dropped == 3 and stream.waiting == 3 and stream.frames == 0
        assert stream.advance() == 3
        assert stream.log.times == left
        # A newest one that is dropped was not taken; an oldest one was, and made room.
        assert taken == [3 if drop == "newest" else 6]


def test_a_full_queue_waits_for_its_owner() -> None:
    with opened(queue=2, drop="block") as stream:
        frames = shown(NAME, 7)
        thread = threading.Thread(target=stream.push, args=(frames,))
        thread.start()
        while thread.is_alive() or stream.waiting:
            stream.advance()
            thread.join(0.01)
        assert stream.frames == 7 and stream.dropped == 0


def test_who_waits_for_room_is_told_that_the_stream_was_closed() -> None:
    stream = opened(queue=1, drop="block")
    told: list[str] = []

    def push() -> None:
        try:
            stream.push(shown(NAME, 3))
        except StreamError as error:
            told.append(str(error))

    thread = threading.Thread(target=push)
    thread.start()
    while not stream.waiting:
        thread.join(0.01)
    stream.close()
    thread.join(20)
    assert told and "closed" in told[0]


def test_another_thread_may_not_ask() -> None:
    with opened() as stream:
        stream.push(shown(NAME, 2))
        told: list[str] = []

        def ask() -> None:
            try:
                stream.ask(QUESTION)
            except StreamError as error:
                told.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join(20)
        assert told and "thread that opened it" in told[0]


def test_pushed_one_by_one_or_at_once() -> None:
    frames = shown(NAME, 13)
    answers = []
    for size in (1, 5, 13):
        with opened() as stream:
            for start in range(0, 13, size):
                stream.push(frames[start : start + size])
            answers.append(stream.prefill(QUESTION))
    assert answers[0].equal(answers[1]) and answers[1].equal(answers[2])


def test_a_grey_frame_and_a_transparent_one_are_frames() -> None:
    size = shown(NAME, 1)[0].size
    with opened() as stream:
        stream.push([Image.new("L", size, 90), Image.new("RGBA", size, (1, 2, 3, 40))])
        assert stream.ask(QUESTION, max_new_tokens=1).usage.frames == 2

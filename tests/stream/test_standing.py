"""Standing questions: when they are asked, and which answers are told."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StreamError
from emblema.stream.standing import AnswerTracker, StandingQuestion, StandingQuestions
from tests.engine.engines import engine
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
SMALL: dict[str, Any] = {"window": 3, "block": 4, "budget": 6}


def told(question: StandingQuestion, answers: Sequence[str]) -> list[tuple[str, str | None, float, float]]:
    """Give a tracker an answer each second; return answer, former answer, since and at of what it tells."""
    tracker = AnswerTracker(question)
    changes = [tracker.take(answer, float(second)) for second, answer in enumerate(answers)]
    return [(change.answer, change.former, change.since, change.at) for change in changes if change is not None]


def test_a_change_is_told_once_when_it_has_held() -> None:
    question = StandingQuestion("who is there ?", hold=2)
    assert told(question, ["nobody", "nobody", "nobody", "a cat", "nobody", "a cat", "A  Cat", "a cat"]) == [
        ("nobody", None, 0, 1),
        ("A Cat", "nobody", 5, 6),
    ]
    assert told(StandingQuestion("who ?", hold=3), ["a", "b"] * 10) == []
    assert told(StandingQuestion("who ?", hold=1), ["a", "b", "b", "a"]) == [
        ("a", None, 0, 0),
        ("b", "a", 1, 1),
        ("a", "b", 3, 3),
    ]


def test_a_change_in_the_cool_down_is_told_after_it_if_it_is_still_so() -> None:
    question = StandingQuestion("who ?", hold=1, cooldown=4)
    assert told(question, ["a", "b", "b", "b", "b", "b"]) == [("a", None, 0, 0), ("b", "a", 1, 4)]
    assert told(question, ["a", "b", "b", "a", "a", "a"]) == [("a", None, 0, 0)]


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 4), st.integers(0, 6))
def test_what_is_told_held_and_is_never_told_twice(answers: list[str], hold: int, cooldown: int) -> None:
    changes = told(StandingQuestion("who ?", hold=hold, cooldown=float(cooldown)), answers)
    for answer, _, since, at in changes:
        assert set(answers[int(since) : int(at) + 1]) == {answer} and at - since >= hold - 1
    assert all(answer != former for answer, former, *_ in changes)
    assert all(later[3] - earlier[3] >= max(1, cooldown) for earlier, later in zip(changes, changes[1:], strict=False))
    if len(answers) >= hold + cooldown and len(set(answers[-(hold + cooldown) :])) == 1 and answers:
        assert changes[-1][0] == answers[-1]


def test_it_is_asked_after_every_block_or_every_few_seconds() -> None:
    with engine(NAME).stream(template=False, **SMALL) as stream:
        standing = StandingQuestions(
            stream,
            [StandingQuestion("who ?", hold=1, most=1), StandingQuestion("where ?", every=2.5, window=2, most=1)],
        )
        asked: list[tuple[str, float, int]] = []
        answer = stream.ask

        def noting(text: str, **knobs: Any) -> Any:
            reply = answer(text, **knobs)
            asked.append((text, stream.log.times[-1], reply.usage.frames))
            return reply

        stream.ask = noting  # type: ignore[method-assign]
        assert standing.check() == []
        for frame in shown(NAME, 9):
            stream.push(frame)
            standing.check()
        # Frames are encoded four at a time; at 7 s 2.5 s have gone since 3 s.
        assert asked == [("who ?", 3, 4), ("where ?", 3, 2), ("who ?", 7, 8), ("where ?", 7, 2)]
        assert standing.check() == [] and len(asked) == 4


def test_changes_say_what_was_seen() -> None:
    with engine(NAME).stream(template=False, **SMALL) as stream:
        standing = StandingQuestions(stream, [StandingQuestion("who ?", hold=1, most=3)])
        stream.push(shown(NAME, 12))
        (change,) = standing.check()
        reply = stream.ask("who ?", max_new_tokens=3)
        assert (change.question, change.answer, change.former) == ("who ?", " ".join(reply.text.split()), None)
        assert (change.since, change.at, change.moments) == (11, 11, reply.moments)
        assert change.to_json()["moments"][0] == {"frame": reply.moments[0].frame, "at": reply.moments[0].at,
                                                  "share": reply.moments[0].share}  # fmt: skip
        assert standing.check() == []


BAD: dict[str, dict[str, Any]] = {
    "empty": {"text": " "}, "every": {"every": -1.0}, "cooldown": {"cooldown": float("inf")}, "hold": {"hold": 0},
    "window": {"window": 0}, "most": {"most": 1.5},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_standing_question_that_is_not_right(name: str) -> None:
    with pytest.raises(StreamError, match=name):
        StandingQuestion(**{"text": "who ?", **BAD[name]})

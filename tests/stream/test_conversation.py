"""Questions about a span of time, and questions that follow an answer."""

from typing import Any

import pytest

from benchmarks.stream.methods.full import FullAttention
from emblema import Engine
from emblema.errors import PromptError, StreamError
from emblema.stream.methods import METHODS
from tests.engine.engines import engine, largest_error
from tests.families import picture, words
from tests.stream.plain import plain_logits, shown

NAME = "qwen2_5_vl"
QUESTION, SECOND = tuple(words(5, 3).tolist()), tuple(words(4, 9).tolist())
SMALL: dict[str, Any] = {"window": 3, "block": 4, "budget": 6, "template": False}


@pytest.mark.parametrize("method", METHODS)
def test_a_span_is_the_latest_frames_of_a_past_moment(method: str) -> None:
    with engine(NAME).stream(method, **SMALL) as stream:
        stream.push(shown(NAME, 18), at=[2.0 * index for index in range(18)])
        asked = stream.prefill(QUESTION, between=(9.0, 25.0))
        assert asked.equal(stream.prefill(QUESTION, at=25.0, window=8))
        assert largest_error(asked, stream.prefill(QUESTION, at=25.0)) > 1e-3
        reply = stream.ask(QUESTION, between=(10.0, 24.0), max_new_tokens=2)
        assert reply.usage.frames == 8
        assert all(10.0 <= moment.at <= 24.0 for moment in reply.moments)
        assert stream.ask(QUESTION, between=(10, 24), window=2, max_new_tokens=1).usage.frames == 2
        assert stream.ask(QUESTION, between=(12, 12), max_new_tokens=1).usage.frames == 1


BAD: dict[str, tuple[Any, str]] = {
    "one time": ((3.0,), "give two times"),
    "a number": (3.0, "give two times"),
    "not finite": ((0.0, float("inf")), "give two times"),
    "no times": (("0", "1"), "give two times"),
    "the wrong way": ((5.0, 2.0), "before its start"),
    "between two frames": ((2.2, 2.8), "nothing had been seen between 2.2 and 2.8 s"),
    "before the first": ((-5.0, -1.0), "nothing had been seen between"),
    "after the last": ((50.0, 60.0), "nothing had been seen between"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_span_that_is_not_right(name: str) -> None:
    between, message = BAD[name]
    with engine(NAME).stream(**SMALL) as stream:
        stream.push(shown(NAME, 5))
        with pytest.raises(StreamError, match=message):
            stream.ask(QUESTION, between=between)
        with pytest.raises(StreamError, match="at and between"):
            stream.ask(QUESTION, at=3.0, between=(0.0, 3.0))
        assert stream.ask(QUESTION, max_new_tokens=1).usage.frames == 5


def test_a_question_after_an_answer_is_one_forward_over_the_conversation() -> None:
    made, frames = engine(NAME), shown(NAME, 11)
    with made.stream(FullAttention, window=2, block=3, template=False) as stream:
        stream.push(frames)
        reply = stream.ask(QUESTION, max_new_tokens=4)
        spoken = tuple(token for token in reply.token_ids if token not in made.session.end_tokens)
        assert reply.conversation == (*QUESTION, *spoken)
        found = stream.prefill(SECOND, after=reply)
        closing = (*stream.turn.markers[1], *QUESTION, *spoken, *SECOND)
        assert largest_error(found, plain_logits(made, stream.turn.opening, frames, closing)) < 1e-4
        assert largest_error(found, stream.prefill(SECOND)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_retrieval_goes_by_the_conversation(method: str) -> None:
    """A question after an answer is the conversation asked as one question, to the bit, whatever came meanwhile."""
    with engine(NAME).stream(method, **SMALL) as stream:
        stream.push(shown(NAME, 18))
        first = stream.ask(QUESTION, max_new_tokens=3)
        stream.push(shown(NAME, 5, seed=40))
        second = stream.ask(SECOND, after=first, max_new_tokens=3)
        whole = stream.ask((*first.conversation, *SECOND), max_new_tokens=3)
        assert (second.token_ids, second.moments) == (whole.token_ids, whole.moments)
        assert second.conversation == whole.conversation
        third = stream.prefill(QUESTION, after=second, between=(2.0, 9.0))
        assert third.equal(stream.prefill((*second.conversation, *QUESTION), between=(2.0, 9.0)))


@pytest.mark.parametrize("system", [None, "You answer in one word."])
def test_a_conversation_is_spelled_as_the_template_spells_one(reference: Engine, system: str | None) -> None:
    frame = picture(56, 56, seed=1)
    first, second = "Which land does the tent stand on?", "And which colour has it?"
    with reference.stream(system=system) as stream:
        stream.push(frame)
        reply = stream.ask(first, max_new_tokens=4)
        tokens = stream.recent.positions.tokens
        closing, opening = stream.turn.question(second, reply.conversation), stream.turn.opening
        assert stream.ask(second, after=reply, max_new_tokens=1).usage.question_tokens == len(closing.token_ids)
    said: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    said.append({"role": "user", "content": [{"type": "image", "image": frame}, {"type": "text", "text": first}]})
    said.append({"role": "assistant", "content": reply.text})
    said.append({"role": "user", "content": second})
    whole = reference.prompt(said).token_ids.tolist()
    assert whole[: len(opening)] == list(opening)
    assert whole[len(opening) + tokens :] == list(closing.token_ids)
    # Retrieval goes by everything from the first question to the last, and not by the answer's opening.
    asked = [closing.token_ids[index] for index in closing.asking]
    plain = [reference.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (first, second)]
    assert asked[: len(plain[0])] == plain[0] and asked[-len(plain[1]) :] == plain[1]


def test_what_is_no_reply_is_refused() -> None:
    with engine(NAME).stream(**SMALL) as stream:
        stream.push(shown(NAME, 5))
        with pytest.raises(StreamError, match="after is a str"):
            stream.ask(SECOND, after="the answer")  # type: ignore[call-overload]
        reply = stream.ask(QUESTION, max_new_tokens=1)
        with pytest.raises(PromptError, match="nothing to ask"):
            stream.ask((), after=reply)

"""Answers of a stream: whole and in pieces, several streams at once, on the bundled model, in half precision."""

from typing import Any

import pytest
import torch

from emblema import Engine
from emblema.errors import StreamError
from emblema.stream.methods import METHODS
from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.reply import StreamPiece
from tests.engine.engines import engine, largest_error
from tests.families import picture, words
from tests.stream.plain import shown

NAME = "qwen2_5_vl"
QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 3, "block": 4, "budget": 6, "template": False}


@pytest.mark.parametrize("method", METHODS)
def test_an_answer_in_pieces_is_the_answer(method: str) -> None:
    with engine(NAME).stream(method, **SMALL) as stream:
        stream.push(shown(NAME, 18))
        whole = stream.ask(QUESTION, max_new_tokens=6)
        pieces = list(stream.ask(QUESTION, stream=True, max_new_tokens=6))
        assert "".join(pieces) == whole.text and all(isinstance(piece, StreamPiece) for piece in pieces)
        last = pieces[-1].reply
        assert last is not None and last.token_ids == whole.token_ids and len(whole.token_ids) >= 1
        assert [piece.reply for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        usage = whole.usage
        assert usage.method == method and usage.frames == 18 and usage.completion_tokens == len(whole.token_ids)
        assert usage.retrieved == len(whole.moments) and 0 < usage.ttft_seconds < 60
        assert all(moment.at == moment.frame and 0 < moment.share <= 1 for moment in whole.moments)


def test_frames_that_come_while_an_answer_is_read_do_not_change_it() -> None:
    made = engine(NAME)
    with made.stream(**SMALL) as stream:
        stream.push(shown(NAME, 18))
        whole = stream.ask(QUESTION, max_new_tokens=8)
        pieces = stream.ask(QUESTION, stream=True, max_new_tokens=8)
        read = [next(pieces)]
        stream.push(shown(NAME, 10, seed=50))
        read += pieces
        assert "".join(read) == whole.text


def test_several_streams_at_once_know_nothing_of_one_another() -> None:
    made = engine(NAME)
    films = [shown(NAME, 17, seed=seed) for seed in (0, 40)]
    alone = []
    for film in films:
        with made.stream(**SMALL) as stream:
            stream.push(film)
            alone.append(stream.prefill(QUESTION))
    with made.stream(**SMALL) as first, made.stream("mosaic-paper", **SMALL) as other, made.stream(**SMALL) as second:
        for pair in zip(*films, strict=True):
            for stream, frame in zip((first, second), pair, strict=True):
                stream.push(frame)
            other.push(pair[0])
        together = [first.prefill(QUESTION), second.prefill(QUESTION)]
    assert [a.equal(b) for a, b in zip(alone, together, strict=True)] == [True, True]
    assert largest_error(alone[0], alone[1]) > 1e-2


def test_the_bundled_model_answers_through_its_template(reference: Engine) -> None:
    frames = [picture(56, 56, seed=index % 7) for index in range(40)]
    with reference.stream(positions="packed", window=4, block=4, budget=8) as stream:
        stream.push(frames, at=[0.5 * index for index in range(40)])
        reply = stream.ask("Which land does the tent stand on?", max_new_tokens=4)
        assert reply.text and reply.finish_reason in ("stop", "length")
        # Eight frames in each layer, of those that have left the window.
        assert 8 <= reply.usage.retrieved <= 35
        assert all(0 < moment.at < 18 for moment in reply.moments)
        assert reply.usage.counts["fetches"] > 0
        held = stream.bytes
        assert held.device["fetched"] == 0 and "index" not in held.device
        # Question and answer do not become part of the stream.
        before = stream.frames, stream.recent.bytes
        stream.ask("What is the colour under the tent?", max_new_tokens=4)
        assert before == (stream.frames, stream.recent.bytes)


@pytest.mark.slow
def test_half_precision_keeps_close(reference: Engine) -> None:
    """With room for all frames: where few are retrieved, rounding may choose others."""
    frames = [picture(56, 56, seed=index) for index in range(30)]
    answers = []
    half = Engine.load("reference", dtype="bfloat16")
    for made in (reference, half):
        with made.stream(positions="packed", window=4, block=4, budget=32) as stream:
            stream.push(frames)
            answers.append(torch.softmax(stream.prefill("Which land does the tent stand on?"), 0))
    assert float((answers[0] - answers[1]).abs().sum()) < 0.2


def test_the_paper_s_index_grows_with_clusters_alone() -> None:
    held = []
    for rounds in (8, 16):
        with engine(NAME).stream("mosaic-paper", **{**SMALL, "window": 1}) as stream:
            for _ in range(rounds):
                stream.push([picture(28, 28, seed=place) for place in range(4)])
            held.append((stream.counts["clusters"], stream.bytes.device["index"], stream.bytes.device["local"]))
    (few, short, near), (many, long, same) = held
    assert long * few == short * many and near == same


def test_a_setting_that_was_removed_says_what_makes_its_choice() -> None:
    with pytest.raises(StreamError, match="'retrieval' was removed: the method 'mosaic-paper' chooses"):
        engine(NAME).stream(retrieval="clusters")


def test_a_method_is_a_name_or_a_class() -> None:
    for wrong in ("rekv", dict, 5):
        with pytest.raises(StreamError, match="choose one of mosaic, mosaic-paper"):
            engine(NAME).stream(wrong)  # type: ignore[arg-type]
    with engine(NAME).stream(FrameMemory, template=False) as stream:
        assert stream.method == "mosaic"


@pytest.mark.parametrize("system", [None, "You answer in one word."])
def test_a_turn_is_spelled_as_the_template_spells_one_of_a_picture(reference: Engine, system: str | None) -> None:
    """Opening, one frame and closing are the tokens of a prompt of that picture and that question."""
    text = "Which land does the tent stand on?"
    frame = picture(56, 56, seed=1)
    with reference.stream(system=system) as stream:
        stream.push(frame)
        stream.advance()
        closing, opening = stream.turn.question(text), stream.turn.opening
        tokens = stream.recent.positions.tokens
        asked = [closing.token_ids[index] for index in closing.asking]
        plain = reference.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert asked == plain
    user = {"role": "user", "content": [{"type": "image", "image": frame}, {"type": "text", "text": text}]}
    messages = [user] if system is None else [{"role": "system", "content": system}, user]
    whole = reference.prompt(messages).token_ids.tolist()
    assert whole[: len(opening)] == list(opening)
    assert whole[len(opening) + tokens :] == list(closing.token_ids)


def test_one_frame_is_a_picture_in_a_prompt(reference: Engine) -> None:
    """The answer over a stream of one frame is the engine's own over that picture."""
    text, frame = "Which land does the tent stand on?", picture(56, 56, seed=1)
    with reference.stream() as stream:
        stream.push(frame)
        found = stream.prefill(text)
    assert largest_error(found, reference.prefill([reference.add(frame), text], "full").logits) < 1e-4

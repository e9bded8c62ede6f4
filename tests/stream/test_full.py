"""A stream that keeps everything answers as one forward over the whole turn does."""

import pytest
import torch

from benchmarks.stream.methods.full import FullAttention
from emblema.errors import UnsupportedModelError
from tests.engine.engines import engine, largest_error
from tests.families import CASES, words
from tests.stream.plain import plain_logits, shown

UNREADABLE = {
    **dict.fromkeys(
        ("mistral3", "gemma3", "gemma4", "gemma4_unified", "lfm2_vl", "lfm3_vl"),
        "sees its last",
    ),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "keeps a state"),
    "gemma4_shared": "attends the rows of another layer",
    **dict.fromkeys(("aya_vision", "cohere2_vision", "exaone4_5"), "sees its last"),
    **dict.fromkeys(("ovis2", "ernie4_5_vl"), "markers of pictures are media tokens"),
}
"""Why a family's model cannot read a memory."""
QUESTION = tuple(words(5, 3).tolist())


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNREADABLE])
def test_full_attention_is_one_forward_over_the_turn(name: str) -> None:
    made, frames = engine(name), shown(name, 11)
    with made.stream(FullAttention, template=False, window=2, block=3, sinks=1) as stream:
        stream.push(frames)
        turn = stream.turn
        expected = plain_logits(made, turn.opening, frames, turn.question(QUESTION).token_ids)
        assert largest_error(stream.prefill(QUESTION), expected) < 1e-4
        # Without the far frames the answer is another one: the test could fail.
        assert largest_error(stream.prefill(QUESTION, window=3), expected) > 1e-2


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_model_that_cannot_read_a_memory_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=UNREADABLE[name]):
        engine(name).stream(FullAttention, template=False)


def test_frame_by_frame_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    made, frames = engine("qwen2_5_vl"), shown("qwen2_5_vl", 11)
    answers = []
    for rows in (made.adapter.block_rows, 8):
        monkeypatch.setattr(type(made.adapter), "block_rows", rows)
        with made.stream(FullAttention, template=False, window=2, block=4) as stream:
            for frame in frames:
                stream.push(frame)
            answers.append(stream.prefill(QUESTION))
    assert largest_error(answers[1], answers[0]) < 1e-5


def test_a_past_moment_is_as_it_was() -> None:
    made, frames = engine("qwen2_5_vl"), shown("qwen2_5_vl", 9)
    with made.stream(FullAttention, template=False, window=2, block=2) as stream:
        stream.push(frames[:5], at=[0, 1, 2, 3, 4])
        then = stream.prefill(QUESTION)
        stream.push(frames[5:], at=[10, 11, 12, 13])
        assert largest_error(stream.prefill(QUESTION, at=5.0), then) < 1e-5
        assert largest_error(stream.prefill(QUESTION), then) > 1e-2


def test_the_model_is_left_as_it_was() -> None:
    made = engine("qwen2_5_vl")
    before = made.adapter.config._attn_implementation
    with made.stream(FullAttention, template=False) as stream:
        stream.push(shown("qwen2_5_vl", 2))
        pieces = stream.ask(QUESTION, stream=True, max_new_tokens=3)
        next(pieces)
        assert made.adapter.config._attn_implementation == before
        assert torch.isfinite(stream.prefill(QUESTION)).all()

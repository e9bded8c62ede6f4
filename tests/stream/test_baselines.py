"""The other memories: each is full attention where it can see everything, and says what it holds."""

from typing import Any

import pytest
import torch

from benchmarks.stream.methods import METHODS
from benchmarks.stream.methods.rekv import Rekv, RekvByAttention, RekvByRanks
from benchmarks.stream.methods.saliency import saliency
from emblema.stream.method import Query, Selection, VisibleRange
from emblema.stream.mosaic.frame_memory import FrameMemory
from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import plain_logits, shown

QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 2, "block": 4, "sinks": 1, "template": False}


class Late(FrameMemory):
    """The package's memory, whose frames retrieve nothing while they are encoded."""

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        return super().read(layer, query, visible) if query.purpose == "question" else Selection()


@pytest.mark.parametrize("positions", ["native", "packed"])
@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_nocache_that_samples_everything_is_full_attention(name: str, positions: str) -> None:
    made, frames = engine(name), shown(name, 7)
    with made.stream(METHODS["nocache"], **{**SMALL, "positions": positions, "budget": 9}) as stream:
        stream.push(frames)
        turn = stream.turn
        expected = plain_logits(made, turn.opening, frames, turn.question(QUESTION).token_ids)
        assert largest_error(stream.prefill(QUESTION), expected) < 1e-4


def test_nocache_is_a_turn_of_the_frames_that_it_samples() -> None:
    made, frames = engine("qwen2_5_vl"), shown("qwen2_5_vl", 22)
    with made.stream(METHODS["nocache"], **{**SMALL, "budget": 2, "positions": "packed"}) as stream:
        stream.push(frames)
        reply = stream.ask(QUESTION, max_new_tokens=1)
        # A sink, two retrieved, two of the window and two of the block under way: as many as the others see.
        assert [moment.frame for moment in reply.moments] == [0, 4, 7, 10, 14, 18, 21]
        sampled = [frames[moment.frame] for moment in reply.moments]
        turn = stream.turn
        expected = plain_logits(made, turn.opening, sampled, turn.question(QUESTION).token_ids)
        assert largest_error(stream.prefill(QUESTION), expected) < 1e-4


@pytest.mark.parametrize("name", ["qwen2_5_vl", "kimi_k25"])
@pytest.mark.parametrize("method", ["rekv", "livevlm", "streammem", "sliding", "mosaic"])
def test_what_fits_in_the_window_needs_no_memory(method: str, name: str) -> None:
    made, frames = engine(name), shown(name, 4)
    with made.stream(METHODS[method], **{**SMALL, "window": 4}) as stream:
        stream.push(frames)
        turn = stream.turn
        expected = plain_logits(made, turn.opening, frames, turn.question(QUESTION).token_ids)
        assert largest_error(stream.prefill(QUESTION), expected) < 1e-4
        # Behind more frames it is asked, and the answer is a real one.
        stream.push(shown(name, 12))
        later = stream.prefill(QUESTION)
        assert torch.isfinite(later).all() and largest_error(later, expected) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5_vl", "kimi_k25"])
@pytest.mark.parametrize("positions", ["native", "packed"])
def test_rekv_that_retrieves_everything_sees_what_full_retrieval_sees(positions: str, name: str) -> None:
    """Behind the same sliding window, all frames by pooled queries are all frames by ranks."""
    answers = []
    for method in (Rekv, Late):
        with engine(name).stream(method, **{**SMALL, "positions": positions, "budget": 40}) as stream:
            stream.push(shown(name, 27))
            answers.append(stream.prefill(QUESTION))
            assert len(stream.ask(QUESTION, max_new_tokens=1).moments) == 21
    assert largest_error(answers[0], answers[1]) < 1e-4


def test_a_memory_of_fixed_size_stays_so() -> None:
    held = []
    for count in (16, 32):
        with engine("qwen2_5_vl").stream(METHODS["streammem"], **{**SMALL, "budget": 3}) as stream:
            stream.push(shown("qwen2_5_vl", count))
            held.append(stream.bytes.device["rows"])
    assert held[0] == held[1] > 0


def test_livevlm_holds_half_of_what_rekv_does() -> None:
    held = {}
    for method in ("rekv", "livevlm"):
        with engine("qwen2_5_vl").stream(METHODS[method], **SMALL) as stream:
            stream.push(shown("qwen2_5_vl", 20))
            held[method] = stream.bytes.host["rows"]
            assert torch.isfinite(stream.prefill(QUESTION)).all()
    assert held["livevlm"] * 2 == held["rekv"]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "full"])
def test_a_question_about_the_past_knows_nothing_of_what_came_since(method: str) -> None:
    """Two streams that part after frame 18: asked about frame 9, they give the same answer."""
    made, frames = engine("qwen2_5_vl"), shown("qwen2_5_vl", 18)
    answers = []
    for seed in (100, 200):
        with made.stream(METHODS[method], **{**SMALL, "budget": None if method != "streammem" else 4}) as stream:
            stream.push(frames)
            stream.push(shown("qwen2_5_vl", 2, seed=seed))
            answers.append((stream.prefill(QUESTION, at=9.0), stream.prefill(QUESTION)))
    assert largest_error(answers[0][0], answers[1][0]) < 1e-5
    assert largest_error(answers[0][1], answers[1][1]) > 1e-3


def test_saliency_is_attention() -> None:
    queries, keys = torch.randn(4, 3, 8), torch.randn(2, 5, 8)
    mass = saliency(queries, keys)
    assert mass.sum().item() == pytest.approx(12, rel=1e-5)
    by_hand = sum(torch.softmax(queries[head] @ keys[head // 2].T, -1).sum(0) for head in range(4))
    torch.testing.assert_close(mass, by_hand)


def test_rekv_by_ranks_is_mosaic_whose_frames_retrieve_nothing() -> None:
    made, frames = engine("qwen2_5_vl"), shown("qwen2_5_vl", 27)
    answers = []
    for method in (RekvByRanks, Late):
        with made.stream(method, **{**SMALL, "budget": 4}) as stream:
            stream.push(frames)
            answers.append(stream.prefill(QUESTION))
    assert answers[0].equal(answers[1])


def test_by_attention_is_the_most_that_a_query_gives_to_one_key() -> None:
    made, frames = engine("qwen2_5_vl"), shown("qwen2_5_vl", 27)
    with made.stream(RekvByAttention, **{**SMALL, "budget": 4}) as stream:
        stream.push(frames)
        stream.advance()
        memory = stream.memory
        assert isinstance(memory, RekvByAttention)
        states = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0))
        visible = VisibleRange(0, 27, 25)
        found = memory.read(1, Query(states, torch.zeros(3).long(), 1, 2, "question"), visible)
        keys = memory._by_head[1]
        exact = keys.of(torch.arange(keys.first, keys.first + keys.count))
        most = [
            torch.softmax((exact[:, :, head // 2] @ row).flatten(), 0).unflatten(0, (-1, keys.parts)).amax(1)
            for head in range(4)
            for row in states[head]
        ]
        best = {int(frame) + keys.first for frame in torch.stack(most).amax(0)[: 25 - keys.first].topk(4).indices}
        assert found.rows is not None and best <= set(found.rows.frames.tolist())

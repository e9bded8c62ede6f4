"""What a clustered memory may not change: the answer when everything is retrieved, batched or not, guessed or not."""

from typing import Any

import pytest
from torch import Tensor

from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import shown

QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 2, "block": 4, "sinks": 1, "first": 6, "largest": 4}


def answered(name: str, method: str, count: int = 27, **changes: Any) -> tuple[Tensor, dict[str, float]]:
    """Return logits after a stream, and what was counted."""
    with engine(name).stream(method, template=False, **{**SMALL, **changes}) as stream:
        for frame in shown(name, count):
            stream.push(frame)
        return stream.prefill(QUESTION), stream.counts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "kimi_k25_yarn"])
@pytest.mark.parametrize(("retrieval", "splitting"), [("frames", "deferred"), ("clusters", "eager")])
def test_retrieving_everything_is_full_attention(name: str, retrieval: str, splitting: str) -> None:
    every = {"retrieval": retrieval, "budget": None, "retrieve_while_encoding": True, "splitting": splitting}
    found, counts = answered(name, "mosaic", **every)
    assert largest_error(found, answered(name, "full")[0]) < 1e-4
    assert counts["fetches"] > 0 and (counts["clusters"] > 3) == (retrieval == "clusters")
    # A budget hides most of it, so that the test could fail.
    assert largest_error(answered(name, "mosaic", **{**every, "budget": 2})[0], found) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["native", "packed"])
@pytest.mark.parametrize("retrieving", [True, False])
def test_batched_is_frame_by_frame(positions: str, retrieving: bool) -> None:
    options = {"positions": positions, "retrieve_while_encoding": retrieving, "budget": 5}
    together, counts = answered("qwen2_5_vl", "mosaic", batched=True, **options)
    apart, single = answered("qwen2_5_vl", "mosaic", batched=False, **options)
    assert largest_error(apart, together) < 1e-4
    assert counts["visual_clusters"] == single["visual_clusters"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("retrieving", [True, False])
def test_cuts_of_a_question_wait_for_the_next_frames_and_are_the_same(retrieving: bool) -> None:
    wide = {"tau_small": 0.3, "tau_large": 0.6}
    frames, options = shown("qwen2_5_vl", 64), {**SMALL, **wide, "budget": 5, "retrieve_while_encoding": retrieving}
    with (
        engine("qwen2_5_vl").stream(template=False, **options) as later,
        engine("qwen2_5_vl").stream(template=False, **options) as once,
    ):
        waited = 0
        for start in range(0, len(frames), 4):
            for stream in (later, once):
                stream.push(frames[start : start + 4])
            for text in (QUESTION, QUESTION[2:]):
                before = later.counts["visual_cuts"]
                logits = [stream.prefill(text) for stream in (later, once)]
                assert logits[0].equal(logits[1])
                assert later.counts["visual_cuts"] == before
                # However many questions come, no frame waits twice.
                assert len(later.memory._due) <= len(later.memory.frames)
                once.settle()
                waited += once.counts["visual_cuts"] > before
        assert waited
        assert later.clusters == once.clusters and later.counts["visual_cuts"] == once.counts["visual_cuts"]


@pytest.mark.slow
@pytest.mark.parametrize("guess", ["queries", "frames"])
@pytest.mark.parametrize("positions", ["native", "packed"])
def test_prefetching_changes_no_bit(positions: str, guess: str) -> None:
    options = {"positions": positions, "retrieve_while_encoding": True, "budget": 5, "guess": guess}
    guessed, counts = answered("qwen2_5_vl", "mosaic", prefetch=True, **options)
    asked, plain = answered("qwen2_5_vl", "mosaic", prefetch=False, **options)
    assert guessed.equal(asked)
    assert counts["hits"] > 0 and plain["predicted"] == 0


@pytest.mark.parametrize("levels", ["visual", "semantic"])
def test_one_level_alone(levels: str) -> None:
    """Without the visual level all frames are one visual cluster; either way everything retrieved is everything."""
    every = {"retrieval": "clusters", "budget": None, "retrieve_while_encoding": True, "levels": levels}
    found, counts = answered("qwen2_5_vl", "mosaic", **every)
    assert largest_error(found, answered("qwen2_5_vl", "full")[0]) < 1e-4
    assert (counts["visual_clusters"] == 1) == (levels == "semantic")
    assert counts["semantic_cuts"] == 0 or levels == "semantic"


def test_without_a_window() -> None:
    every = {"representatives": False, "budget": None, "retrieve_while_encoding": True, "window": 0, "sinks": 0}
    found, _ = answered("qwen2_5_vl", "mosaic", **every)
    assert largest_error(found, answered("qwen2_5_vl", "full", window=0, sinks=0)[0]) < 1e-4


def test_long_blocks_run_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is longer than the adapter's rows at once goes through the decoder in several forwards."""
    options = {"retrieve_while_encoding": True, "budget": 5}
    whole, _ = answered("qwen2_5_vl", "mosaic", **options)
    monkeypatch.setattr(type(engine("qwen2_5_vl").adapter), "block_rows", 13)
    assert largest_error(answered("qwen2_5_vl", "mosaic", **options)[0], whole) < 1e-4

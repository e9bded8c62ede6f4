"""What a memory may not change: the answer when everything is retrieved, in one forward or several, guessed or not."""

from typing import Any

import pytest
from torch import Tensor

from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.mosaic.paper import PaperMosaic
from tests.engine.engines import engine, largest_error
from tests.families import words
from tests.stream.plain import plain_logits, shown

QUESTION = tuple(words(5, 3).tolist())
SMALL: dict[str, Any] = {"window": 2, "block": 4, "sinks": 1}


class Visual(PaperMosaic):
    def __init__(self, context: Any) -> None:
        super().__init__(context, levels="visual")


class Semantic(PaperMosaic):
    def __init__(self, context: Any) -> None:
        super().__init__(context, levels="semantic")


class Prefetching(FrameMemory):
    prefetches = True


def answered(name: str, method: Any = "mosaic", count: int = 27, **changes: Any) -> tuple[Tensor, dict[str, float]]:
    """Return logits after a stream, and what was counted."""
    with engine(name).stream(method, template=False, **{**SMALL, **changes}) as stream:
        for frame in shown(name, count):
            stream.push(frame)
        return stream.prefill(QUESTION), stream.counts


def whole(name: str, count: int = 27) -> Tensor:
    """Return logits of one forward over all frames."""
    made = engine(name)
    with made.stream(template=False) as stream:
        stream.push(shown(name, 1))
        turn = stream.turn
    return plain_logits(made, turn.opening, shown(name, count), turn.question(QUESTION).token_ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v", "kimi_k25_yarn"])
@pytest.mark.parametrize("method", ["mosaic", "mosaic-paper"])
def test_retrieving_everything_is_full_attention(name: str, method: str) -> None:
    found, counts = answered(name, method, budget=None)
    assert largest_error(found, whole(name)) < 1e-4
    assert counts["fetches"] > 0 and (counts.get("clusters", 0) > 3) == (method == "mosaic-paper")
    # A budget hides most of it, so that the test could fail.
    assert largest_error(answered(name, method, budget=2)[0], found) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["native", "packed"])
@pytest.mark.parametrize("method", ["mosaic", "mosaic-paper"])
def test_long_blocks_run_in_runs(method: str, positions: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is longer than the adapter's rows at once goes through the decoder in several forwards."""
    options = {"positions": positions, "budget": 9}
    together, counts = answered("qwen2_5_vl", method, **options)
    for rows in (13, 8):
        monkeypatch.setattr(type(engine("qwen2_5_vl").adapter), "block_rows", rows)
        apart, several = answered("qwen2_5_vl", method, **options)
        assert largest_error(apart, together) < 1e-4
        assert counts.get("visual_clusters") == several.get("visual_clusters")


@pytest.mark.slow
@pytest.mark.parametrize("positions", ["native", "packed"])
def test_prefetching_changes_no_bit(positions: str) -> None:
    options = {"positions": positions, "budget": 5}
    guessed, counts = answered("qwen2_5_vl", Prefetching, **options)
    asked, plain = answered("qwen2_5_vl", **options)
    assert guessed.equal(asked)
    assert counts["hits"] > 0 and plain["predicted"] == 0


@pytest.mark.parametrize("method", [Visual, Semantic])
def test_one_level_alone(method: type[PaperMosaic]) -> None:
    """Without the visual level all frames are one visual cluster; either way everything retrieved is everything."""
    found, counts = answered("qwen2_5_vl", method, budget=None)
    assert largest_error(found, whole("qwen2_5_vl")) < 1e-4
    assert (counts["visual_clusters"] == 1) == (method is Semantic)


@pytest.mark.parametrize("method", ["mosaic", "mosaic-paper"])
def test_without_a_window(method: str) -> None:
    found, _ = answered("qwen2_5_vl", method, budget=None, window=0, sinks=0)
    assert largest_error(found, whole("qwen2_5_vl")) < 1e-4

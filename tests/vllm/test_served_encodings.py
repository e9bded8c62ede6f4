"""Encoder outputs of kept pictures: vLLM's vision tower does not run a second time, and answers stay what they were."""

from collections.abc import Callable
from typing import Any

import pytest

TOLERANCE = 1e-5


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("qwen2.5-vl", marks=pytest.mark.cells),
        "qwen3-vl",
        pytest.param("llava-onevision", marks=pytest.mark.nightly),
    ],
)
def subject(request, subjects: Callable[[str], Any]) -> Any:
    return subjects(request.param)


@pytest.fixture(scope="module")
def served(bench, subject, tmp_path_factory) -> Any:
    return bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)


@pytest.fixture
def encoded(served, monkeypatch) -> list[int]:
    """How many pictures the tower was given, call by call."""
    runner = served.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    calls: list[int] = []
    stock = runner.model.embed_multimodal

    def counting(**inputs: Any) -> Any:
        outputs = stock(**inputs)
        calls.append(len(outputs))
        return outputs

    monkeypatch.setattr(runner.model, "embed_multimodal", counting)
    return calls


def forget(served: Any) -> None:
    """What vLLM itself remembers, emptied."""
    served.settle()
    served.forget_prefixes()
    served.llm.llm_engine.reset_encoder_cache()


def test_a_kept_picture_is_not_encoded_again(served, subject, encoded) -> None:
    given = subject.prompt(3, seed=1)
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    # A chunk may be prefilled alone by then, with an encoder output of its own.
    assert 3 <= sum(encoded) <= 6
    forget(served)
    before = served.ask(given.token_ids, given.pictures, {"strategy": "mpic-4"})
    encoded.clear()
    for strategy, wanted in (("mpic-4", before), ("full", plain), ("mpic-32", None), ("blind", None)):
        forget(served)
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        assert (answer.report["linked_tokens"] > 0) == (strategy != "full")
        if wanted is not None:
            assert float((answer.logits - wanted.logits).abs().max()) <= TOLERANCE, strategy
    assert encoded == []


def test_a_new_picture_beside_kept_ones_is_encoded_alone(served, subject, encoded) -> None:
    known, given = subject.prompt(2, seed=2), subject.prompt(3, seed=2)
    served.ask(known.token_ids, known.pictures)
    forget(served)
    encoded.clear()
    wanted = served.ask(given.token_ids, given.pictures, {"strategy": "full", "capture": False}, tokens=3)
    assert sum(encoded) == 1
    # Every picture encoded afresh, under a salt that knows none.
    forget(served)
    encoded.clear()
    fresh = served.ask(given.token_ids, given.pictures, {"strategy": "full", "capture": False}, tokens=3, salt="other")
    assert sum(encoded) == 3
    assert float((wanted.logits - fresh.logits).abs().max()) <= TOLERANCE and wanted.tokens == fresh.tokens


def test_a_picture_that_comes_twice_is_handed_over_once(served, subject, encoded) -> None:
    given = subject.prompt(2, seed=3)
    given = type(given)(subject, given.texts, [given.pictures[0]] * 2)
    wanted = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    forget(served)
    encoded.clear()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert encoded == [] and float((answer.logits - wanted.logits).abs().max()) <= TOLERANCE


def test_a_chunk_that_is_gone_is_encoded_again(served, subject, encoded) -> None:
    given = subject.prompt(2, seed=4)
    wanted = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    forget(served)
    view = served.store.tenant()
    for chunk in view.ids():
        view.delete(chunk)
    encoded.clear()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert sum(encoded) == 2
    assert float((answer.logits - wanted.logits).abs().max()) <= TOLERANCE

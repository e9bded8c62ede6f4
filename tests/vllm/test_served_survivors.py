"""Conversations whose pictures leave: what stays keeps its rows, as with the embedded engine, where a request asks."""

from typing import Any

import pytest
import torch

from emblema import Engine, Policy

TOLERANCE = 1e-4
SHOWN = [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (2, 4, 5, 6), (2, 4, 5, 6)]
KEEP = {"strategy": "auto", "survivors": "keep"}


@pytest.fixture(scope="module", params=["qwen2.5-vl", "llava-next"])
def subject(request: pytest.FixtureRequest, subjects: Any) -> Any:
    return subjects(request.param)


@pytest.fixture(scope="module")
def served(bench: Any, subject: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)


def error(answer: Any, wanted: torch.Tensor) -> float:
    return float((answer.logits - wanted).abs().max())


def test_what_stays_is_taken_in_its_place(served: Any, subject: Any) -> None:
    given = subject.prompt(7, seed=5)
    engine = Engine.load(subject.folder, dtype=torch.float32, policy=Policy.quiet())
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    encoded = [engine.encode(picture) for picture in given.pictures]
    for turn, order in enumerate(SHOWN):
        shown = given.only(*order)
        answer = served.ask(shown.token_ids, shown.pictures, KEEP)
        parts = shown.parts([encoded[place] for place in order])
        own = engine.prefill(parts, "auto", template=False, survivors="keep")
        wanted = torch.log_softmax(own.logits, -1)
        assert error(answer, wanted) <= TOLERANCE, (turn, answer.report)
        if turn == 0:
            assert answer.report["linked_tokens"] == 0 and "kept" in answer.report["remark"]
            continue
        assert answer.report["strategy"] == "auto:survivor"
        full = torch.log_softmax(engine.prefill(parts, "full", template=False).logits, -1)
        assert turn in (0, 4) or error(answer, full) > 10 * TOLERANCE, "nothing else was shown"
        new = set(order) - set(SHOWN[turn - 1])
        kept = sum(chunk.tokens for chunk, place in zip(own.prompt.chunk_parts, order, strict=False))
        assert answer.cached >= kept * (4 - len(new)) // 4 - 40
    again = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert float((again.logits - plain.logits).abs().max()) <= 2e-5, "plain requests are stock vLLM's as before"

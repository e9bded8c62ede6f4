"""Conversations whose pictures leave: what stays keeps its rows, as with the embedded engine, where a request asks."""

from typing import Any

import pytest
import torch

from emblema import Engine, Policy
from emblema.served.kept_prompts import KeptPromptRows
from emblema.vllm.readings import LOST

TOLERANCE = 1e-4
SHOWN = [(0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (2, 4, 5, 6), (2, 4, 5, 6)]
KEEP = {"strategy": "auto", "survivors": "keep"}


@pytest.fixture(scope="module", params=["qwen2.5-vl", "llava-next"])
def subject(request: pytest.FixtureRequest, subjects: Any) -> Any:
    return subjects(request.param)


@pytest.fixture(scope="module", params=[{}, {"max_num_batched_tokens": 96, "max_num_seqs": 2}], ids=["", "small steps"])
def served(request: pytest.FixtureRequest, bench: Any, subject: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """With small steps a prompt's pictures do not all fit into the encoder's cache."""
    return bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary, **request.param)


def error(answer: Any, wanted: torch.Tensor) -> float:
    return float((answer.logits - wanted).abs().max())


def test_what_stays_is_taken_in_its_place(served: Any, subject: Any) -> None:
    given = subject.prompt(7, seed=5)
    engine = Engine.load(subject.folder, dtype=torch.float32, policy=Policy.quiet())
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"}, salt="plain")
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
    again = served.ask(given.token_ids, given.pictures, {"strategy": "full"}, salt="plain")
    assert float((again.logits - plain.logits).abs().max()) <= 2e-5, "plain requests are stock vLLM's as before"


def test_what_the_encoder_made_is_not_there(served: Any, subject: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is computed in full then, and the next one finds what that left."""
    given = subject.prompt(6, seed=9)
    turns = [given.only(*order) for order in ((0, 1, 2), (1, 2, 3), (2, 3, 4))]
    served.ask(turns[0].token_ids, turns[0].pictures, KEEP, salt="lost")
    plain = served.ask(turns[1].token_ids, turns[1].pictures, {"strategy": "full"}, salt="lost")
    served.forget_prefixes()
    with monkeypatch.context() as patch:
        patch.setattr(KeptPromptRows, "encoding", lambda self, chunk: None)
        answer = served.ask(turns[1].token_ids, turns[1].pictures, KEEP, salt="lost")
    assert answer.report["remark"] == LOST and answer.report["linked_tokens"] == 0
    assert float((answer.logits - plain.logits).abs().max()) <= 2e-5
    later = served.ask(turns[2].token_ids, turns[2].pictures, KEEP, salt="lost")
    assert later.report["strategy"] == "auto:survivor" and later.report["linked_tokens"] > 0

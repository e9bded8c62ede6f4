"""Pages of 8 bits: what is linked is as near to the embedded engine as vLLM's own pages of 8 bits are to full ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.vllm.pages import Pages

FAMILIES = ("qwen2.5-vl", "llava-onevision", pytest.param("qwen3-vl", marks=pytest.mark.slow))
STRATEGIES = ("blind", "mpic-4", "mpic-32", "patch-4096")
PICTURES = (1, 2, 3, 8)
MOST = 2.0
"""How far a linked prompt may be from the embedded engine's, in stock vLLM's own error on the same prompts."""


def reference(engine: Engine, given: Any, strategy: str) -> Tensor:
    chunks = [engine.add(picture) for picture in given.pictures]
    return torch.log_softmax(engine.prefill(given.parts(chunks), strategy, template=False).logits, -1)


def error(answer: Any, wanted: Tensor) -> float:
    """Root of the mean square over the vocabulary: the largest alone is one draw of noise."""
    return float((answer.logits - wanted).square().mean().sqrt())


@pytest.fixture(scope="module", params=FAMILIES)
def quantised(request: Any, bench: Any, subjects: Any, tmp_path_factory: Any) -> Iterator[tuple[Any, Any, Engine, Any]]:
    """A subject, a server with pages of 8 bits that has seen its prompts twice, the engine, and stock's errors."""
    subject = subjects(request.param)
    engine = Engine.load(subject.folder, dtype=torch.float32)
    prompts = {count: subject.prompt(count, seed=count) for count in PICTURES}
    stock = bench.serve(subject.folder, None, subject.vocabulary, kv_cache_dtype="fp8")
    plain = {count: stock.ask(given.token_ids, given.pictures) for count, given in prompts.items()}
    own = {count: error(plain[count], reference(engine, given, "full")) for count, given in prompts.items()}
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary, kv_cache_dtype="fp8")
    for count, given in prompts.items():
        for _ in range(2):
            served.forget_prefixes()
            answer = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
            served.settle()
            if not answer.report["linked_tokens"]:
                assert torch.equal(answer.logits, plain[count].logits), "a plain request is stock vLLM's"
    yield subject, served, engine, own


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_linked_prompts_are_as_exact_as_the_pages(quantised: Any, strategy: str, record_property: Any) -> None:
    subject, served, engine, own = quantised
    for count in PICTURES:
        served.forget_prefixes()
        given = subject.prompt(count, seed=count)
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        assert answer.report["linked_tokens"] > 0 and answer.report["strategy"] == strategy
        off = error(answer, reference(engine, given, strategy))
        record_property(f"{subject.name} {count} {strategy}", off / own[count])
        assert off <= MOST * own[count], (count, off, own[count])


def test_zeroed_values_change_the_answer(quantised: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, served, _, own = quantised
    given, write = subject.prompt(3, seed=3), Pages.write

    def zeroed(pages: Pages, layer: int, slots: Any, rows: Any) -> None:
        write(pages, layer, slots, type(rows)(rows.keys, torch.zeros_like(rows.values)))

    served.forget_prefixes()
    linked = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    monkeypatch.setattr(Pages, "write", zeroed)
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert answer.report["linked_tokens"] > 0 and error(answer, linked.logits) > MOST * own[3]


def test_stores_of_other_pages_are_never_mixed(bench: Any, subjects: Any, tmp_path: Path) -> None:
    subject = subjects("qwen2.5-vl")
    given = subject.prompt(2, seed=5)
    for kind, stored in (("fp8", False), ("auto", False), ("fp8_e5m2", False), ("fp8_e4m3", True)):
        served = bench.serve(subject.folder, tmp_path, subject.vocabulary, kv_cache_dtype=kind)
        answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
        assert (answer.report["linked_tokens"] > 0) == stored, kind
        served.settle()

"""Quantised weights: what is linked is as near to the embedded engine as stock vLLM's own answers are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from emblema import Engine
from tests.vllm.quantised_models import KINDS, quantise
from tests.vllm.test_served_quantised import MOST, errors, reference

PICTURES = (1, 2, 3)
STRATEGIES = ("blind", "mpic-4")


@pytest.fixture(scope="module")
def store(tmp_path_factory: Any) -> Path:
    """A folder that all servers share."""
    folder: Path = tmp_path_factory.mktemp("store")
    return folder


@pytest.fixture(scope="module", params=KINDS)
def quantised(
    request: Any, bench: Any, subjects: Any, store: Path, tmp_path_factory: Any
) -> Iterator[tuple[Any, Any, Engine, Any]]:
    """A subject, a server of its quantised weights that knows its pictures, the engine, and stock's errors."""
    subject = subjects("qwen2.5-vl")
    coded, meant = quantise(subject.folder, request.param, tmp_path_factory.mktemp("quantised") / "model")
    kind = "bfloat16" if request.param != "int8" else "float32"
    prompts = {count: subject.prompt(count, seed=count) for count in PICTURES}
    with Engine.load(meant, anchor=None, dtype=torch.float32) as engine:
        stock = bench.serve(coded, None, subject.vocabulary, dtype=kind)
        assert stock.llm.llm_engine.vllm_config.quant_config is not None
        plain = {count: stock.ask(given.token_ids, given.pictures) for count, given in prompts.items()}
        own = {count: errors(plain[count], reference(engine, given, "full")) for count, given in prompts.items()}
        served = bench.serve(coded, store, subject.vocabulary, dtype=kind)
        for count, given in prompts.items():
            served.forget_prefixes()
            answer = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
            assert not answer.report["stored"], "what other weights made is not this model's"
            served.settle()
            assert torch.equal(answer.logits, plain[count].logits), "a plain request is stock vLLM's"
        yield subject, served, engine, own


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_linked_prompts_are_as_exact_as_the_weights(quantised: Any, strategy: str, record_property: Any) -> None:
    subject, served, engine, own = quantised
    for count in PICTURES:
        served.forget_prefixes()
        given = subject.prompt(count, seed=count)
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        assert answer.report["linked_tokens"] > 0 and answer.report["strategy"] == strategy
        found = errors(answer, reference(engine, given, strategy))
        ratios = [off / bar for off, bar in zip(found, own[count], strict=True)]
        record_property(f"{count} {strategy}", ratios)
        assert max(ratios) <= MOST, count

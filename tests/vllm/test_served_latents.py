"""Latents (MLA): one tensor of latent and rotary key, as DeepSeek's decoders keep it, behind a model with pictures."""

from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.served.staging import StagedRows
from tests.vllm.zeroed_rows import zeroing

FAMILIES = ("deepseek-v2", pytest.param("deepseek-v3", marks=pytest.mark.nightly))
"""The second has its rotary keys sorted by halves in transformers, and not in vLLM."""
STRATEGIES = ("blind", "mpic-4", "mpic-32", "patch-4096")
PICTURES = (1, 2, 3, 8)


def reference(engine: Engine, given: Any, strategy: str) -> Tensor:
    chunks = [engine.add(picture) for picture in given.pictures]
    return torch.log_softmax(engine.prefill(given.parts(chunks), strategy, template=False).logits, -1)


def error(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def decoded(served: Any, given: Any, tokens: list[int]) -> Tensor:
    """Stock vLLM's log-probabilities after a prompt and some tokens, which it decodes one by one."""
    steps = served.params(tokens=len(tokens) + 1)
    prompt = {"prompt_token_ids": list(given.token_ids), "multi_modal_data": {"image": list(given.pictures)}}
    (output,) = served.llm.generate([prompt], steps, use_tqdm=False)
    assert list(output.outputs[0].token_ids[: len(tokens)]) == tokens
    logits = torch.full((served.vocabulary,), float("-inf"))
    for token, entry in output.outputs[0].logprobs[len(tokens)].items():
        logits[token] = entry.logprob
    return logits


@pytest.fixture(scope="module", params=FAMILIES)
def latents(request: Any, bench: Any, subjects: Any, tmp_path_factory: Any) -> tuple[Any, Any, Engine, float]:
    """A subject, a server that has seen its prompts twice, the engine, and how far stock decoding is from prefill."""
    subject = subjects(request.param)
    engine = Engine.load(subject.folder, anchor=None, dtype=torch.float32)
    stock, noise, plain = bench.serve(subject.folder, None, subject.vocabulary), 0.0, {}
    for count in PICTURES:
        given = subject.prompt(count, seed=count)
        plain[count] = stock.ask(given.token_ids, given.pictures).logits
        tokens = stock.ask(given.token_ids, given.pictures, tokens=8).tokens[:7]
        prefilled = stock.ask([*given.token_ids, *tokens], given.pictures).logits
        noise = max(noise, error(prefilled, decoded(stock, given, tokens)))
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)
    for count in PICTURES:
        given = subject.prompt(count, seed=count)
        for _ in range(2):
            answer = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
            served.settle()
            if not answer.report["linked_tokens"]:
                assert torch.equal(answer.logits, plain[count]), "a plain request is stock vLLM's"
    return subject, served, engine, noise


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_linked_prompts_agree(latents: Any, strategy: str, record_property: Any) -> None:
    """Within twice what stock vLLM's decoding differs from its prefill."""
    subject, served, engine, noise = latents
    record_property(f"{subject.name} noise", noise)
    for count in PICTURES:
        given = subject.prompt(count, seed=count)
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        assert answer.report["linked_tokens"] > 0 and answer.report["strategy"] == strategy
        off = error(answer.logits, reference(engine, given, strategy))
        record_property(f"{subject.name} {count} {strategy}", off)
        assert off <= 2 * noise, (count, off, noise)
        if strategy == "blind":
            assert error(answer.logits, reference(engine, given, "full")) > 300 * noise


@pytest.mark.parametrize("part", ["keys", "values"])
def test_zeroed_rows_change_the_answer(latents: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: latents (`keys`), or rotary keys (`values`), written as zeros."""
    subject, served, engine, noise = latents
    given = subject.prompt(3, seed=3)
    monkeypatch.setattr(StagedRows, "write", zeroing(part))
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert answer.report["linked_tokens"] > 0
    assert error(answer.logits, reference(engine, given, "blind")) >= 50 * noise

"""One plan, two engines: vLLM answers over linked chunks as the embedded engine does with the same plan."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from tests.vllm.plans import Mixed

TOLERANCE = 1e-5
FAMILIES = ("qwen2.5-vl", "qwen3-vl", "llava-onevision")
BUNDLED = ("reference", "reference-deepstack")
STRATEGIES = ("blind", "mpic-4", "mpic-32")


@pytest.fixture(scope="module", params=[*FAMILIES, *BUNDLED])
def both(request, bench, subjects, tmp_path_factory) -> tuple[Any, Any, Engine]:
    """A model in vLLM and in the embedded engine."""
    subject = subjects(request.param)
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)
    engine = Engine.load(subject.folder)
    if subject.name == "reference-deepstack":
        # vLLM drops these biases of a Qwen3-VL without a word; so that one model is compared with itself.
        with torch.no_grad():
            for layer in engine.adapter.layers:
                layer.self_attn.o_proj.bias.zero_()
    return subject, served, engine


def tolerance(logits: Tensor) -> float:
    """1e-5; in units of the largest logit where that is larger than one, as float32 rounds there."""
    return TOLERANCE * max(1.0, float(logits.abs().max()) / 10)


def reference(engine: Engine, given: Any) -> Callable[[str], Tensor]:
    chunks = [engine.add(picture) for picture in given.pictures]

    def logits(strategy: str) -> Tensor:
        return torch.log_softmax(engine.prefill(given.parts(chunks), strategy, template=False).logits, -1)

    return logits


def error(answer: Any, wanted: Tensor) -> float:
    return float((answer.logits - wanted).abs().max())


@pytest.mark.parametrize("pictures", [1, 2, 8])
def test_linked_prompts_agree(both, pictures: int, record_property) -> None:
    subject, served, engine = both
    given = subject.prompt(pictures, seed=pictures)
    wanted = reference(engine, given)
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert error(plain, wanted("full")) <= tolerance(wanted("full"))
    served.settle()
    for strategy in STRATEGIES:
        served.forget_prefixes()
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        assert error(answer, wanted(strategy)) <= tolerance(wanted(strategy)), strategy
        record_property(f"{subject.name} {pictures} {strategy}", error(answer, wanted(strategy)))
        plan = engine.prefill(given.parts([engine.add(one) for one in given.pictures]), strategy, template=False)
        assert answer.told["linked_tokens"] == answer.cached == plan.usage.cached_tokens
        if strategy == "blind":
            # Otherwise nothing was shown: reuse without repair is far from plain prefill.
            assert error(answer, wanted("full")) > 300 * TOLERANCE


def test_a_mix_of_stored_and_new_pictures(both) -> None:
    subject, served, engine = both
    given = subject.prompt(4, seed=40)
    known = given.only(0, 2)
    served.ask(known.token_ids, known.pictures)
    served.settle()
    for strategy in ("blind", "mpic-4"):
        served.forget_prefixes()
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy, "capture": False})
        parts = given.parts([engine.add(one) for one in given.pictures])
        linker, prompt = engine._linker, engine.prompt(parts, template=False)
        chunks = [chunk.id for _, chunk in prompt.chunk_segments]
        mixed = Mixed(strategy, frozenset((chunks[1], chunks[3])))
        wanted = torch.log_softmax(linker.link(prompt, mixed).linked.logits, -1)
        assert answer.told["linked_tokens"] > 0
        assert error(answer, wanted) <= tolerance(wanted), strategy


def test_a_picture_that_comes_twice(both) -> None:
    subject, served, engine = both
    if subject.name in BUNDLED:
        pytest.skip("here plain vLLM and transformers themselves differ by 3e-5 in log-probabilities down to -23")
    given = subject.prompt(3, seed=45)
    given = type(given)(subject, given.texts, [given.pictures[0], given.pictures[1], given.pictures[0]])
    wanted = reference(engine, given)
    for strategy in ("mpic-4", "blind", "mpic-4", "patch-4096", "patch-4096"):
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        served.settle()
        # Empty pages and an empty encoder cache: gaps with rows of one picture twice are encoded once.
        served.forget_prefixes()
        served.llm.llm_engine.reset_encoder_cache()
        name = "full" if answer.told["strategy"] in ("plain", "patch-4096") else strategy
        assert error(answer, wanted(name)) <= tolerance(wanted(name)), strategy
    assert answer.told["strategy"] == "patch-4096"


def test_a_patch_of_full_rank_is_full_prefill(both) -> None:
    subject, served, engine = both
    given = subject.prompt(3, seed=50)
    wanted = reference(engine, given)("full")
    first = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    assert first.told["linked_tokens"] == 0 and error(first, wanted) <= tolerance(wanted)
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    assert answer.told["strategy"] == "patch-4096" and answer.told["linked_tokens"] == answer.cached > 0
    assert error(answer, wanted) <= tolerance(wanted)


def test_patches_serve_behind_another_opening(both) -> None:
    """Positions move; a patch is found by the chunks in front alone."""
    subject, served, _ = both
    given = subject.prompt(2, seed=60)
    served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    served.settle()
    longer = type(given)(subject, [subject.text(37, 61) + given.texts[0], *given.texts[1:]], given.pictures)
    patched, blind, plain = (
        served.ask(longer.token_ids, longer.pictures, {"strategy": name, "capture": False})
        for name in ("patch-4096", "blind", "full")
    )
    assert patched.told["linked_tokens"] > 0
    assert error(patched, plain.logits) < error(blind, plain.logits)


def test_two_prompts_at_once(both) -> None:
    subject, served, engine = both
    first, second = subject.prompt(2, seed=70), subject.prompt(3, seed=71, lead=17)
    served.ask_all([(one.token_ids, one.pictures) for one in (first, second)])
    served.settle()
    served.forget_prefixes()
    answers = served.ask_all([(one.token_ids, one.pictures) for one in (first, second)], {"strategy": "mpic-4"})
    for answer, given in zip(answers, (first, second), strict=True):
        wanted = reference(engine, given)("mpic-4")
        assert answer.told["linked_tokens"] > 0 and error(answer, wanted) <= tolerance(wanted)


def test_decoding_goes_on_over_linked_pages(both) -> None:
    subject, served, engine = both
    given = subject.prompt(2, seed=80)
    served.ask(given.token_ids, given.pictures)
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"}, tokens=6)
    assert answer.told["linked_tokens"] > 0
    chunks = [engine.add(picture) for picture in given.pictures]
    tokens: list[int] = []
    for _ in range(6):
        # Greedy, over the same linked table as it grows.
        parts = given.parts(chunks)
        logits = engine.prefill([*parts[:-1], parts[-1] + tokens], "blind", template=False).logits
        tokens.append(int(logits.argmax()))
    assert answer.tokens == tokens

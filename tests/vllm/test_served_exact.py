"""One plan, two engines: vLLM answers over linked chunks as the embedded engine does with the same plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.models import model_folder
from emblema import Engine
from emblema.session.requests import LinkRequest
from tests.vllm.plans import Mixed

TOLERANCE = 1e-5
YARDSTICK = 3e-5
MISSED = {"reference-mha": 2e-5}
"""Where a mix of stored and new pictures misses the bar, and what it stays within: 1.14e-5 was measured."""
FAMILIES = ("qwen2.5-vl", "qwen3-vl", "llava-onevision")
BUNDLED = ("reference", "reference-deepstack", "reference-mha")
STRATEGIES = ("blind", "mpic-4", "mpic-32")


@dataclass(frozen=True)
class Both:
    """A model in vLLM and in the embedded engine.

    Attributes:
        stock: what vLLM without the plugin says of each prompt.
        bar: 1e-5; or what stock vLLM's own prefill differs from transformers on the same prompts, where that is more.
        unsteady: prompts on which stock vLLM is further from transformers than `YARDSTICK`, and how far.
    """

    subject: Any
    served: Any
    engine: Engine
    stock: dict[str, Tensor]
    bar: float
    unsteady: dict[str, float]


def prompts(subject: Any) -> dict[str, Any]:
    """The prompts of these tests, by name."""
    return {
        **{f"pictures {count}": subject.prompt(count, seed=count) for count in (1, 2, 8)},
        "mix": subject.prompt(4, seed=40),
        "patch": subject.prompt(3, seed=50),
        "after": subject.prompt(3, seed=90),
        "first": subject.prompt(2, seed=70),
        "second": subject.prompt(3, seed=71, lead=17),
    }


@pytest.fixture(scope="module", params=[*FAMILIES, *BUNDLED])
def both(request, bench, subjects, tmp_path_factory) -> Both:
    subject = subjects(request.param)
    given = prompts(subject)
    plain = bench.serve(subject.folder, None, subject.vocabulary)
    stock = {name: plain.ask(prompt.token_ids, prompt.pictures).logits for name, prompt in given.items()}
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)
    engine = Engine.load(model_folder(subject.name) if subject.name == "reference-mha" else subject.folder)
    if subject.name == "reference-deepstack":
        # vLLM drops these biases of a Qwen3-VL without a word; so that one model is compared with itself.
        with torch.no_grad():
            for layer in engine.adapter.layers:
                layer.self_attn.o_proj.bias.zero_()
    full = {name: reference(engine, prompt)("full") for name, prompt in given.items()}
    apart = {name: float((stock[name] - full[name]).abs().max()) for name in given}
    # Trained models have log-probabilities down to -24, in steps of 2e-6.
    yardstick = YARDSTICK if subject.name in BUNDLED else TOLERANCE
    unsteady = {name: far for name, far in apart.items() if far > yardstick}
    assert len(unsteady) <= (1 if subject.name == "reference-mha" else 0), apart
    bar = max(TOLERANCE, *(far for name, far in apart.items() if name not in unsteady))
    return Both(subject, served, engine, stock, bar, unsteady)


def reference(engine: Engine, given: Any) -> Callable[[str], Tensor]:
    chunks = [engine.add(picture) for picture in given.pictures]

    def logits(strategy: str) -> Tensor:
        return torch.log_softmax(engine.prefill(given.parts(chunks), strategy, template=False).logits, -1)

    return logits


def error(answer: Any, wanted: Tensor) -> float:
    return float((answer.logits - wanted).abs().max())


@pytest.mark.parametrize("pictures", [1, 2, 8])
def test_linked_prompts_agree(both, pictures: int, record_property) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    name = f"pictures {pictures}"
    given = prompts(subject)[name]
    wanted = reference(engine, given)
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert error(plain, both.stock[name]) <= TOLERANCE
    served.settle()
    for strategy in STRATEGIES:
        served.forget_prefixes()
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        assert error(answer, wanted(strategy)) <= both.bar, strategy
        record_property(f"{subject.name} {pictures} {strategy}", error(answer, wanted(strategy)))
        plan = engine.prefill(
            given.parts([engine.add(picture) for picture in given.pictures]), strategy, template=False
        )
        assert answer.report["linked_tokens"] == answer.cached == plan.usage.cached_tokens
        if strategy == "blind":
            # Otherwise nothing was shown: reuse without repair is far from plain prefill.
            assert error(answer, wanted("full")) > 300 * TOLERANCE


def test_a_plain_request_after_linked_ones_is_stock_vllm(both) -> None:
    """No poisoning: the same prompt, with whatever linked requests left in vLLM's prefix cache."""
    subject, served = both.subject, both.served
    given = prompts(subject)["after"]
    for strategy in ("blind", "blind", "mpic-4", "patch-1", "patch-1"):
        linked = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        # The first is plain, as nothing is stored; so is the first that asks for a patch, as its own rows give it.
        served.settle()
        if not linked.report["linked_tokens"]:
            served.forget_prefixes()
            continue
        assert error(linked, both.stock["after"]) > 300 * TOLERANCE, strategy
        plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
        assert error(plain, both.stock["after"]) <= TOLERANCE, strategy
        # Nor do the plain request's exact pages stand in for the next one's.
        served.forget_prefixes()
    assert linked.report["strategy"] == "patch-1"


def test_a_mix_of_stored_and_new_pictures(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["mix"]
    known = given.only(0, 2)
    served.ask(known.token_ids, known.pictures)
    served.settle()
    for strategy in ("blind", "mpic-4"):
        served.forget_prefixes()
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy, "capture": False})
        parts = given.parts([engine.add(picture) for picture in given.pictures])
        linker, prompt = engine.session, engine.prompt(parts, template=False)
        chunks = [chunk.id for _, chunk in prompt.chunk_segments]
        mixed = Mixed(strategy, frozenset((chunks[1], chunks[3])))
        wanted = torch.log_softmax(linker.link(LinkRequest(prompt, mixed)).linked.logits, -1)
        assert answer.report["linked_tokens"] > 0
        off = error(answer, wanted)
        assert off <= MISSED.get(subject.name, both.bar), strategy
        if off > both.bar:
            pytest.xfail(f"missed: {off:.2e} against {both.bar:.1e}")


def test_a_picture_that_comes_twice(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    if subject.name == "reference":
        pytest.skip("rounding alone exceeds the bar here: stock vLLM is 1.7e-5 from transformers in float32")
    given = subject.prompt(3, seed=45)
    given = type(given)(subject, given.texts, [given.pictures[0], given.pictures[1], given.pictures[0]])
    wanted = reference(engine, given)
    for strategy in ("mpic-4", "blind", "mpic-4", "patch-4096", "patch-4096"):
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        served.settle()
        # Empty pages and an empty encoder cache: compute spans with rows of one picture twice are encoded once.
        served.forget_prefixes()
        served.llm.llm_engine.reset_encoder_cache()
        name = "full" if answer.report["strategy"] in ("plain", "patch-4096") else strategy
        assert error(answer, wanted(name)) <= both.bar, strategy
    assert answer.report["strategy"] == "patch-4096"


def test_a_patch_of_full_rank_is_full_prefill(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["patch"]
    wanted = reference(engine, given)("full")
    first = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    assert first.report["linked_tokens"] == 0 and error(first, wanted) <= both.bar
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    assert answer.report["strategy"] == "patch-4096" and answer.report["linked_tokens"] == answer.cached > 0
    assert error(answer, wanted) <= both.bar


def test_patches_serve_after_another_opening(both) -> None:
    """Positions move; a patch is found by the chunks before it alone."""
    subject, served = both.subject, both.served
    given = subject.prompt(2, seed=60)
    served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    served.settle()
    longer = type(given)(subject, [subject.text(37, 61) + given.texts[0], *given.texts[1:]], given.pictures)
    patched, blind, plain = (
        served.ask(longer.token_ids, longer.pictures, {"strategy": name, "capture": False})
        for name in ("patch-4096", "blind", "full")
    )
    assert patched.report["linked_tokens"] > 0
    assert error(patched, plain.logits) < error(blind, plain.logits)


def test_two_prompts_at_once(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    if "second" in both.unsteady:
        pytest.skip(f"stock vLLM is {both.unsteady['second']:.1e} from transformers on this prompt")
    first, second = prompts(subject)["first"], prompts(subject)["second"]
    served.ask_all([(prompt.token_ids, prompt.pictures) for prompt in (first, second)])
    served.settle()
    served.forget_prefixes()
    answers = served.ask_all(
        [(prompt.token_ids, prompt.pictures) for prompt in (first, second)], {"strategy": "mpic-4"}
    )
    for answer, given in zip(answers, (first, second), strict=True):
        wanted = reference(engine, given)("mpic-4")
        assert answer.report["linked_tokens"] > 0 and error(answer, wanted) <= both.bar


def test_decoding_goes_on_over_linked_pages(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = subject.prompt(2, seed=80)
    served.ask(given.token_ids, given.pictures)
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"}, tokens=6)
    assert answer.report["linked_tokens"] > 0
    chunks = [engine.add(picture) for picture in given.pictures]
    tokens: list[int] = []
    for _ in range(6):
        # Greedy, over the same linked table as it grows.
        parts = given.parts(chunks)
        logits = engine.prefill([*parts[:-1], parts[-1] + tokens], "blind", template=False).logits
        tokens.append(int(logits.argmax()))
    assert answer.tokens == tokens

"""One plan, two engines: vLLM answers over linked chunks as the embedded engine does with the same plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from emblema.session.requests import LinkRequest
from tests.vllm.plans import Mixed

TOLERANCE = 1e-5
YARDSTICK = {"bundled": 2e-5, "tiny": 1e-5}
"""How far stock vLLM may be from transformers: trained models have log-probabilities down to -24, in steps of 2e-6."""
MISSED = {("reference-deepstack", "plain patch"): 2.5e-5}
"""What misses a bar, by model and prompt, and how far it may. It is shown as missed, with how far both sides are from
float64: of this one vLLM is 1.7e-5 and transformers 6e-6."""
BUNDLED = ("reference", "reference-deepstack")
PARAMETERS = (
    pytest.param("qwen2.5-vl", marks=pytest.mark.cells),
    "reference",
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in ("qwen3-vl", "glm-4.6v", "llava-onevision", "llava-next")
    ),
    pytest.param("reference-deepstack", marks=pytest.mark.nightly),
)
STRATEGIES = ("blind", "mpic-4", "mpic-32")
NAMES = ("pictures 1", "pictures 2", "pictures 8", "mix", "patch", "after", "opened", "opened by two", "twice")
"""Of the prompts."""


@dataclass
class Both:
    """A model in vLLM and in the embedded engine.

    Attributes:
        stock: what vLLM without the plugin says of each prompt.
        apart: how far that is from transformers' full prefill, by prompt.
    """

    subject: Any
    served: Any
    engine: Engine
    stock: dict[str, Tensor]
    apart: dict[str, float]
    _precise: Engine | None = None

    def hold(self, name: str, answer: Any, wanted: Tensor, precise: Callable[[Engine], Tensor]) -> None:
        """Hold a linked prompt to its own prompt's plain error plus 1e-5.

        Args:
            name: of the prompt.
            answer: vLLM's.
            wanted: the embedded engine's with the same plan.
            precise: gives the same in float64 from an engine; asked only where the bar is missed.
        """
        off, bar = error(answer, wanted), self.apart[name] + TOLERANCE
        if off > bar:
            self.explain(name, off, bar, answer.logits, wanted, precise)

    def explain(
        self, name: str, off: float, bar: float, served: Tensor, wanted: Tensor, precise: Callable[[Engine], Tensor]
    ) -> None:
        """Say how far both sides are from float64.

        It is shown as missed where each side is within the bar, and so the processor's own rounding decides, or where
        it is known to be missed; otherwise it fails.
        """
        if self._precise is None:
            self._precise = load(self.subject, torch.float64)
        exact = precise(self._precise)
        sides = [float((logits.double() - exact).abs().max()) for logits in (served, wanted)]
        words = f"vLLM {sides[0]:.2e}, transformers {sides[1]:.2e}"
        found = f"{self.subject.name}, {name}: {off:.2e} against {bar:.2e}; from float64: {words}"
        if max(sides) <= bar or off <= MISSED.get((self.subject.name, name), 0.0):
            pytest.xfail(f"missed: {found}")
        pytest.fail(found)


def load(subject: Any, dtype: torch.dtype) -> Engine:
    """The embedded engine on a model, without what vLLM drops of it."""
    engine = Engine.load(subject.folder, anchor=None, dtype=dtype)
    if subject.name == "reference-deepstack":
        # vLLM drops these biases of a Qwen3-VL without a word; so that one model is compared with itself.
        with torch.no_grad():
            for layer in engine.adapter.layers:
                layer.self_attn.o_proj.bias.zero_()
    return engine


def prompts(subject: Any) -> dict[str, Any]:
    """The prompts of these tests, by name."""
    twice = subject.prompt(3, seed=45)
    return {
        **{f"pictures {count}": subject.prompt(count, seed=count) for count in (1, 2, 8)},
        "mix": subject.prompt(4, seed=40),
        "patch": subject.prompt(3, seed=50),
        "after": subject.prompt(3, seed=90),
        "opened": subject.opened(1, seed=72),
        "opened by two": subject.opened(2, seed=73),
        "twice": type(twice)(subject, twice.texts, [twice.pictures[place] for place in (0, 1, 0)]),
    }


@pytest.fixture(scope="module", params=PARAMETERS)
def both(request, bench, subjects, tmp_path_factory) -> Both:
    subject = subjects(request.param)
    given = prompts(subject)
    plain = bench.serve(subject.folder, None, subject.vocabulary)
    stock = {name: plain.ask(prompt.token_ids, prompt.pictures).logits for name, prompt in given.items()}
    served = bench.serve(subject.folder, tmp_path_factory.mktemp("store"), subject.vocabulary)
    engine = load(subject, torch.float32)
    full = {name: reference(engine, prompt)("full") for name, prompt in given.items()}
    apart = {name: float((stock[name] - full[name]).abs().max()) for name in given}
    return Both(subject, served, engine, stock, apart)


@pytest.mark.parametrize("name", NAMES)
def test_stock_vllm_is_transformers(both, name: str, record_property) -> None:
    """The yardstick: without the plugin both differ by rounding."""
    bar = YARDSTICK["bundled" if both.subject.name in BUNDLED else "tiny"]
    record_property(f"{both.subject.name} {name}", both.apart[name])
    if both.apart[name] > bar:
        given = prompts(both.subject)[name]
        own = reference(both.engine, given)("full")
        both.explain(f"plain {name}", both.apart[name], bar, both.stock[name], own,
                     lambda engine: reference(engine, given)("full"))  # fmt: skip


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
        record_property(f"{subject.name} {pictures} {strategy}", error(answer, wanted(strategy)))
        both.hold(name, answer, wanted(strategy), lambda engine, own=strategy: reference(engine, given)(own))
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


@pytest.mark.parametrize("strategy", ["blind", "auto"])
def test_a_picture_right_after_the_opening_is_exact(both, strategy: str) -> None:
    """It was captured after just that; so plain requests go on from the pages that it is written to."""
    subject, served = both.subject, both.served
    given = prompts(subject)["opened"]
    served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
    assert answer.report["linked_tokens"] == answer.cached == answer.report["media_tokens"] > 0
    assert answer.report["strategy"] == ("blind" if strategy == "blind" else "auto:leading")
    assert error(answer, both.stock["opened"]) <= TOLERANCE
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert plain.cached > 0 and error(plain, both.stock["opened"]) <= TOLERANCE
    served.forget_prefixes()


def test_a_picture_after_the_first_leaves_no_pages_to_plain_requests(both) -> None:
    """The first is exact, the second is not; their pages are told apart."""
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["opened by two"]
    served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "blind"})
    assert answer.report["linked_tokens"] == answer.report["media_tokens"]
    both.hold("opened by two", answer, reference(engine, given)("blind"),
              lambda engine: reference(engine, given)("blind"))  # fmt: skip
    assert error(answer, both.stock["opened by two"]) > 100 * TOLERANCE
    plain = served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    assert error(plain, both.stock["opened by two"]) <= TOLERANCE
    served.forget_prefixes()


def test_rows_are_stored_as_the_embedded_engine_captures_them(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["pictures 2"]
    served.ask(given.token_ids, given.pictures, {"strategy": "full"})
    served.settle()
    report = served.ask(given.token_ids, given.pictures, {"strategy": "full", "pieces": True}).report
    served.forget_prefixes()
    for name, picture in zip(report["pieces"]["chunks"], given.pictures, strict=True):
        found, own = served.store.tenant().find(name), engine.add(picture)
        assert found is not None and found.tokens == own.tokens
        for layer, wanted in zip(found.rows, own.rows, strict=True):
            for one, other in ((layer.keys, wanted.keys), (layer.values, wanted.values)):
                assert float((one - other).abs().max()) <= TOLERANCE * float(other.abs().max())


def test_a_mix_of_stored_and_new_pictures(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["mix"]
    known = given.only(0, 2)
    served.ask(known.token_ids, known.pictures)
    served.settle()
    for strategy in ("blind", "mpic-4"):
        served.forget_prefixes()
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy, "capture": False})
        assert answer.report["linked_tokens"] > 0
        both.hold("mix", answer, mixed(engine, given, strategy), lambda engine, own=strategy: mixed(engine, given, own))


def mixed(engine: Engine, given: Any, strategy: str) -> Tensor:
    """What the embedded engine says where the second and the fourth picture are computed."""
    prompt = engine.prompt(given.parts([engine.add(picture) for picture in given.pictures]), template=False)
    chunks = [chunk.id for _, chunk in prompt.chunk_segments]
    plan = Mixed(strategy, frozenset((chunks[1], chunks[3])))
    return torch.log_softmax(engine.session.link(LinkRequest(prompt, plan)).linked.logits, -1)


def test_a_picture_that_comes_twice(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["twice"]
    wanted = reference(engine, given)
    for strategy in ("mpic-4", "blind", "mpic-4", "patch-4096", "patch-4096"):
        answer = served.ask(given.token_ids, given.pictures, {"strategy": strategy})
        served.settle()
        # Empty pages and an empty encoder cache: compute spans with rows of one picture twice are encoded once.
        served.forget_prefixes()
        served.llm.llm_engine.reset_encoder_cache()
        name = "full" if answer.report["strategy"] in ("plain", "patch-4096") else strategy
        both.hold("twice", answer, wanted(name), lambda engine, own=name: reference(engine, given)(own))
    assert answer.report["strategy"] == "patch-4096"


def test_a_patch_of_full_rank_is_full_prefill(both) -> None:
    subject, served, engine = both.subject, both.served, both.engine
    given = prompts(subject)["patch"]
    wanted = reference(engine, given)("full")

    def precise(engine: Engine) -> Tensor:
        return reference(engine, given)("full")

    first = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    assert first.report["linked_tokens"] == 0
    both.hold("patch", first, wanted, precise)
    served.settle()
    served.forget_prefixes()
    answer = served.ask(given.token_ids, given.pictures, {"strategy": "patch-4096"})
    assert answer.report["strategy"] == "patch-4096" and answer.report["linked_tokens"] == answer.cached > 0
    both.hold("patch", answer, wanted, precise)


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

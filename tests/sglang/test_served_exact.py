"""One plan, two engines: SGLang answers over linked chunks as the embedded engine does with the same plan."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import Engine
from tests.vllm.models import Given

TOLERANCE = 1e-5
FAMILY = "qwen2.5-vl"
FURTHER = ("qwen3-vl", "reference", "reference-deepstack")


@dataclass
class Both:
    """A model in SGLang and in the embedded engine; `stock` says how far plain SGLang is from transformers."""

    subject: Any
    served: Any
    engine: Engine
    stock: float = 0.0

    def wanted(self, given: Given, strategy: str) -> Tensor:
        chunks = [self.engine.add(picture) for picture in given.pictures]
        return torch.log_softmax(self.engine.prefill(given.parts(chunks), strategy, template=False).logits, -1)

    def hold(self, given: Given, answer: Any, strategy: str) -> None:
        """Hold an answer to the embedded engine's, to what their plain prefills of the prompt differ plus 1e-5."""
        wanted = self.wanted(given, strategy)
        bar = self.stock + TOLERANCE
        assert error(answer, wanted) <= bar, f"{strategy}: {error(answer, wanted):.2e} against {bar:.2e}"


def error(answer: Any, wanted: Tensor) -> float:
    return float((answer.logits - wanted).abs().max())


@pytest.fixture(scope="module", params=[FAMILY, *(pytest.param(name, marks=pytest.mark.slow) for name in FURTHER)])
def both(request, serve: Callable[..., Any], subjects, tmp_path_factory) -> Both:
    subject = subjects(request.param)
    served = serve(subject, tmp_path_factory.mktemp("store"))
    return Both(subject, served, Engine.load(subject.folder, anchor=None, dtype=torch.float32))


@pytest.mark.parametrize("pictures", [1, 2, 8])
def test_linked_prompts_agree(request, both: Both, pictures: int, record_property) -> None:
    if (both.subject.name, pictures) == ("reference", 8):
        told = "of 36 answers to twelve other such prompts one misses: `blind`, 1.7e-5 over a bar of 1.4e-5"
        request.applymarker(pytest.mark.xfail(reason=told, strict=False))
    given = both.subject.prompt(pictures, seed=pictures)
    plain = both.served.ask(given, {"strategy": "full"})
    both.stock = error(plain, both.wanted(given, "full"))
    record_property(f"{both.subject.name} {pictures} plain", both.stock)
    assert both.stock <= 2 * TOLERANCE
    both.served.learn(given)
    for strategy in ("blind", "mpic-4", "mpic-32"):
        answer = both.served.ask(given, {"strategy": strategy})
        wanted = both.wanted(given, strategy)
        record_property(f"{both.subject.name} {pictures} {strategy}", error(answer, wanted))
        both.hold(given, answer, strategy)
        chunks = [both.engine.add(picture) for picture in given.pictures]
        usage = both.engine.prefill(given.parts(chunks), strategy, template=False).usage
        assert answer.report["linked_tokens"] == usage.cached_tokens > 0
        if strategy == "blind":
            # Otherwise nothing was shown: reuse without repair is far from plain prefill.
            assert error(answer, plain.logits) > 300 * TOLERANCE
    again = both.served.ask(given, {"strategy": "full"})
    assert torch.equal(again.logits, plain.logits)


@pytest.mark.parametrize("strategy", ["blind", "auto"])
def test_a_picture_right_after_the_opening_is_exact(both: Both, strategy: str) -> None:
    """It was captured after just that; so plain requests go on from its rows in the radix tree."""
    given = both.subject.opened(1, seed=72)
    both.served.forget_prefixes()
    stock = both.served.ask(given, {"strategy": "full", "capture": False})
    both.served.learn(given)
    answer = both.served.ask(given, {"strategy": strategy})
    assert answer.report["linked_tokens"] == answer.report["media_tokens"] > 0
    assert answer.report["strategy"] == ("blind" if strategy == "blind" else "auto:leading")
    assert error(answer, stock.logits) <= TOLERANCE
    plain = both.served.ask(given, {"strategy": "full"})
    assert plain.cached > 0 and error(plain, stock.logits) <= TOLERANCE
    both.served.forget_prefixes()


def test_patches_agree_and_auto_takes_them(both: Both, record_property) -> None:
    given = both.subject.prompt(3, seed=50)
    both.stock = error(both.served.ask(given, {"strategy": "full"}), both.wanted(given, "full"))
    both.served.learn(given)
    for strategy in ("patch-25%", "patch-4096"):
        answer = first = both.served.ask(given, {"strategy": strategy})
        assert first.report["linked_tokens"] == 0
        for _ in range(100):
            both.served.forget_prefixes()
            answer = both.served.ask(given, {"strategy": strategy})
            if answer.report["linked_tokens"]:
                break
        assert answer.report["strategy"] == strategy
        record_property(f"{both.subject.name} {strategy}", error(answer, both.wanted(given, strategy)))
        both.hold(given, answer, strategy)
    answer = both.served.ask(given, {"strategy": "auto"})
    assert answer.report["strategy"] == "auto:patch" and answer.report["linked_tokens"] > 0
    both.hold(given, answer, "patch-25%")


def test_survivors_agree(both: Both) -> None:
    """The first picture leaves the prompt; those that stay are taken at other places."""
    whole = both.subject.prompt(4, seed=40)
    both.served.learn(whole)
    given = whole.only(1, 2, 3)
    both.stock = error(both.served.ask(given, {"strategy": "full"}), both.wanted(given, "full"))
    both.served.forget_prefixes()
    for strategy in ("blind", "mpic-4"):
        answer = both.served.ask(given, {"strategy": strategy, "capture": False})
        assert answer.report["linked_tokens"] > 0
        both.hold(given, answer, strategy)


def test_several_at_once_and_decoding(both: Both) -> None:
    given = [both.subject.prompt(count, seed=70 + count, lead=9 + count) for count in (1, 2, 3)]
    for prompt in given:
        both.served.learn(prompt)
    options = [{"strategy": "mpic-4"}, {"strategy": "full"}, {"strategy": "blind"}]
    alone = []
    for prompt, own in zip(given, options, strict=True):
        alone.append(both.served.ask(prompt, own, tokens=6))
        both.served.forget_prefixes()
    together = both.served.ask_all(given, options, tokens=6)
    for one, other in zip(alone, together, strict=True):
        assert one.tokens == other.tokens and one.report["linked_tokens"] == other.report["linked_tokens"]
        assert error(one, other.logits) <= TOLERANCE
    last = replace(given[2])
    tokens: list[int] = []
    chunks = [both.engine.add(picture) for picture in last.pictures]
    for _ in range(6):
        parts = last.parts(chunks)
        logits = both.engine.prefill([*parts[:-1], parts[-1] + tokens], "blind", template=False).logits
        tokens.append(int(logits.argmax()))
    assert alone[2].tokens == tokens

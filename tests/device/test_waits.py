"""How often the host waits for the device; counted on the device that needs none."""

from collections import Counter

import pytest
import torch

from emblema.session.decode_batch import DecodeBatch, DecodeSequence
from emblema.session.decoding import DecodeStart, Sampler, Sampling
from emblema.session.grammar import GrammarCompiler
from tests import fake_device
from tests.device.twins import QUESTION, pictures, twins
from tests.serve.writing_model import byte_tokenizer

NAME = "qwen2_5_vl"
LINKING = {
    # The first token's logits are looked at: whether they are finite.
    "session/linker.py:_answer aten._local_scalar_dense.default": 1,
}
FORMING = {
    # A patch is kept only if it is finite: once for each.
    "kv/layout.py:_finite aten._local_scalar_dense.default": 2,
    # Which directions it has room for, of any layer: once for each.
    "kv/patch.py:_on_host aten._to_copy.default": 2,
}
STEP = {"session/decode_batch.py:step aten._to_copy.default": 1}
TOKEN = {"session/decoding.py:_chosen aten._to_copy.default": 1}


@pytest.fixture
def waits() -> Counter[str]:
    if twins(NAME).device.adapter.device.type != fake_device.NAME:
        pytest.skip("waits are counted on the fake device")
    fake_device.waits.clear()
    return fake_device.waits


@pytest.mark.parametrize("strategy", ["blind", "mpic-4", "patch-4"])
def test_a_link_of_known_chunks_waits_for_its_logits_alone(waits: Counter[str], strategy: str) -> None:
    engine = twins(NAME).device
    first, second, third = (engine.add(each) for each in pictures(NAME, 3))
    engine.prefill([first, second, third, QUESTION], strategy, template=False)
    waits.clear()
    engine.prefill([first, third, second, QUESTION], strategy, template=False)
    assert waits == LINKING | (FORMING if strategy == "patch-4" else {})


def test_a_token_waits_once(waits: Counter[str]) -> None:
    engine = twins(NAME).device
    chunk = engine.add(pictures(NAME, 1)[0])
    counts = []
    for most in (2, 6):
        waits.clear()
        engine.generate([chunk, QUESTION], "blind", template=False, max_new_tokens=most)
        counts.append(Counter(waits))
    assert counts[1] - counts[0] == {name: 4 * count for name, count in TOKEN.items()}


def test_penalties_biases_and_a_grammar_wait_no_more(waits: Counter[str]) -> None:
    """Every allowed token is the same on both devices."""
    grammar = GrammarCompiler(byte_tokenizer(), {256}, "tiny").of_schema({"type": "object"})
    knobs = {"frequency_penalty": 1.0, "presence_penalty": 0.5, "logit_bias": {3: 2.0}, "grammar": grammar}
    device, made = twins(NAME).device.adapter.device, []
    for place in (torch.device("cpu"), device):
        sampler = Sampler(Sampling.of(temperature=0.7, seed=1, **knobs))
        logits = torch.randn(7, 280, generator=torch.Generator().manual_seed(1)).to(place)
        waits.clear()
        made.append([sampler(each) for each in logits])
    assert made[0] == made[1]
    assert waits == {name: 7 * count for name, count in TOKEN.items()}


def test_a_step_of_a_batch_waits_once(waits: Counter[str]) -> None:
    engine = twins(NAME).device
    chunk = engine.add(pictures(NAME, 1)[0])
    batch = DecodeBatch(engine.adapter, 1 << 20)
    for extra in (0, 3):
        prefill = engine.prefill([chunk, (*QUESTION, *QUESTION[:extra])], "blind", template=False)
        start = DecodeStart.after(prefill.prompt, prefill.linked)
        batch.admit(start, DecodeSequence(start, Sampler(Sampling(max_new_tokens=9))))
    batch.step()
    waits.clear()
    for _ in range(3):
        assert len(batch.step()) == 2
    assert waits == {name: 3 * count for name, count in STEP.items()}

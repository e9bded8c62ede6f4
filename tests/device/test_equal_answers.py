"""What an engine answers on a device is what it answers on the CPU."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emblema import AsyncEngine, Engine, Store
from emblema.errors import StoreError
from emblema.kv.device import default_device
from emblema.store.settings import StoreSettings
from emblema.stream.methods import METHODS
from tests.device.twins import FAMILIES, QUESTION, logits_after_a_slide, pictures, twins
from tests.families import CASES

STRATEGIES = ("full", "prefix", "blind", "patch-25%", "patch-4", "mpic-4", "query-25%", "auto")
CLOSE = 5e-5
"""What other kernels may make of float32 numbers of size 10, a few layers deep."""


def apart(logits: Tensor, other: Tensor) -> float:
    """Return the largest difference of log-probabilities."""
    pair = [torch.log_softmax(each.cpu().float(), 0) for each in (logits, other)]
    return float((pair[0] - pair[1]).abs().max())


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_strategy(name: str, strategy: str) -> None:
    first, second = pictures(name, 2)
    found = []
    for engine in twins(name):
        engine.prefill([engine.add(first), engine.add(second), QUESTION], strategy, template=False)
        found.append(
            engine.prefill([engine.add(second), QUESTION[:2], engine.add(first), QUESTION], strategy, template=False)
        )
    assert found[0].logits.device == default_device()
    assert found[0].usage.lane == found[1].usage.lane
    assert apart(found[0].logits, found[1].logits) <= CLOSE
    for own, other in zip(found[0].kv, found[1].kv, strict=True):
        torch.testing.assert_close(own.keys.cpu(), other.keys, atol=CLOSE, rtol=CLOSE)
        torch.testing.assert_close(own.values.cpu(), other.values, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_at_a_wrong_place_would_be_seen(name: str) -> None:
    cpu, (first, second) = twins(name).cpu, pictures(name, 2)
    chunks = [cpu.add(first), cpu.add(second)]
    found = [cpu.prefill([*order, QUESTION], "blind", template=False).logits for order in (chunks, chunks[::-1])]
    assert apart(*found) > 100 * CLOSE


@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_from_disk_and_fresh_ones_in_one_prompt(name: str, tmp_path: Path) -> None:
    device = default_device()
    kept, fresh = pictures(name, 2)
    model, bundle = CASES[name].build(0)
    model = model.to(device)
    with Engine(model, bundle, store=tmp_path) as engine:
        engine.prefill([engine.add(kept), engine.add(fresh), QUESTION], "patch-4", template=False)
        engine.store.delete(engine.add(fresh).id)
    with Engine(model, bundle, store=tmp_path) as engine:
        linked = engine.prefill([engine.add(kept), engine.add(fresh), QUESTION], "patch-4", template=False)
        assert engine.store.statistics.disk_bytes > 0 and engine.store.parent.device == device
    cpu = twins(name).cpu
    plain = cpu.prefill([cpu.add(kept), cpu.add(fresh), QUESTION], "patch-4", template=False)
    assert apart(linked.logits, plain.logits) <= CLOSE


def test_rows_that_went_to_the_host_come_back() -> None:
    name = "qwen2_5_vl"
    model, bundle = CASES[name].build(0)
    one = twins(name).cpu.add(pictures(name, 1)[0])
    with Store(device_bytes=2 * one.bytes, settings=StoreSettings(device=default_device(), host_bytes=2**24)) as store:
        engine = Engine(model.to(default_device()), bundle, store=store)
        chunks = [engine.add(each) for each in pictures(name, 6)]
        again = engine.prefill([chunks[0], QUESTION], "blind", template=False)
        assert store.statistics.demotions > 0 and store.statistics.promotions > 0
    plain = twins(name).cpu.prefill([one, QUESTION], "blind", template=False)
    assert apart(again.logits, plain.logits) <= CLOSE


@pytest.mark.parametrize("name", FAMILIES)
def test_a_window_slides(name: str) -> None:
    """By a named strategy: `auto` goes by what each device was measured to cost, and may go another way on each."""
    assert apart(*(logits_after_a_slide(engine, name) for engine in twins(name))) <= CLOSE


@pytest.mark.parametrize("method", METHODS)
def test_streams(method: str) -> None:
    settings: dict[str, Any] = {"window": 3, "block": 4, "budget": 6, "template": False}
    found = []
    for engine in twins("qwen2_5_vl"):
        with engine.stream(method, positions="packed", **settings) as stream:
            stream.push([pictures("qwen2_5_vl", 2, seed)[0] for seed in range(22)])
            reply = stream.ask(QUESTION, max_new_tokens=4)
            found.append((reply.token_ids, [moment.frame for moment in reply.moments]))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "kimi_k25"])
def test_chunks_of_a_stream(name: str) -> None:
    settings: dict[str, Any] = {"window": 3, "block": 4, "budget": 6, "template": False}
    found = []
    for engine in twins(name):
        with engine.stream(**settings) as stream:
            stream.push([pictures(name, 2, seed)[0] for seed in range(14)])
            found.append(engine.prefill([*stream.chunks(), QUESTION], "blind", template=False).logits)
    assert apart(*found) <= CLOSE


def test_replies_decoded_as_one_batch() -> None:
    async def ask(place: str) -> list[str]:
        async with await AsyncEngine.load("reference", device=place) as engine:
            page = await engine.add(pictures("qwen2_5_vl", 1)[0])
            asked = (engine.generate([page, text], "full", max_new_tokens=6) for text in ("where ?", "what is this ?"))
            return [reply.text for reply in await asyncio.gather(*asked)]

    assert asyncio.run(ask("auto")) == asyncio.run(ask("cpu"))


def test_a_store_on_another_accelerator_than_the_model_is_refused() -> None:
    model, bundle = CASES["qwen2_5_vl"].build(0)
    with Store() as store, pytest.raises(StoreError, match="StoreSettings\\(device='cpu'\\)"):
        Engine(model, bundle, store=store)

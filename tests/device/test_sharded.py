"""A model whose layers are on several devices answers what it answers on one; each layer's rows are where it is."""

import asyncio
from collections import Counter
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import dispatch_model
from torch import Tensor
from transformers.integrations import accelerate as integration

from emblema import AsyncEngine, Engine, Store
from emblema.errors import ModelError, UnsupportedModelError
from emblema.kv.device import beside_model, default_device
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.link.policy.policy import Policy
from emblema.models.queries import queries
from emblema.session import patch_worker
from emblema.session.decode_batch import DecodeBatch, DecodeSequence
from emblema.session.decoding import DecodeStart, Sampler, Sampling
from emblema.store.settings import StoreSettings
from tests import fake_device
from tests.device.sharding import HOMES, places_of, sharded, sharded_twins
from tests.device.twins import FAMILIES, QUESTION, logits_after_a_slide, pictures
from tests.families import CASES

STRATEGIES = ("full", "prefix", "blind", "mpic-32", "mpic-4", "patch-25%", "cacheblend-50", "query-25%", "auto")
CLOSE = 1e-5
"""Of float32 numbers, as a share of the largest among them."""


def apart(logits: Tensor, other: Tensor) -> float:
    """Return the largest difference of logits, as a share of the largest."""
    return float((logits.cpu() - other.cpu()).abs().max() / other.cpu().abs().max())


def rows_apart(own: KVRows, other: KVRows) -> float:
    """Return the largest difference of rows, as a share of the largest number of their slot."""
    shares = [
        float((slot.cpu() - plain.cpu()).abs().max() / plain.abs().max())
        for mine, yours in zip(own, other, strict=True)
        for slot, plain in ((mine.keys, yours.keys), (mine.values, yours.values))
    ]
    return max(shares)


def devices_of(rows: KVRows) -> tuple[torch.device, ...]:
    """Return where each layer's rows are."""
    assert all(layer.keys.device == layer.values.device for layer in rows)
    return tuple(layer.keys.device for layer in rows)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_same_model(name: str, home: str) -> None:
    engine, plain = sharded_twins(name, home)
    adapter = engine.adapter
    first, other = places_of(home)
    assert adapter.sharded and adapter.device == first
    assert adapter.devices == (first, *[other] * (len(adapter.layers) - 1))
    assert adapter.fingerprint == plain.adapter.fingerprint and adapter.version == plain.adapter.version
    assert engine.add(pictures(name, 1)[0]).id == plain.add(pictures(name, 1)[0]).id
    assert engine.selfcheck.passed
    assert adapter.layouts == plain.adapter.layouts


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_strategy(name: str, home: str, strategy: str) -> None:
    first, second = pictures(name, 2)
    found = []
    for engine in sharded_twins(name, home):
        engine.prefill([engine.add(first), engine.add(second), QUESTION], strategy, template=False)
        found.append(
            engine.prefill([engine.add(second), QUESTION[:2], engine.add(first), QUESTION], strategy, template=False)
        )
    adapter = sharded_twins(name, home).device.adapter
    assert found[0].logits.device == adapter.device and devices_of(found[0].kv) == adapter.devices
    assert found[0].usage.lane == found[1].usage.lane
    assert apart(found[0].logits, found[1].logits) <= CLOSE
    assert rows_apart(found[0].kv, found[1].kv) <= CLOSE


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_replies_as_one_batch(name: str, home: str) -> None:
    told: list[list[list[tuple[int, float]]]] = []
    for engine in sharded_twins(name, home):
        chunk = engine.add(pictures(name, 1)[0])
        batch = DecodeBatch(engine.adapter, 1 << 20)
        tokens: dict[DecodeSequence, list[tuple[int, float]]] = {}
        for extra in (0, 3, 1):
            prefill = engine.prefill([chunk, (*QUESTION, *QUESTION[:extra])], "blind", template=False)
            start = DecodeStart.after(prefill.prompt, prefill.linked)
            sequence = DecodeSequence(start, Sampler(Sampling(max_new_tokens=9)), likeliest=1)
            batch.admit(start, sequence)
            tokens[sequence] = []
        for step in range(6):
            if step == 4:
                batch.remove(next(iter(tokens)))
            for sequence, made in batch.step():
                assert not isinstance(made, ModelError) and made.probability is not None
                tokens[sequence].append((made.token, made.probability.logprob))
        told.append(list(tokens.values()))
    for own, plain in zip(*told, strict=True):
        assert [token for token, _ in own] == [token for token, _ in plain]
        assert max(abs(made[1] - known[1]) for made, known in zip(own, plain, strict=True)) <= CLOSE


def test_replies_that_share_the_model() -> None:
    async def ask(engine: Engine) -> list[tuple[int, ...]]:
        async with AsyncEngine(engine) as served:
            page = await served.add(pictures("qwen2_5_vl", 1)[0])
            asked = (
                served.generate([page, QUESTION[:length]], "full", template=False, max_new_tokens=6)
                for length in (3, 5)
            )
            return [reply.token_ids for reply in await asyncio.gather(*asked)]

    found = [
        asyncio.run(ask(Engine(*made))) for made in (sharded("qwen2_5_vl", "device"), CASES["qwen2_5_vl"].build(0))
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_and_patches_from_disk(name: str, home: str, tmp_path: Path) -> None:
    prompts = pictures(name, 2)
    with Engine(*sharded(name, home), store=tmp_path) as engine:
        parts = [*(engine.add(each) for each in prompts), QUESTION]
        assert all(devices_of(chunk.rows) == engine.adapter.devices for chunk in parts[:2])
        before = engine.prefill(parts, "patch-25%", template=False).logits
    with Engine(*sharded(name, home), store=tmp_path) as engine:
        parts = [*(engine.add(each) for each in prompts), QUESTION]
        after = engine.prefill(parts, "patch-25%", template=False)
        assert engine.store.statistics.loads > 0 and after.linked.trace.computed == len(QUESTION)
        assert all(devices_of(engine.store.get(chunk.id).rows) == engine.adapter.devices for chunk in parts[:2])
        (key,) = engine.store.artifact_keys(parts[1].id)
        patch = engine.store.find_patch(key)
        assert isinstance(patch, Patch)
        held = {index: layer for index, layer in enumerate(patch.layers) if layer is not None}
        for index, layer in held.items():
            assert layer.keys.left.device == layer.values.right.device == engine.adapter.devices[index]
    assert held and apart(before, after.logits) <= CLOSE
    # The same files serve the model on one device.
    model, bundle = CASES[name].build(0)
    with Engine(model, bundle, store=tmp_path) as plain:
        parts = [*(plain.add(each) for each in prompts), QUESTION]
        read = plain.prefill(parts, "patch-25%", template=False)
        assert plain.store.statistics.loads > 0 and apart(before, read.logits) <= CLOSE


@pytest.mark.parametrize("home", HOMES)
def test_rows_that_went_to_the_host_come_back(home: str) -> None:
    name = "qwen2_5_vl"
    plain = sharded_twins(name, home).cpu
    one = plain.add(pictures(name, 1)[0])
    model, bundle = sharded(name, home)
    engine = Engine(model, bundle)
    settings = StoreSettings(device=engine.adapter.device, layer_devices=engine.adapter.devices, host_bytes=2**24)
    with Store(device_bytes=2 * one.bytes, settings=settings) as store:
        engine = Engine(model, bundle, store=store)
        chunks = [engine.add(each) for each in pictures(name, 6)]
        again = engine.prefill([chunks[0], QUESTION], "blind", template=False)
        assert store.statistics.demotions > 0 and store.statistics.promotions > 0
        assert devices_of(engine.store.get(chunks[0].id).rows) == engine.adapter.devices
    assert apart(again.logits, plain.prefill([one, QUESTION], "blind", template=False).logits) <= CLOSE


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_a_store_that_keeps_them_elsewhere_are_brought(name: str, home: str) -> None:
    first, second = pictures(name, 2)
    model, bundle = sharded(name, home)
    with Store(settings=StoreSettings(device="cpu")) as store:
        engine = Engine(model, bundle, store=store)
        linked = engine.prefill([engine.add(first), engine.add(second), QUESTION], "patch-25%", template=False)
    plain = sharded_twins(name, home).cpu
    chunks = [plain.add(first), plain.add(second)]
    assert apart(linked.logits, plain.prefill([*chunks, QUESTION], "patch-25%", template=False).logits) <= CLOSE


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_patches_formed_after_the_answers(name: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[torch.device] = []

    def noted(device: torch.device) -> AbstractContextManager[None]:
        beside.append(device)
        return beside_model(device)

    monkeypatch.setattr(patch_worker, "beside_model", noted)
    model, bundle = CASES[name].build(0)
    first, second = pictures(name, 2)
    found = []
    # What random weights lack has no low rank, so that a patch of a share holds little of it.
    thin = Policy(kept=0)
    for engine in (Engine(*sharded(name, home), policy=thin), Engine(model, bundle, policy=thin)):
        with engine:
            chunks = [engine.add(first), engine.add(second)]
            beside.clear()
            engine.prefill([*chunks, QUESTION], template=False, keep=True)
            engine.settle()
            assert engine.policy_runtime.statistics.forming.formed == 1
            assert beside == list(dict.fromkeys(engine.adapter.devices))
            (key,) = engine.store.artifact_keys(chunks[1].id)
            patch = engine.store.find_patch(key)
            assert isinstance(patch, Patch)
            held = [(index, layer) for index, layer in enumerate(patch.layers) if layer is not None]
            assert held
            for index, layer in held:
                places = {each.device for slot in (layer.keys, layer.values) for each in (slot.left, slot.right)}
                assert places == {engine.adapter.devices[index]}
            again = engine.prefill([*chunks, QUESTION], f"patch-{patch.rank}", template=False)
            assert again.linked.trace.patched == chunks[1].tokens and not again.plan.forming
            found.append(again.logits)
    assert apart(*found) <= CLOSE


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_question_asks_for(name: str) -> None:
    engine, plain = sharded_twins(name, "device")
    found, wanted = (queries(each.adapter, QUESTION) for each in (engine, plain))
    for own, other in zip(found, wanted, strict=True):
        assert own.device == engine.adapter.device
        assert float((own.cpu() - other).abs().max()) <= CLOSE * float(other.abs().max())


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_window_slides(name: str, home: str) -> None:
    assert apart(*(logits_after_a_slide(engine, name) for engine in sharded_twins(name, home))) <= CLOSE


def test_a_checkpoint_is_shared_out_as_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    root = "model.language_model"
    home = {name: "cpu" for name in ("model.visual", f"{root}.embed_tokens", f"{root}.norm", "lm_head")}
    other = str(default_device())
    places = home | {f"{root}.layers.{index}": "cpu" if index < 2 else other for index in range(5)}
    places |= {f"{root}.rotary_emb": other}
    with pytest.raises(UnsupportedModelError, match="is offloaded and on no device"):
        # Beside an accelerator the CPU only keeps what others run.
        Engine.load("reference", device_map=places)
    monkeypatch.setattr(integration, "dispatch_model", partial(dispatch_model, main_device="cpu"))
    replies = []
    for options in ({"device_map": places}, {"device": "cpu"}):
        with Engine.load("reference", **options) as engine:
            page = engine.add(pictures("qwen2_5_vl", 1)[0])
            replies.append(engine.generate([page, "what is this ?"], "full", max_new_tokens=6).text)
            if "device_map" in options:
                cpu = torch.device("cpu")
                assert engine.adapter.devices == (cpu, cpu, *[default_device()] * 3)
    assert replies[0] == replies[1]


@pytest.fixture
def waits() -> Counter[str]:
    if default_device().type != fake_device.NAME:
        pytest.skip("copies are counted on the fake device")
    return fake_device.waits


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_forward_is_given_goes_to_a_device_once(waits: Counter[str], name: str) -> None:
    counts = []
    for first in (1, 2):
        engine = Engine(*sharded(name, "device", first))
        chunk = engine.add(pictures(name, 1)[0])
        prefill = engine.prefill([chunk, QUESTION], "full", template=False)
        start = DecodeStart.after(prefill.prompt, prefill.linked)
        batch = DecodeBatch(engine.adapter, 1 << 20)
        batch.admit(start, DecodeSequence(start, Sampler(Sampling(max_new_tokens=9))))
        batch.step()
        waits.clear()
        engine.prefill([chunk, QUESTION, QUESTION], "full", template=False)
        batch.step()
        counts.append(Counter({place: count for place, count in waits.items() if "copy" in place}))
    assert counts[0] and not counts[1] - counts[0]
    # Features that are added at the second layer, and where, go with it.
    assert (counts[0] - counts[1]).total() == 2 * len(chunk.encoded.deepstack[1:])


def test_streams_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="several devices: load the model on one"):
        sharded_twins("qwen2_5_vl", "cpu").device.stream()


def test_a_decoder_that_does_not_take_rows_along_is_refused() -> None:
    model, bundle = CASES["qwen2_5_vl"].build(0)
    model.model.language_model.layers[0].to(default_device())
    with pytest.raises(UnsupportedModelError, match="load it with device_map, or on one device"):
        Engine(model, bundle)


def test_a_layer_on_two_devices_is_refused() -> None:
    model, bundle = sharded("qwen2_5_vl", "cpu")
    model.model.language_model.layers[1].mlp.to("cpu")
    with pytest.raises(UnsupportedModelError, match="layers.1.*let device_map keep layers whole"):
        Engine(model, bundle)


def test_offloaded_layers_are_refused() -> None:
    model, bundle = CASES["qwen2_5_vl"].build(0)
    model.model.language_model.layers[2].to("meta")
    with pytest.raises(UnsupportedModelError, match="layers.2.* is offloaded .* device_map or max_memory"):
        Engine(model, bundle)

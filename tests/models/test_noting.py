"""Noted attention against weights worked out by hand, on every family, and the model left as it was."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.kv.layout import KVRows
from emblema.models.adapter import Adapter
from emblema.models.attention import NAME, attending_by
from emblema.models.noting import BLOCK, QuestionAttention, noting_attention
from emblema.models.tables import KVTable
from tests.families import CASES, loaded, picture, words

families = pytest.mark.parametrize("name", CASES)


@dataclass
class Noted:
    """Weights [heads, noted, rows] by layer, put together from what is noted; rows not yet there are 0."""

    layers: dict[int, Tensor]
    calls: int = 0


def noted(adapter: Adapter, batch: Any, table: KVTable, rows: Tensor) -> Noted:
    found = Noted({})

    def note(layer: int, places: Tensor, weights: Tensor) -> None:
        found.calls += 1
        assert len(places) <= BLOCK and weights.dtype == torch.float32
        held = found.layers.setdefault(layer, torch.zeros(weights.shape[0], len(rows), table.length))
        assert not held[:, places].any(), "each once"
        held[:, places, : weights.shape[2]] = weights

    with noting_attention(adapter, rows, note):
        adapter.forward(batch, table)
    return found


def by_hand(adapter: Adapter, batch: Any, table: KVTable) -> dict[int, Tensor]:
    """Weights [heads, rows, rows] by layer: plain softmax, head by head and row by row, over what a row may see."""
    found: dict[int, Tensor] = {}
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    groups, windows = table.groups.tolist(), adapter._windows

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        layer = int(module.layer_idx)
        heads, count, width = query.shape[1:]
        scale = extra.get("scaling") or width**-0.5
        weights = torch.zeros(heads, count, count)
        for head in range(heads):
            keys = key[0, head * key.shape[1] // heads].double()
            for row in range(count):
                seen = [other for other in range(count) if sees(row, other, windows[layer])]
                products = torch.stack([(query[0, head, row].double() * keys[other]).sum() * scale for other in seen])
                weights[head, row, seen] = (products.exp() / products.exp().sum()).float()
        found[layer] = weights
        return stock(module, query, key, value, mask, **extra)

    def sees(row: int, other: int, window: int | None) -> bool:
        together = groups[row] >= 0 and groups[row] == groups[other]
        together = together and not (window is None and adapter.kind.full_layers_causal)
        return (other <= row or together) and (window is None or row - other < window)

    with attending_by(adapter.config, attend):
        adapter.forward(batch, table)
    return found


def media_of(name: str) -> tuple[Adapter, Any]:
    item = loaded(name)
    from tests.engine.engines import engine

    own = engine(name)
    return own.adapter, own.encode(picture(*item.case.sizes[0], seed=5))[0].encoded


def fresh(adapter: Adapter, encoded: Any) -> tuple[KVTable, Any]:
    return adapter._alone(encoded)


@pytest.mark.slow
@families
def test_noted_weights_are_those_worked_out_by_hand(name: str) -> None:
    """On a picture alone: grouped heads, latent rows, sliding windows and rows that see each other both ways."""
    adapter, encoded = media_of(name)
    table, batch = fresh(adapter, encoded)
    expected = by_hand(adapter, batch, table)
    rows = torch.arange(0, encoded.tokens, 2)
    table, batch = fresh(adapter, encoded)
    found = noted(adapter, batch, table, rows)
    attended = {index for index, layout in enumerate(adapter.layouts) if layout.kind in ("heads", "latent")}
    # Layers that keep no rows attend those of others.
    attended |= set(range(len(adapter.layouts), len(adapter.layers)))
    assert found.layers.keys() == expected.keys() == attended
    for layer, weights in found.layers.items():
        assert torch.allclose(weights, expected[layer][:, rows], atol=2e-5), layer
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5)


@families
def test_a_batch_in_blocks_is_noted_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter(loaded(name).model)
    encoded = adapter.encode_text(words(23, seed=4))
    rows = torch.tensor([0, 3, 8, 9, 15, 22])
    table, batch = fresh(adapter, encoded)
    whole = noted(adapter, batch, table, rows)
    monkeypatch.setattr(adapter, "block_rows", 8)
    monkeypatch.setattr("emblema.models.noting.BLOCK", 2)
    table, batch = fresh(adapter, encoded)
    parted = noted(adapter, batch, table, rows)
    assert parted.calls > whole.calls and parted.layers.keys() == whole.layers.keys()
    for layer, weights in parted.layers.items():
        assert torch.allclose(weights, whole.layers[layer], atol=1e-5), layer


def test_what_others_run_in_a_pause_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter(loaded("llava").model)
    encoded, other = (adapter.encode_text(words(length, seed=4)) for length in (23, 9))
    plain, rows = adapter.capture(other), torch.tensor([3, 22])
    table, batch = fresh(adapter, encoded)
    whole = noted(adapter, batch, table, rows)
    between: list[KVRows] = []

    def pause() -> None:
        adapter.pause = None
        between.append(adapter.capture(other))

    monkeypatch.setattr(adapter, "block_rows", 8)
    adapter.pause = pause
    table, batch = fresh(adapter, encoded)
    parted = noted(adapter, batch, table, rows)
    assert torch.allclose(between[0][-1].keys, plain[-1].keys, atol=1e-5)
    for layer, weights in parted.layers.items():
        assert torch.allclose(weights, whole.layers[layer], atol=1e-5), layer


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3", "kimi_k25"])
def test_the_forward_is_the_same_and_nothing_is_left(name: str) -> None:
    adapter = loaded(name).adapter
    before, functions = adapter.config._attn_implementation, set(ALL_ATTENTION_FUNCTIONS) - {NAME}
    encoded = adapter.encode_text(words(9, seed=3))
    plain: KVRows = adapter.capture(encoded)
    table, batch = fresh(adapter, encoded)
    noted(adapter, batch, table, torch.arange(9))
    for layer, rows in enumerate(plain):
        assert torch.equal(rows.keys, table.read(layer).keys) and torch.equal(rows.values, table.read(layer).values)
    with pytest.raises(ZeroDivisionError), noting_attention(adapter, torch.arange(1), lambda *given: None):
        raise ZeroDivisionError
    assert adapter.config._attn_implementation == before and set(ALL_ATTENTION_FUNCTIONS) - {NAME} == functions


def test_scores_are_the_shares_of_both_readings_added() -> None:
    generator = torch.Generator().manual_seed(2)
    layers = [torch.softmax(torch.randn(3, 5, 7, generator=generator), -1) for _ in range(4)]
    attention = QuestionAttention(5, 7, torch.device("cpu"))
    for layer, weights in enumerate(layers):
        for places in (torch.arange(2), torch.arange(2, 5)):
            attention.add(layer, places, weights[:, places])
    slots = torch.tensor([6, 0, 3])
    last = torch.stack([weights[:, 4].sum(0) for weights in layers]).sum(0)[slots]
    largest = torch.stack([weights.amax((0, 1)) for weights in layers]).amax(0)[slots]
    assert torch.allclose(attention.readings.scores(slots), last / last.sum() + largest / largest.sum())
    assert torch.isclose(attention.readings.scores(slots).sum(), torch.tensor(2.0))


@pytest.mark.parametrize("rows", [[], [4], [0, 8]])
def test_only_the_layers_and_rows_asked_for_are_noted(rows: list[int]) -> None:
    adapter = loaded("qwen2_vl").adapter
    told: list[tuple[int, list[int]]] = []
    table, batch = fresh(adapter, adapter.encode_text(words(9, seed=3)))
    chosen = torch.tensor(rows, dtype=torch.int64)
    with noting_attention(adapter, chosen, lambda layer, places, _: told.append((layer, places.tolist())), {1}):
        adapter.forward(batch, table)
    assert told == ([(1, list(range(len(rows))))] if rows else [])


def test_rows_that_nothing_attends_have_no_score() -> None:
    attention = QuestionAttention(2, 4, torch.device("cpu"))
    assert attention.readings.scores(torch.arange(4)).tolist() == [0, 0, 0, 0]

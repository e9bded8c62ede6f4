"""Pauses inside the encoder: what others do there changes no bit, and no hook is left."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from emblema.models import encoder_pauses
from emblema.models.adapter import Adapter
from tests import families as matrix


@pytest.fixture(autouse=True)
def at_every_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_pauses, "SECONDS", 0.0)


def hooks(adapter: Adapter) -> int:
    return sum(len(module._forward_pre_hooks) for module in adapter.model.modules())


def paused(adapter: Adapter, pause: Callable[[], None], run: Callable[[], Any]) -> Any:
    adapter.pause = pause
    try:
        return run()
    finally:
        adapter.pause = None


@pytest.mark.parametrize("name", matrix.NAMES)
def test_what_others_do_meanwhile_changes_nothing(name: str) -> None:
    item = matrix.loaded(name)
    adapter = item.adapter
    one, other = (item.preparer.image(matrix.picture(*item.case.sizes[0], seed=seed)) for seed in (1, 2))
    alone, beside = adapter.encode(one), adapter.encode(other)
    text = adapter.encode_text(matrix.words(5, 3))
    rows = adapter.capture(text)
    before, begun, found = hooks(adapter), 0, []

    def pause() -> None:
        nonlocal begun
        if begun < 3:
            begun += 1
            found.append((adapter.encode(other), adapter.capture(text)))

    again = paused(adapter, pause, lambda: adapter.encode(one))
    assert len(found) == 3 and hooks(adapter) == before
    assert torch.equal(again.embeds, alone.embeds)
    assert all(map(torch.equal, again.deepstack, alone.deepstack))
    for encoded, captured in found:
        assert torch.equal(encoded.embeds, beside.embeds)
        for layer, kept in zip(captured, rows, strict=True):
            assert torch.equal(layer.keys, kept.keys) and torch.equal(layer.values, kept.values)


def test_what_a_pause_raises_ends_the_encoder_and_leaves_no_hook() -> None:
    item = matrix.loaded("qwen3_vl")
    adapter, prepared = item.adapter, item.preparer.image(matrix.picture(*item.case.sizes[0], seed=1))
    alone, before = adapter.encode(prepared), hooks(adapter)

    def pause() -> None:
        raise KeyError("nobody waits")

    with pytest.raises(KeyError, match="nobody waits"):
        paused(adapter, pause, lambda: adapter.encode(prepared))
    assert hooks(adapter) == before and torch.equal(adapter.encode(prepared).embeds, alone.embeds)


def test_a_short_run_of_the_encoder_has_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_pauses, "SECONDS", 60.0)
    item, found = matrix.loaded("qwen3_vl"), []
    prepared = item.preparer.image(matrix.picture(*item.case.sizes[0], seed=1))
    paused(item.adapter, lambda: found.append(1), lambda: item.adapter.encode(prepared))
    assert not found

"""Rows that leave between layers, while other forwards run in the midst."""

import pytest
import torch
from torch import Tensor

from emblema.models.adapter import Adapter
from tests.families import loaded, words
from tests.families.running import joint


@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3", "kimi_k25"])
def test_another_forward_between_two_layers_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = Adapter(loaded(name).model)
    prompt, *_ = joint(loaded(name))
    other = adapter.encode_text(words(9))
    plain = adapter.capture(other)
    rows, captured = torch.arange(len(prompt.token_ids)), 0

    def pause() -> None:
        nonlocal captured
        adapter.pause, captured = None, captured + 1
        for own, known in zip(adapter.capture(other), plain, strict=True):
            assert torch.allclose(own.keys, known.keys, atol=1e-5)
        adapter.pause = pause

    def run() -> Tensor:
        table = adapter.table(len(rows))
        table.allocate(rows, prompt.groups)
        return adapter.forward(prompt.batch(rows), table, lambda layer: torch.arange(3) if layer == 1 else None)

    whole = run()
    monkeypatch.setattr(adapter, "block_rows", len(rows) // 2)
    adapter.pause = pause
    assert torch.allclose(run(), whole, atol=1e-5) and whole.shape[0] == 3
    assert captured > 1
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in adapter.layers)

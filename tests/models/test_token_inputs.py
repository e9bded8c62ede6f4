"""Decoders whose last layers attend rows of others, and whose layers embed the ids of tokens."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from emblema.errors import ModelError
from emblema.models.adapter import Adapter
from emblema.models.selfcheck import selfcheck
from emblema.models.token_inputs import token_inputs
from tests import families as matrix

NAME = "gemma4_shared"


def test_layers_that_attend_rows_of_others_keep_none() -> None:
    adapter = matrix.loaded(NAME).adapter
    assert [layout.keys for layout in adapter.layouts] == [(2, 16), (2, 32), (2, 16)]
    assert len(adapter.layers) == 6 and adapter.config.num_kv_shared_layers == 3
    assert selfcheck(adapter).passed


def test_media_are_given_what_the_stock_model_embeds_for_padding() -> None:
    adapter = matrix.loaded(NAME).adapter
    ids, visual = torch.tensor([[70, 3, 71]]), torch.tensor([[False, True, False]])
    (given,) = token_inputs(adapter.decoder, ids, visual).values()
    padded = torch.tensor([[70, adapter.config.pad_token_id, 71]])
    assert given.shape == (1, 3, 6, 8)
    assert torch.equal(given, adapter.decoder.get_per_layer_inputs(padded, None))


def test_rows_without_ids_are_refused() -> None:
    item = matrix.loaded(NAME)
    prompt = matrix.joint(item)[0]
    rows = torch.arange(len(prompt.token_ids))
    table = item.adapter.table(len(rows))
    table.allocate(rows, prompt.groups)
    with pytest.raises(ModelError, match="token_ids"):
        item.adapter.forward(replace(prompt.batch(rows), token_ids=None), table)


@pytest.mark.parametrize("block_rows", [2048, 8])
@pytest.mark.parametrize("wanted", [0, 1, 5])
def test_rows_that_nobody_wants_leave_where_no_more_are_kept(
    wanted: int, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = matrix.loaded(NAME)
    adapter = Adapter(item.model)
    prompt = matrix.joint(item)[0]
    rows = torch.arange(len(prompt.token_ids))
    whole, _ = matrix.run_all(adapter, prompt)
    everything = adapter.forward(prompt.batch(rows), whole)
    monkeypatch.setattr(adapter, "block_rows", block_rows)
    run = [0] * len(adapter.layers)

    def count(index: int) -> Any:
        def hook(layer: Any, args: Any) -> None:
            run[index] += args[0].shape[1]

        return hook

    hooks = [layer.mlp.register_forward_pre_hook(count(index)) for index, layer in enumerate(adapter.layers)]
    table = adapter.table(len(rows))
    table.allocate(rows, prompt.groups)
    try:
        hidden = adapter.forward(prompt.batch(rows), table, wanted=wanted)
    finally:
        for hook in hooks:
            hook.remove()
    assert hidden.shape == (wanted, adapter.hidden_size)
    assert torch.allclose(hidden, everything[len(rows) - wanted :], atol=1e-4)
    for layer in range(len(adapter.layouts)):
        assert torch.allclose(table.read(layer).keys, whole.read(layer).keys, atol=1e-4)
    assert run[:3] == [len(rows)] * 3
    assert max(run[3:]) <= wanted + -(-len(rows) // block_rows)


def test_decoding_equals_the_stock_forward() -> None:
    item = matrix.loaded(NAME)
    adapter = item.adapter
    prompt, _, pictures, _ = matrix.joint(item)
    table, logits = matrix.run_all(adapter, prompt)
    batch, said = adapter.batch_table(), []
    batch.admit(table)
    position, row, ids = int(prompt.positions.max()) + 1, len(prompt.token_ids), prompt.token_ids
    last = logits[-1]
    for step in range(8):
        said.append(int(last.argmax()))
        last = adapter.decode(
            torch.tensor(said[-1:]), torch.tensor([position + step]), torch.tensor([row + step]), batch
        )[0]
    arguments = item.case.stock(item.bundle, item.model.config, pictures, ids)
    whole = torch.cat((ids, torch.tensor(said)))
    arguments["mm_token_type_ids"] = torch.nn.functional.pad(arguments["mm_token_type_ids"], (0, len(said)))
    with torch.inference_mode():
        stock = item.model(input_ids=whole[None], use_cache=False, **arguments).logits[0].float()
    assert said == stock[row - 1 : -1].argmax(dim=1).tolist()
    assert torch.allclose(last, stock[-1], atol=1e-4)

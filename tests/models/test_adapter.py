"""Every family against its own stock forward: all rows, some rows, layer by layer; the model left as found."""

import threading
import warnings
from typing import Any

import pytest
import torch

from emblema.errors import ModelError, PromptError
from emblema.models.adapter import Adapter
from emblema.models.prepare import Preparer
from tests import families as matrix

CASES = list(matrix.CASES)


@pytest.mark.parametrize("name", CASES)
def test_select_all_equals_stock(name: str) -> None:
    item = matrix.loaded(name)
    prompt, _, pictures, _ = matrix.joint(item)
    _, logits = matrix.run_all(item.adapter, prompt)
    stock = matrix.stock_logits(item, prompt, pictures)
    assert float(stock.std()) > 0.5
    assert float((logits - stock).abs().max()) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_subset_of_rows_with_true_rows_elsewhere(name: str) -> None:
    item = matrix.loaded(name)
    adapter = item.adapter
    prompt, _, _, parts = matrix.joint(item, seed=3)
    full, logits = matrix.run_all(adapter, prompt)
    tokens = len(prompt.token_ids)
    taken = torch.zeros(tokens, dtype=torch.bool)
    taken[prompt.starts[1] : prompt.starts[2]] = True
    taken[prompt.starts[3] + 1 : prompt.starts[4] : 2] = True
    if not _causal(adapter):
        # A bidirectional picture is recomputed whole or not at all.
        taken[prompt.starts[3] : prompt.starts[4]] = False
    computed = (~taken).nonzero()[:, 0]
    table = adapter.table(4)
    table.allocate(torch.arange(tokens), prompt.groups)
    rows = taken.nonzero()[:, 0]
    for layer in range(len(adapter.layouts)):
        table.write(layer, rows, full.read(layer).select(rows))
    hidden = adapter.forward(prompt.batch(computed), table)
    assert float((adapter.logits(hidden) - logits[computed]).abs().max()) < 1e-4
    for layer in range(len(adapter.layouts)):
        assert torch.allclose(table.read(layer).keys, full.read(layer).keys, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_no_argument_is_passed_by_a_name_that_transformers_gives_up(name: str) -> None:
    item = matrix.loaded(name)
    prompt, _, _, _ = matrix.joint(item)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        adapter = Adapter(item.adapter.model)
        table = adapter.table(4)
        table.allocate(torch.arange(len(prompt.token_ids)), prompt.groups)
        adapter.forward(prompt.batch(torch.arange(len(prompt.token_ids))), table)


@pytest.mark.parametrize("name", CASES)
def test_blind_rows_differ_clearly(name: str) -> None:
    """The matrix discriminates: rows that saw nothing before them lead to other logits."""
    item = matrix.loaded(name)
    adapter = item.adapter
    prompt, _, _, parts = matrix.joint(item)
    full, logits = matrix.run_all(adapter, prompt)
    from emblema.models.selfcheck import shifted

    table = adapter.table(1)
    table.allocate(torch.arange(len(prompt.token_ids)), prompt.groups)
    for layer in range(len(adapter.layouts)):
        table.write(layer, slice(0, table.length), full.read(layer))
    chunk = parts[3]
    for layer, rows in enumerate(shifted(adapter, adapter.capture(chunk), chunk, prompt.offsets[3])):
        table.write(layer, slice(prompt.starts[3], prompt.starts[4]), rows)
    last = torch.arange(prompt.starts[4], len(prompt.token_ids))
    blind = adapter.logits(adapter.forward(prompt.batch(last), table))
    assert float((blind - logits[last]).abs().max()) > 0.02


@pytest.mark.parametrize("name", CASES)
def test_layer_by_layer_equals_whole(name: str) -> None:
    item = matrix.loaded(name)
    adapter = item.adapter
    prompt, _, _, _ = matrix.joint(item)
    full, logits = matrix.run_all(adapter, prompt)
    rows = torch.arange(len(prompt.token_ids))
    table = adapter.table(len(rows))
    table.allocate(rows, prompt.groups)
    hidden = adapter.forward(prompt.batch(rows), table, narrow=lambda layer: None)
    assert float((adapter.logits(hidden) - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "gemma3", "kimi_k25"])
def test_narrowing_leaves_dropped_rows_as_they_were(name: str) -> None:
    """Rows dropped after a layer keep their older rows in later layers; with true rows there the result is exact."""
    item = matrix.loaded(name)
    adapter = item.adapter
    prompt, _, _, _ = matrix.joint(item)
    full, logits = matrix.run_all(adapter, prompt)
    rows = torch.arange(len(prompt.token_ids))
    table = adapter.table(len(rows))
    table.allocate(rows, prompt.groups)
    for layer in range(len(adapter.layouts)):
        table.write(layer, slice(0, len(rows)), full.read(layer))
    every_second = torch.arange(0, len(rows), 2)
    seen: list[int] = []

    def narrow(layer: int) -> torch.Tensor | None:
        seen.append(layer)
        return every_second if layer == 0 else None

    hidden = adapter.forward(prompt.batch(rows), table, narrow)
    assert seen == list(range(len(adapter.layouts)))
    assert float((adapter.logits(hidden) - logits[::2]).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "gemma3"])
def test_long_batches_run_in_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    item = matrix.loaded(name)
    prompt, _, _, _ = matrix.joint(item)
    _, logits = matrix.run_all(item.adapter, prompt)
    monkeypatch.setattr(item.adapter, "block_rows", 9, raising=False)
    _, blocks = matrix.run_all(item.adapter, prompt)
    assert float((blocks - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "gemma3"])
def test_physical_order_does_not_matter(name: str) -> None:
    item = matrix.loaded(name)
    adapter = item.adapter
    prompt, _, _, _ = matrix.joint(item)
    _, logits = matrix.run_all(adapter, prompt)
    rows = torch.arange(len(prompt.token_ids))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))
    table = adapter.table(len(rows) + 9)
    table.allocate(order, prompt.groups[order])
    batch = prompt.batch(rows)
    slots = torch.empty_like(order)
    slots[order] = rows
    from dataclasses import replace

    hidden = adapter.forward(replace(batch, slots=slots), table)
    assert float((adapter.logits(hidden) - logits).abs().max()) < 1e-4


def test_hidden_rows_are_as_good_as_absent() -> None:
    item = matrix.loaded("qwen2_5_vl")
    adapter = item.adapter
    prompt, _, _, _ = matrix.joint(item)
    full, _ = matrix.run_all(adapter, prompt)
    tokens = len(prompt.token_ids)
    last = torch.arange(prompt.starts[4], tokens)
    away = torch.zeros(tokens, dtype=torch.bool)
    away[prompt.starts[1] : prompt.starts[2]] = True
    from dataclasses import replace

    batch = prompt.batch(last)
    hidden = adapter.forward(replace(batch, hidden_from=away.expand(len(last), -1)), full)
    kept = (~away).nonzero()[:, 0]
    table = adapter.table(tokens)
    table.allocate(torch.arange(tokens), prompt.groups)
    for layer in range(len(adapter.layouts)):
        table.write(layer, slice(0, tokens), full.read(layer))
    table.drop(kept)
    slots = torch.arange(table.length - len(last), table.length)
    absent = adapter.forward(replace(batch, slots=slots), table)
    assert torch.allclose(hidden, absent, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_model_is_left_as_found(name: str) -> None:
    """Nothing in the tree changes, from before the adapter was made. The one exception is not ours: on the first call
    of some vision towers transformers installs its hooks for capturing hidden states, once."""
    model, bundle = matrix.CASES[name].build(5)
    before, weights = _tree(model), _sums(model)
    adapter, preparer = Adapter(model), Preparer(bundle, model.config)
    item = matrix.Loaded(matrix.CASES[name], model, bundle, adapter, preparer)
    for seed in range(6):
        prompt, _, _, parts = matrix.joint(item, seed)
        matrix.run_all(adapter, prompt)
        adapter.capture(parts[1])
        matrix.run_all(adapter, matrix.compose(adapter, [adapter.encode_text(matrix.words(7, seed))]))
        if seed == 0:
            first = _tree(model)
    assert _tree(model) == first
    changed = {key for key in before.keys() | first.keys() if before.get(key) != first.get(key)}
    assert not [key for key in changed if "_forward_hooks" not in key and "output_capturing" not in key]
    assert not [key for key in changed if "language_model" in key or "text_model" in key]
    assert _sums(model) == weights


def _tree(model: Any) -> dict[str, Any]:
    """Modules, parameters, buffers and attributes, each by identity."""
    tree: dict[str, Any] = {}
    for name, module in model.named_modules():
        tree[name] = (id(module), type(module))
        for key, value in vars(module).items():
            plain = value if isinstance(value, int | float | str | bool | type(None)) else id(value)
            tree[f"{name}.{key}"] = plain
            if isinstance(value, dict):
                tree[f"{name}.{key}{{}}"] = {inner: id(item) for inner, item in value.items()}
    return tree


def _sums(model: Any) -> dict[str, float]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {name: float(value.detach().double().sum()) for name, value in tensors}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2_5_vl", "llava_next", "qwen3_vl"])
def test_two_threads_on_one_model(name: str) -> None:
    item = matrix.loaded(name)
    prompts = [matrix.joint(item, seed)[0] for seed in (0, 1)]
    expected = [matrix.run_all(item.adapter, prompt)[1] for prompt in prompts]
    other = Adapter(item.model)
    wrong: list[float] = []

    def work(adapter: Adapter, index: int) -> None:
        for _ in range(12):
            prompt = matrix.joint(matrix.Loaded(item.case, item.model, item.bundle, adapter, item.preparer), index)[0]
            logits = matrix.run_all(adapter, prompt)[1]
            wrong.append(float((logits - expected[index]).abs().max()))

    threads = [threading.Thread(target=work, args=(item.adapter, 0)), threading.Thread(target=work, args=(other, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 24
    assert max(wrong) == 0.0


def test_token_ids_outside_the_vocabulary_are_refused() -> None:
    adapter = matrix.loaded("llava").adapter
    with pytest.raises(PromptError, match="vocabulary"):
        adapter.embed(torch.tensor([matrix.VOCAB]))


@pytest.mark.parametrize("name", ["kimi_k25", "llava"])
def test_placeholders_without_features_are_embedded_as_stock_does(name: str) -> None:
    """A model may generate them, and text may hold them."""
    item = matrix.loaded(name)
    ids = torch.cat([matrix.words(4, 1), torch.tensor([matrix.token("<|media_pad|>"), matrix.token("<video>")])])
    ids = torch.cat([ids, torch.tensor([matrix.token("<image>")]), matrix.words(3, 2)])
    _, hidden = item.adapter.prefill(item.adapter.encode_text(ids))
    with torch.inference_mode():
        stock = item.model(input_ids=ids[None], use_cache=False).logits[0].float()
    assert float((item.adapter.logits(hidden) - stock).abs().max()) < 1e-4


def test_features_that_do_not_fit_the_placeholders_are_refused() -> None:
    item = matrix.loaded("qwen2_5_vl")
    from dataclasses import replace

    prepared = item.preparer.image(matrix.picture(40, 30))
    with pytest.raises(ModelError, match="placeholder"):
        item.adapter.encode(replace(prepared, token_ids=prepared.token_ids[:-2]))


def _causal(adapter: Adapter) -> bool:
    return not adapter.kind.bidirectional(adapter.model.config)


def test_an_adapter_notices_changed_weights() -> None:
    model, _ = matrix.CASES["llava"].build(0)
    adapter = Adapter(model)
    first = adapter.fingerprint
    assert adapter.fingerprint == first
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1.0
    second = adapter.fingerprint
    assert second != first
    model.lm_head.scaling = {"default": 2.0}
    assert adapter.fingerprint != second


def test_a_model_in_training_mode_is_refused() -> None:
    model, _ = matrix.CASES["llava"].build(0)
    with pytest.raises(ModelError, match=r"model\.eval"):
        Adapter(model.train())

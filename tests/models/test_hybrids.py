"""Layers of other kinds between those of attention: short convolutions, and linear attention that keeps a state."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.attention import AttendedRows
from emblema.models.linear_attention import linear_layout
from emblema.models.selfcheck import selfcheck, shifted
from emblema.models.tables import KVTable
from tests.families import compose, loaded, picture, run_all, words

CONVOLUTIONS = ("lfm2_vl", "lfm3_vl")
HYBRIDS = (*CONVOLUTIONS, "qwen3_5", "qwen3_5_moe")


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 2**16), st.booleans())
def test_a_row_reads_the_rows_before_it_that_are_not_hidden(length: int, taps: int, seed: int, hides: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(3 * length, generator=generator)[:length]
    table = KVTable([LayerLayout((1, 2), (1, 2), None, taps=taps)], length, torch.float32, "cpu")
    table.allocate(rows)
    slots = torch.randperm(length, generator=generator)[: max(1, length // 2)]
    hidden = None
    if hides:
        hidden = torch.rand(len(slots), length, generator=generator) < 0.4
        hidden[torch.arange(len(slots)), slots] = False
    found = AttendedRows(table, slots, (None,), hidden).rows_before(taps)
    for index, slot in enumerate(slots.tolist()):
        before = [other for other in range(length) if rows[other] <= rows[slot]]
        if hidden is not None:
            before = [other for other in before if not hidden[index, other]]
        last = sorted(before, key=lambda other: int(rows[other]))[-taps:]
        assert found[index].tolist() == [-1] * (taps - len(last)) + last


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_self_check_passes_and_layouts_say_what_a_layer_keeps(name: str) -> None:
    adapter = loaded(name).adapter
    assert selfcheck(adapter).passed
    taps = {"lfm2_vl": 3, "lfm3_vl": 7}.get(name, 4)
    kinds = {"conv": ("convolution", taps), "linear_attention": ("linear", taps)}
    for kind, layout in zip(adapter.types, adapter.layouts, strict=True):
        assert (layout.kind, layout.taps) == kinds.get(kind, ("heads", None))
    assert adapter.keeps_states == (name not in CONVOLUTIONS)


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_blind_rows_are_those_of_a_forward_in_which_no_chunk_sees_another(name: str, order: tuple[int, ...]) -> None:
    item = loaded(name)
    adapter = item.adapter
    chunks = [adapter.encode(item.preparer.image(picture(40, 30, seed))) for seed in order]
    prompt = compose(adapter, [*chunks, adapter.encode_text(words(6, 1))])
    rows = torch.arange(len(prompt.token_ids))
    hidden = torch.zeros(len(rows), len(rows), dtype=torch.bool)
    taken, apart = adapter.table(len(rows)), adapter.table(len(rows))
    for table in (taken, apart):
        table.allocate(rows, prompt.groups)
    for chunk, start, offset in zip(chunks, prompt.starts[:3], prompt.offsets[:3], strict=True):
        span = slice(start, start + chunk.tokens)
        hidden[span] = True
        hidden[span, span] = False
        for layer, own in enumerate(shifted(adapter, adapter.capture(chunk), chunk, offset)):
            taken.write(layer, span, own)
    batch = prompt.batch(rows)
    expected = adapter.logits(adapter.forward(replace(batch, hidden_from=hidden), apart))[prompt.starts[3] :]
    blind = adapter.logits(adapter.forward(prompt.batch(rows[prompt.starts[3] :]), taken))
    assert float((blind - expected).abs().max()) < 1e-4
    _, full = run_all(adapter, prompt)
    assert float((blind - full[prompt.starts[3] :]).abs().max()) > 0.02, "chunks do see each other"


@pytest.mark.parametrize("name", HYBRIDS)
def test_decoding_equals_the_stock_forward(name: str) -> None:
    """Two sequences of different lengths, a table that is not in the order of its prompt, 24 rows each."""
    item = loaded(name)
    adapter = item.adapter
    batch = adapter.batch_table()
    known = [words(11, 5).tolist(), words(2, 6).tolist()]
    for ids in known:
        rows = torch.arange(len(ids))
        order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(2))
        table = adapter.table(len(ids))
        table.allocate(order)
        prompt = compose(adapter, [adapter.encode_text(torch.tensor(ids))])
        adapter.forward(replace(prompt.batch(rows), slots=order.argsort()), table)
        batch.admit(table)
    with torch.inference_mode():
        for step in range(24):
            new = words(2, 50 + step)
            places = torch.tensor([len(ids) for ids in known])
            logits = adapter.decode(new, places, places, batch)
            for index, ids in enumerate(known):
                ids.append(int(new[index]))
                stock = item.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()
                assert float((logits[index] - stock).abs().max()) < 1e-4, (step, index)


# Experts would flip where sums are rounded otherwise.
@pytest.mark.parametrize("name", HYBRIDS[:-1])
def test_rows_that_come_one_after_another_go_on_from_what_is_known(name: str) -> None:
    """The same logits whether a passage is run at once, in blocks, or row by row; and after rows have left."""
    adapter = loaded(name).adapter
    prompt = compose(adapter, [adapter.encode_text(words(70, 3))])
    rows, runs = torch.arange(70), []
    for blocks in ((70,), (30, 40), (66, 1, 1, 1, 1)):
        table, logits = adapter.table(70), []
        for own in rows.split(list(blocks)):
            table.allocate(own)
            logits.append(adapter.logits(adapter.forward(prompt.batch(own), table)))
        runs.append(torch.cat(logits))
    assert all(float((run - runs[0]).abs().max()) < 1e-4 for run in runs[1:])
    keep = torch.cat((rows[:20], rows[40:69]))
    table.drop(keep)
    table.allocate(torch.tensor([69]))
    last = prompt.batch(torch.tensor([69]))
    apart = adapter.table(70)
    apart.allocate(torch.cat((keep, torch.tensor([69]))))
    for layer in range(len(adapter.layouts)):
        apart.write(layer, torch.arange(50), table.read(layer))
    slot = torch.tensor([49])
    known = adapter.logits(adapter.forward(replace(last, slots=slot), table))
    afresh = adapter.logits(adapter.forward(replace(last, slots=slot), apart))
    assert float((known - afresh).abs().max()) < 1e-4 < float((known - runs[0][-1:]).abs().max())


def test_a_state_of_other_rows_is_not_decoded_from() -> None:
    adapter = loaded("qwen3_5").adapter
    prompt, table = compose(adapter, [adapter.encode_text(words(9, 3))]), adapter.table(9)
    table.allocate(torch.arange(9))
    adapter.forward(prompt.batch(torch.arange(9)), table)
    table.drop(torch.arange(8))
    with pytest.raises(ModelError, match="is not known"):
        adapter.batch_table().admit(table)
    adapter.make_states(table)
    assert {known.until for known in table.states.values()} == {8}
    adapter.batch_table().admit(table)


def test_rows_are_not_hidden_from_some_rows_of_a_batch_alone() -> None:
    adapter = loaded("qwen3_5").adapter
    prompt, table = compose(adapter, [adapter.encode_text(words(9, 3))]), adapter.table(9)
    table.allocate(torch.arange(9))
    hidden = torch.zeros(9, 9, dtype=torch.bool)
    hidden[4:, 1] = True
    batch = replace(prompt.batch(torch.arange(9)), hidden_from=hidden)
    with pytest.raises(ModelError, match="keeps a state"):
        adapter.forward(batch, table, narrow=lambda layer: None)
    assert adapter.forward(batch, table).isfinite().all(), "in runs it can be done"


def test_rows_of_linear_attention_are_as_large_as_the_documents_say() -> None:
    """At the shapes of Qwen3.5-9B, in bfloat16."""
    from transformers import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = Qwen3_5TextConfig()
    with torch.device("meta"):
        layout = linear_layout(Qwen3_5GatedDeltaNet(config, 0), torch.bfloat16)
    linear = config.layer_types.count("linear_attention")
    assert linear * layout.features * 2 == 396_288
    assert linear * layout.map_numbers * 2 == 29_715_456
    heads = LayerLayout(*2 * ((config.num_key_value_heads, config.head_dim),), None)
    assert (len(config.layer_types) - linear) * heads.features * 2 == 32_768


def test_a_table_without_a_forward_refuses() -> None:
    table = KVTable([LayerLayout((1, 2), (1, 2), None, taps=3)], 4, torch.float32, "cpu")
    table.allocate(torch.arange(4))
    table.write(0, slice(0, 4), LayerRows(torch.ones(1, 4, 2), torch.ones(1, 4, 2)))
    with pytest.raises(ModelError, match=r"Adapter\.forward"):
        table.update_conv_state(torch.ones(1, 4, 1), 0)

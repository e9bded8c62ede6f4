"""Short convolutions between layers of attention: which rows each reads, at any place, and in decoding."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.attention import AttendedRows
from emblema.models.selfcheck import selfcheck, shifted
from emblema.models.tables import KVTable
from tests.families import compose, loaded, picture, run_all, words

BOTH = ("lfm2_vl", "lfm3_vl")


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


@pytest.mark.parametrize("name", BOTH)
def test_the_self_check_passes_and_layouts_say_how_many_rows_are_read(name: str) -> None:
    adapter = loaded(name).adapter
    assert selfcheck(adapter).passed
    taps = {"lfm2_vl": 3, "lfm3_vl": 7}[name]
    for kind, layout in zip(adapter.types, adapter.layouts, strict=True):
        assert (layout.kind == "convolution") == (kind == "conv")
        assert layout.taps == (taps if kind == "conv" else None)


@pytest.mark.parametrize("name", BOTH)
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


@pytest.mark.parametrize("name", BOTH)
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


def test_a_table_without_a_forward_refuses() -> None:
    table = KVTable([LayerLayout((1, 2), (1, 2), None, taps=3)], 4, torch.float32, "cpu")
    table.allocate(torch.arange(4))
    table.write(0, slice(0, 4), LayerRows(torch.ones(1, 4, 2), torch.ones(1, 4, 2)))
    with pytest.raises(ModelError, match=r"Adapter\.forward"):
        table.update_conv_state(torch.ones(1, 4, 1), 0)

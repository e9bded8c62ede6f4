"""Attention by rows gives what attention with a mask of all rows by all rows gives."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.kv.layout import LayerLayout
from emblema.models import attention
from emblema.models.attention import AttendedRows
from emblema.models.masks import attention_masks
from emblema.models.tables import KVTable
from tests.families import CASES, loaded
from tests.families.running import joint, run_all

HEADS, KEY_HEADS, WIDTH = 6, 2, 8


def table_of(rows: list[int], groups: list[int]) -> KVTable:
    table = KVTable((LayerLayout((KEY_HEADS, WIDTH), (KEY_HEADS, WIDTH), None),) * 2, len(rows), torch.float32, "cpu")
    table.allocate(torch.tensor(rows), torch.tensor(groups))
    return table


def by_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Plain attention [1, rows, heads, width] in float64."""
    shared = query.shape[1] // key.shape[1]
    key, value = (each.double().repeat_interleave(shared, 1) for each in (key, value))
    scores = query.double() @ key.transpose(2, 3) * query.shape[-1] ** -0.5 + mask.double()
    return (scores.softmax(-1) @ value).transpose(1, 2)


@given(st.data())
def test_rows_attend_what_a_whole_mask_says(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40))
    rows = sorted(data.draw(st.sets(st.integers(0, 60), min_size=length, max_size=length)))
    if data.draw(st.booleans(), "out of order"):
        rows = data.draw(st.permutations(rows))
    groups = [-1] * length
    if data.draw(st.booleans(), "groups"):
        start = data.draw(st.integers(0, length - 1))
        groups[start : start + 4] = [3] * len(groups[start : start + 4])
    table = table_of(rows, groups)
    chosen = sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1)))
    if data.draw(st.booleans(), "any order"):
        chosen = data.draw(st.permutations(chosen))
    slots = torch.tensor(chosen)
    hidden = None
    if data.draw(st.booleans(), "hidden"):
        hidden = torch.rand(len(chosen), length, generator=torch.Generator().manual_seed(length)) < 0.3
        hidden[torch.arange(len(chosen)), slots] = False
    windows = (None, data.draw(st.one_of(st.none(), st.integers(1, 30))))
    causal = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(len(chosen))
    query = torch.randn(1, HEADS, len(chosen), WIDTH, generator=generator)
    key, value = torch.randn(2, 1, KEY_HEADS, length, WIDTH, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MOST_QUERIES", "GAP", "PACKED"):
            patch.setattr(attention, name, data.draw(st.sampled_from([1, 4, 1000]), name))
        seen = AttendedRows(table, slots, windows, hidden, causal)
        masks = attention_masks(table, slots, windows, hidden, causal)
        for layer, window in enumerate(windows):
            found, _ = seen.attend(SimpleNamespace(layer_idx=layer), query, key, value, None)
            torch.testing.assert_close(found.double(), by_mask(query, key, value, masks[window]), atol=2e-6, rtol=0)


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_the_last_layer_attends_for_wanted_rows_alone(wanted: int) -> None:
    table, slots = table_of(list(range(9)), [-1] * 9), torch.arange(2, 9)
    query, (key, value) = torch.randn(1, HEADS, 7, WIDTH), torch.randn(2, 1, KEY_HEADS, 9, WIDTH)
    every, some = (AttendedRows(table, slots, (None, None), wanted=each) for each in (None, wanted))
    for layer, first in ((0, 0), (1, 7 - wanted)):
        module = SimpleNamespace(layer_idx=layer)
        whole, _ = every.attend(module, query, key, value, None)
        found, _ = some.attend(module, query, key, value, None)
        torch.testing.assert_close(found[:, first:], whole[:, first:])
        assert not found[:, :first].any()


def test_no_mask_is_made_where_rows_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(*given: object) -> object:
        found = attention_masks(*given)  # type: ignore[arg-type]
        made.extend(mask.numel() for mask in found.values())
        return found

    monkeypatch.setattr(attention, "attention_masks", counted)
    table = table_of(list(range(2000)), [-1] * 2000)
    key, value = torch.randn(2, 1, KEY_HEADS, 2000, WIDTH)
    for slots in (torch.arange(2000), torch.tensor([1999])):
        AttendedRows(table, slots, (None,)).attend(
            SimpleNamespace(layer_idx=0), torch.randn(1, HEADS, len(slots), WIDTH), key, value, None
        )
    assert not made
    slots = torch.cat([torch.arange(start, start + 60) for start in (0, 500, 1000, 1940)])
    seen = AttendedRows(table, slots, (None,))
    seen.attend(SimpleNamespace(layer_idx=0), torch.randn(1, HEADS, 240, WIDTH), key, value, None)
    # Of 240 rows by 2,000: each run of rows as far as its last.
    assert sum(made) == 60 * (560 + 1060 + 2000)


@pytest.mark.parametrize("name", list(CASES))
def test_every_family_attends_by_rows(name: str) -> None:
    item = loaded(name)
    prompt, *_ = joint(item)
    table, logits = run_all(item.adapter, prompt)
    again = item.adapter.table(len(prompt.token_ids))
    again.allocate(torch.arange(len(prompt.token_ids)), prompt.groups)
    hidden = item.adapter.forward(prompt.batch(torch.arange(len(prompt.token_ids))), again, wanted=2)
    assert hidden.shape[0] == 2
    torch.testing.assert_close(item.adapter.logits(hidden), logits[-2:], atol=1e-5 * float(logits.abs().max()), rtol=0)
    for layer in range(len(item.adapter.layouts)):
        torch.testing.assert_close(again.read(layer).keys, table.read(layer).keys, atol=1e-5, rtol=1e-5)

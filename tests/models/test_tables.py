"""KV tables: rows of one request are scattered, grow, are compacted and truncated; room for several comes and goes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.batch_table import BatchTable
from emblema.models.masks import attention_masks
from emblema.models.tables import KVTable

LAYOUTS = (LayerLayout((2, 4), (2, 3), None), LayerLayout((1, 6), (1, 2), None))


def filled(rows: int, capacity: int = 2) -> KVTable:
    table = KVTable(LAYOUTS, capacity, torch.float32, "cpu")
    slots = table.allocate(torch.arange(rows) * 2)
    for layer in range(2):
        table.write(layer, slice(slots.start, slots.stop), random_rows(layer, rows))
    return table


def random_rows(layer: int, rows: int) -> LayerRows:
    generator = torch.Generator().manual_seed(layer)
    layout = LAYOUTS[layer]
    return LayerRows(
        torch.randn(layout.keys[0], rows, layout.keys[1], generator=generator),
        torch.randn(layout.values[0], rows, layout.values[1], generator=generator),
    )


def test_grows_by_doubling_and_keeps_what_it_holds() -> None:
    table = filled(5)
    before = table.read(1).select(torch.arange(5))
    assert (table.length, table.capacity) == (5, 5)
    assert table.allocate(torch.tensor([100])) == range(5, 6)
    assert table.capacity == 10
    assert torch.equal(table.read(1, 0, 5).keys, before.keys)
    assert table.rows[:6].tolist() == [0, 2, 4, 6, 8, 100]
    assert table.groups[:6].tolist() == [-1] * 6


@given(st.lists(st.integers(0, 7), min_size=1, max_size=8, unique=True))
def test_drop_compacts(keep: list[int]) -> None:
    table, original = filled(8), filled(8)
    table.drop(torch.tensor(keep))
    assert table.length == len(keep)
    assert table.rows[: len(keep)].tolist() == [2 * slot for slot in keep]
    for layer in range(2):
        assert torch.equal(table.read(layer).keys, original.read(layer).keys[:, keep])
        assert torch.equal(table.read(layer).values, original.read(layer).values[:, keep])


def test_truncate() -> None:
    table = filled(8)
    table.truncate(3)
    assert table.read(0).tokens == 3
    with pytest.raises(ModelError, match="cannot be truncated"):
        table.truncate(4)


def test_scattered_writes_and_views() -> None:
    table = filled(6)
    fresh = random_rows(0, 2)
    table.write(0, torch.tensor([4, 1]), fresh)
    assert torch.equal(table.read(0).keys[:, [4, 1]], fresh.keys)
    table.read(0).keys[:, 0] = 7.0
    assert bool((table.read(0, 0, 1).keys == 7.0).all())


def test_update_needs_slots() -> None:
    table = filled(2)
    with pytest.raises(ModelError, match=r"Adapter\.forward"):
        table.update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 3), 0)


def test_written_inside_inference_mode_and_out() -> None:
    with torch.inference_mode():
        table = filled(3)
    table.write(0, slice(0, 3), random_rows(0, 3))
    with torch.inference_mode():
        table.allocate(torch.tensor([9]))
    table.drop(torch.tensor([3, 0]))
    assert table.rows[:2].tolist() == [9, 0]


def test_sizes_reported_to_any_release() -> None:
    table = filled(4)
    assert table.get_seq_length() == 4
    assert table.get_mask_sizes(1) == table.get_mask_sizes(torch.arange(1), 0) == (4, 0)
    assert table.get_max_length() == table.get_max_cache_shape() == -1
    assert len(table) == 2


@given(st.permutations(range(7)), st.integers(1, 7), st.booleans())
def test_masks_go_by_place_in_the_prompt(order: list[int], window: int, causal: bool) -> None:
    table = KVTable(LAYOUTS, 7, torch.float32, "cpu")
    groups = torch.tensor([5 if 2 <= row <= 4 else -1 for row in order])
    table.allocate(torch.tensor(order), groups)
    slots = torch.arange(7)
    hidden = torch.zeros(7, 7, dtype=torch.bool)
    hidden[:, order.index(1)] = True
    masks = attention_masks(table, slots, (None, window), hidden, causal)
    for query in range(7):
        for key in range(7):
            row, other = order[query], order[key]
            together = 2 <= row <= 4 and 2 <= other <= 4
            full = (other <= row or together and not causal) and other != 1
            near = (other <= row or together) and other != 1 and row - other < window
            assert (masks[None][0, 0, query, key] == 0) == full
            assert (masks[window][0, 0, query, key] == 0) == near


def test_rows_of_each_layer_are_on_its_device_and_their_order_on_all() -> None:
    cpu, other = torch.device("cpu"), torch.device("meta")
    layouts = [LayerLayout((1, 4), (1, 2), None)] * 3
    table = KVTable(layouts, 2, torch.float32, cpu, [cpu, other, other])
    assert table.elsewhere == (other,)
    table.allocate(torch.arange(3))
    assert table.capacity == 4, "it has grown"
    assert [table.read(layer).keys.device for layer in range(3)] == [cpu, other, other]
    for device in (cpu, other):
        rows, groups = table.order(device)
        assert rows.device == groups.device == device and len(rows) == table.capacity
    assert [rows.values.device for rows in table.gather(torch.tensor([2, 0]))] == [cpu, other, other]
    table.drop(torch.tensor([2, 0]))
    assert table.length == 2 and table.read(2).keys.shape == (1, 2, 4)


def numbered(rows: int) -> KVTable:
    """A table whose rows hold their numbers."""
    table = KVTable(LAYOUTS, rows, torch.float32, "cpu")
    slots = table.allocate(torch.arange(rows))
    for layer, layout in enumerate(LAYOUTS):
        numbers = torch.arange(rows, dtype=torch.float32)[None, :, None]
        made = [numbers.expand(heads, rows, width) for heads, width in (layout.keys, layout.values)]
        table.write(layer, slice(slots.start, slots.stop), LayerRows(*made))
    return table


def written_step(table: BatchTable, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Write a row of -1 for each sequence; return what the decoder gets."""
    layout, count = LAYOUTS[layer], table.sequences
    made = [torch.full((count, heads, 1, width), -1.0) for heads, width in (layout.keys, layout.values)]
    return table.update(made[0], made[1], layer)


def test_rows_stay_while_room_grows() -> None:
    table = BatchTable(LAYOUTS, torch.float32, "cpu")
    for rows in (3, 700, 5):
        table.admit(numbered(rows))
    table.begin()
    table.place(torch.tensor([3, 700, 5]))
    assert table.get_mask_sizes(1) == (701, 0) and table.get_seq_length() == table.attended == 701
    for layer in range(len(LAYOUTS)):
        keys, values = written_step(table, layer)
        for number, rows in enumerate((3, 700, 5)):
            for held in (keys, values):
                assert held[number, 0, : rows + 1, 0].tolist() == [*range(rows), -1]
    mask = table.masks([None])[None][:, 0, 0] == 0
    assert mask.sum(-1).tolist() == [4, 701, 6]


def test_nothing_stays_of_the_last_sequence_that_leaves() -> None:
    table = BatchTable(LAYOUTS, torch.float32, "cpu")
    for _ in range(3):
        table.admit(numbered(900))
    for _ in range(3):
        table.release(0)
    assert table.bytes == 0 and table.sequences == 0
    table.admit(numbered(2))
    table.begin()
    table.place(torch.tensor([2]))
    keys, _ = written_step(table, 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, -1] and len(table) == 2
    new = BatchTable(LAYOUTS, torch.float32, "cpu")
    new.admit(numbered(2))
    assert table.bytes == new.bytes

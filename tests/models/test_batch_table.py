"""The table of several sequences: room for them comes and goes."""

import torch

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.batch_table import BatchTable
from emblema.models.table import KVTable

LAYOUTS = (LayerLayout((2, 4), (2, 3), None), LayerLayout((1, 6), (1, 2), None))


def table_of(rows: int) -> KVTable:
    """A table whose rows hold their numbers."""
    table = KVTable(LAYOUTS, rows, torch.float32, "cpu")
    slots = table.allocate(torch.arange(rows))
    for layer, layout in enumerate(LAYOUTS):
        numbers = torch.arange(rows, dtype=torch.float32)[None, :, None]
        made = [numbers.expand(heads, rows, width) for heads, width in (layout.keys, layout.values)]
        table.write(layer, slice(slots.start, slots.stop), LayerRows(*made))
    return table


def step(table: BatchTable, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Write a row of -1 for each sequence; return what the decoder gets."""
    layout, count = LAYOUTS[layer], table.sequences
    made = [torch.full((count, heads, 1, width), -1.0) for heads, width in (layout.keys, layout.values)]
    return table.update(made[0], made[1], layer)


def test_rows_stay_while_room_grows() -> None:
    table = BatchTable(LAYOUTS, torch.float32, "cpu")
    for rows in (3, 700, 5):
        table.admit(table_of(rows))
    table.begin()
    table.place(torch.tensor([3, 700, 5]))
    assert table.get_mask_sizes(1) == (701, 0) and table.get_seq_length() == table.attended == 701
    for layer in range(len(LAYOUTS)):
        keys, values = step(table, layer)
        for number, rows in enumerate((3, 700, 5)):
            for held in (keys, values):
                assert held[number, 0, : rows + 1, 0].tolist() == [*range(rows), -1]
    mask = table.masks([None])[None][:, 0, 0] == 0
    assert mask.sum(-1).tolist() == [4, 701, 6]


def test_nothing_stays_of_the_last_sequence_that_leaves() -> None:
    table = BatchTable(LAYOUTS, torch.float32, "cpu")
    for _ in range(3):
        table.admit(table_of(900))
    for _ in range(3):
        table.release(0)
    assert table.bytes == 0 and table.sequences == 0
    table.admit(table_of(2))
    table.begin()
    table.place(torch.tensor([2]))
    keys, _ = step(table, 0)
    assert keys[0, 0, :, 0].tolist() == [0, 1, -1] and len(table) == 2
    new = BatchTable(LAYOUTS, torch.float32, "cpu")
    new.admit(table_of(2))
    assert table.bytes == new.bytes

"""Which rows of a table some rows of a prompt attend, as a mask, and as numbers that a kernel reads in its place."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.models.tables import KVTable


@dataclass(frozen=True, slots=True)
class TableOrder:
    """Which rows of the prompt queries and slots of a table are: what a kernel reads in place of a mask.

    Attributes:
        query_rows, query_groups: [queries] int64.
        table_rows, table_groups: [slots] int64; a group of -1 is causal.
        hidden_from: [queries, slots] bool, True may not be attended; None hides nothing.
        window: of the layer.
    """

    query_rows: Tensor
    query_groups: Tensor
    table_rows: Tensor
    table_groups: Tensor
    hidden_from: Tensor | None
    window: int | None


def attention_masks(
    table: KVTable,
    slots: Tensor,
    windows: Iterable[int | None],
    hidden_from: Tensor | None,
    full_layers_causal: bool = False,
    columns: slice | None = None,
) -> dict[int | None, Tensor]:
    """Return an additive mask [1, 1, queries, length] in the table's dtype for each distinct window, where `slots` are.

    Row i attends row j if j is not after i, or both are in one bidirectional group; and not where `hidden_from`
    [queries, length] is True; and under a sliding window only the `window` nearest rows, counted in the whole prompt.
    With `full_layers_causal` groups count under a sliding window alone.
    `columns` are the slots that the mask is made for, and that `hidden_from` has; all in use by default.
    """
    columns = columns or slice(0, table.length)
    all_rows, all_groups = table.order(slots.device)
    rows, groups = all_rows[columns], all_groups[columns]
    distance = all_rows.index_select(0, slots)[:, None] - rows[None, :]
    own = all_groups.index_select(0, slots)[:, None]
    together = (own == groups[None, :]) & (own >= 0)
    masks = {}
    for window in set(windows):
        inside = distance >= 0
        if window is not None or not full_layers_causal:
            inside = inside | together
        if window is not None:
            inside = inside & (distance < window)
        if hidden_from is not None:
            inside = inside & ~hidden_from
        mask = torch.zeros(inside.shape, dtype=table.dtype, device=slots.device)
        masks[window] = mask.masked_fill_(~inside, torch.finfo(table.dtype).min)[None, None]
    return masks

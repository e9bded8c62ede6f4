"""Who may attend whom, by the rows' places in the prompt, as an additive mask."""

from collections.abc import Iterable

import torch
from torch import Tensor

from emblema.models.table import KVTable


def attention_masks(
    table: KVTable,
    slots: Tensor,
    windows: Iterable[int | None],
    hidden_from: Tensor | None,
    window_binds_groups: bool = True,
) -> dict[int | None, Tensor]:
    """One mask [1, 1, queries, length] in the table's dtype for each distinct window.

    Row i attends row j if j does not stand after i, or both are in one bidirectional group; and not where `hidden_from`
    [queries, length] is True; and under a sliding window only the `window` nearest rows, counted in the whole prompt.
    """
    length = table.length
    rows, groups = table.rows[:length], table.groups[:length]
    distance = rows.index_select(0, slots)[:, None] - rows[None, :]
    own = groups.index_select(0, slots)[:, None]
    together = (own == groups[None, :]) & (own >= 0)
    seen = (distance >= 0) | together
    if hidden_from is not None:
        seen = seen & ~hidden_from
    masks = {}
    for window in set(windows):
        inside = seen
        if window is not None:
            near = distance < window
            inside = seen & (near if window_binds_groups else near | together)
        mask = torch.zeros(inside.shape, dtype=table.dtype, device=table.device)
        masks[window] = mask.masked_fill_(~inside, torch.finfo(table.dtype).min)[None, None]
    return masks

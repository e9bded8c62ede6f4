"""What the rows of a forward attend in a table, and attention over it without a mask of all rows by all rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from emblema.models.latent_attention import absorbed_pays, attend_latents
from emblema.models.table import KVTable, attention_masks
from emblema.models.table_order import TableOrder

MOST_QUERIES = 256
"""Rows that are attended at once: what they do not see of the rows up to the last of them is computed in vain."""
GAP = 4096
"""Scores computed in vain that cost as much as another call: neighbouring runs are joined while there are fewer."""
PACKED = 16
"""Rows up to which the query heads of a key head are packed into one axis of queries; beyond, it gains nothing."""

OTHER_SCORES = ("softcap", "position_bias", "s_aux")
"""Arguments of an attention function that change the scores: layers that give one cannot attend by rows."""


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Rows of a batch that are attended at once.

    Attributes:
        start, stop: of the rows in the batch.
        low, high: slots of the table outside of which they attend nothing.
        causal: the rows are all rows from `low` to `high`, and each attends those before it and itself.
        free: the rows attend all rows from `low` to `high`.
    """

    start: int
    stop: int
    low: int
    high: int
    causal: bool = False
    free: bool = False


RowKernel = Callable[[Tensor, Tensor, Tensor, TableOrder, float], Tensor]
"""Attention [heads, queries, width] of queries, keys, values, an order and a scale of the scores."""


@lru_cache(maxsize=16)
def row_kernel(device: torch.device) -> RowKernel | None:
    """Return a device's kernel that attends by rows and groups: Triton's on a GPU, where it comes with torch."""
    if device.type != "cuda" or find_spec("triton") is None:
        return None
    from emblema.models.attention_triton import attend

    found: RowKernel = attend
    return found


class AttendedRows:
    """Says for the rows of a batch which rows of the table each attends (`attention_masks` says by what rule).

    Where the table's rows are in the order of the prompt, rows are attended in blocks, each over the front of the table
    that it sees; a mask is made of a block alone, and only where a block does not see all of it.

    Args:
        table: the table; rows are not allocated in it while this lives.
        slots: [rows] int64, of the batch's rows in the table.
        windows: of each layer.
        hidden_from: [rows, table.length] bool, True may not be attended; None hides nothing.
        window_binds_groups: whether a window also cuts inside a bidirectional group.
        latents: by layer, modules whose latents may be attended as the table keeps them.
        wanted: rows at the batch's end whose final hidden states are wanted; the last layer attends for no others, and
            puts out zeros for them. None: all.
    """

    def __init__(
        self,
        table: KVTable,
        slots: Tensor,
        windows: Sequence[int | None],
        hidden_from: Tensor | None = None,
        window_binds_groups: bool = True,
        latents: Mapping[int, Any] | None = None,
        wanted: int | None = None,
    ) -> None:
        self._table, self.slots, self._windows = table, slots, tuple(windows)
        self._hidden_from, self._binds = hidden_from, window_binds_groups
        self._latents = latents or {}
        self._unwanted = 0 if wanted is None else len(slots) - wanted
        self._wanted = wanted
        self._copies: dict[torch.device, AttendedRows] = {}
        self._masks: dict[tuple[int | None, int, int], Tensor] = {}
        self._blocks: dict[tuple[int | None, int], tuple[QueryBlock, ...]] = {}

    def on(self, device: torch.device) -> "AttendedRows":
        """Return the same for layers on a device, copied there once; itself where it is there."""
        if device == self.slots.device:
            return self
        if device not in self._copies:
            hidden = None if self._hidden_from is None else self._hidden_from.to(device)
            self._copies[device] = AttendedRows(
                self._table, self.slots.to(device), self._windows, hidden, self._binds, self._latents, self._wanted
            )
        return self._copies[device]

    def select(self, rows: Tensor) -> "AttendedRows":
        """Return what some rows of the batch attend, in the order given."""
        hidden = None if self._hidden_from is None else self._hidden_from[rows]
        return AttendedRows(self._table, self.slots[rows], self._windows, hidden, self._binds, self._latents)

    def join(self, other: "AttendedRows") -> "AttendedRows":
        """Return what the rows of both batches attend, those of the other one behind."""
        hidden = None
        if self._hidden_from is not None or other._hidden_from is not None:
            hidden = torch.cat([each._hidden() for each in (self, other)])
        return AttendedRows(
            self._table, torch.cat((self.slots, other.slots)), self._windows, hidden, self._binds, self._latents
        )

    @cached_property
    def latent_layers(self) -> frozenset[int]:
        """Layers that attend latents as the table keeps them: for few rows that costs less."""
        rows, length = len(self.slots), self._table.length
        return frozenset(layer for layer, module in self._latents.items() if absorbed_pays(module, rows, length))

    def _hidden(self) -> Tensor:
        if self._hidden_from is not None:
            return self._hidden_from
        return torch.zeros(len(self.slots), self._table.length, dtype=torch.bool, device=self.slots.device)

    @cached_property
    def masks(self) -> dict[int | None, Tensor]:
        """An additive mask [1, 1, rows, length] for each distinct window, for who asks for all of it."""
        return attention_masks(self._table, self.slots, self._windows, self._hidden_from, self._binds)

    def no_mask(self) -> dict[int | None, Tensor]:
        """Return what layers are given where they attend by this: of a mask's shape, without its memory."""
        nothing = torch.zeros(1, 1, 1, 1, dtype=self._table.dtype, device=self.slots.device)
        return dict.fromkeys(self._windows, nothing.expand(1, 1, len(self.slots), self._table.length))

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any
    ) -> tuple[Tensor, None]:
        """Attend in transformers' interface: `mask` is not looked at.

        Args:
            query: [1, heads, rows, width].
            key: [1, key heads, length, width] of the table; of as many rows as the batch has where the table keeps
                latents, which are attended as they are.
        """
        if query.device != self.slots.device:
            return self.on(query.device).attend(module, query, key, value, mask, **extra)
        layer = int(module.layer_idx)
        window = self._windows[layer]
        scaling = extra.get("scaling")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        latent = layer in self.latent_layers
        first = self._unwanted if layer == len(self._windows) - 1 else 0
        kernel = None if latent else row_kernel(query.device)
        blocks = () if kernel is not None else self._of(window, first)
        if len(blocks) == 1 and first == 0:
            return self._attended(blocks[0], module, query, key, value, scale).transpose(1, 2).contiguous(), None
        whole = query.new_empty(1, query.shape[2], query.shape[1], module.v_head_dim if latent else value.shape[-1])
        whole[:, :first] = 0
        if kernel is not None and first < len(self.slots):
            order = self._order(window, first)
            whole[0, first:] = kernel(query[0, :, first:], key[0], value[0], order, scale).transpose(0, 1)
        for block in blocks:
            attended = self._attended(block, module, query, key, value, scale)
            whole[:, block.start : block.stop] = attended.transpose(1, 2)
        return whole, None

    def _attended(
        self, block: QueryBlock, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float
    ) -> Tensor:
        """Return what a block of the batch's rows attends, [1, heads, rows, width]; of a layer's whole tensors."""
        layer = int(module.layer_idx)
        window = self._windows[layer]
        own = query[:, :, block.start : block.stop]
        if layer in self.latent_layers:
            rows = self._table.read(layer).slice(block.low, block.high)
            return attend_latents(module, own[0], rows, scale, self._mask(block, window))[None]
        held = slice(block.low, block.high)
        mask = None if block.causal else self._mask(block, window)
        return _attend(own, key[:, :, held], value[:, :, held], mask, scale, block.causal)

    def _order(self, window: int | None, first: int) -> TableOrder:
        """Return what a kernel reads in place of a mask, for the batch's rows from `first` on."""
        slots, length = self.slots[first:], self._table.length
        rows, groups = self._table.order(slots.device)
        return TableOrder(
            rows.index_select(0, slots),
            groups.index_select(0, slots),
            rows[:length],
            groups[:length],
            None if self._hidden_from is None else self._hidden_from[first:],
            window,
            self._binds,
        )

    def _mask(self, block: QueryBlock, window: int | None) -> Tensor | None:
        """Return the mask [rows, slots] of a block; None where all is seen."""
        if block.free:
            return None
        key = (window, block.start, block.stop)
        if key not in self._masks:
            hidden = self._hidden_from
            if hidden is not None:
                hidden = hidden[block.start : block.stop, block.low : block.high]
            own = self.slots[block.start : block.stop]
            made = attention_masks(self._table, own, (window,), hidden, self._binds, slice(block.low, block.high))
            self._masks[key] = made[window][0, 0]
        return self._masks[key]

    def _of(self, window: int | None, first: int) -> tuple[QueryBlock, ...]:
        """Return the blocks of the batch's rows from `first` on."""
        if (window, first) not in self._blocks:
            self._blocks[window, first] = tuple(self._made(window, first))
        return self._blocks[window, first]

    @cached_property
    def _in_order(self) -> list[int] | None:
        """Slots of the batch, where they rise in a causal table; None elsewhere or unknown.

        On a device to know it the host would have to wait.
        """
        if not self._table.causal or self._hidden_from is not None or self.slots.device.type != "cpu":
            return None
        slots: list[int] = self.slots.tolist()
        return slots if len(slots) == 1 or bool((self.slots[1:] > self.slots[:-1]).all()) else None

    def _made(self, window: int | None, first: int) -> Iterator[QueryBlock]:
        """Yield the blocks of the batch's rows from `first` on, for layers with a window."""
        count, length = len(self.slots), self._table.length
        slots = self._in_order
        if slots is None:
            step = MOST_QUERIES if self.slots.device.type == "cpu" else max(1, count)
            for start in range(first, count, step):
                yield QueryBlock(start, min(start + step, count), 0, length)
            return
        (rows, _), start = self._table.order(self.slots.device), first
        for stop in range(first + 1, count + 1):
            if stop < count and not _ends(slots, start, stop):
                continue
            high, low = slots[stop - 1] + 1, 0
            bound = window is not None and int(rows[slots[stop - 1]] - rows[0]) >= window
            if bound:
                out = int(rows[slots[start]]) - int(window or 0)
                low = int(torch.searchsorted(rows[:length], out, right=True))
            alone = stop - start == 1
            yield QueryBlock(start, stop, low, high, causal=not bound and stop - start == high, free=alone)
            start = stop


def _ends(slots: Sequence[int], start: int, stop: int) -> bool:
    """Return whether a block of rows from `start` ends before `stop`."""
    gap = slots[stop] - slots[stop - 1]
    # A block from the table's front is causal, and nothing is computed in vain.
    whole = slots[start] == 0 and slots[stop - 1] == stop - start - 1
    if gap == 1:
        return stop - start >= MOST_QUERIES and not whole
    return whole and stop - start > PACKED or (stop - start) * gap > GAP or stop - start >= MOST_QUERIES


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, causal: bool) -> Tensor:
    """Return attention [1, heads, rows, width] of queries over the key heads that serve them."""
    shared, count = query.shape[1] // key.shape[1], query.shape[2]
    if shared == 1 or count > PACKED:
        return scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=shared > 1
        )
    packed = query.reshape(1, key.shape[1], shared * count, query.shape[3])
    if causal and count > 1:
        rows = torch.ones(count, count, dtype=torch.bool, device=query.device).tril()
        mask = torch.zeros(count, count, dtype=query.dtype, device=query.device).masked_fill(
            ~rows, torch.finfo(query.dtype).min
        )
    if mask is not None:
        mask = mask.repeat(shared, 1)
    return scaled_dot_product_attention(packed, key, value, mask, scale=scale).reshape(
        1, query.shape[1], count, value.shape[3]
    )

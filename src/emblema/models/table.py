"""The linked KV table of one request: rows are scattered into it and all of it is attended."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.placing import LayerMemory
from emblema.models.decoder_cache import DecoderCache


class KVTable(DecoderCache):
    """Preallocated rows of every layer, in the order they were allocated (physical), each with its place in the prompt.

    It is what the decoder is given as `past_key_values`: a forward writes its rows at `slots` and attends all rows in
    use. Physical order means nothing to attention; `rows` says which row of the prompt a slot holds. One request owns
    a table.

    Attributes:
        length: physical rows in use.
        capacity: physical rows allocated; grows by doubling.
        rows: [capacity] int64, row of the prompt held by each slot, on `device`; `order` has it on the layers' devices.
        groups: [capacity] int64, bidirectional group of each slot; -1 is causal.
        causal: whether rows are known to be in the order of the prompt, without groups; where they are given on a
            device nobody looks.
        latent_layers: layers that attend the table's latents as they are: the decoder is handed the forward's own rows
            alone, and who attends reads the table.
    """

    def __init__(
        self,
        layouts: Sequence[LayerLayout],
        capacity: int,
        dtype: torch.dtype,
        device: torch.device | str,
        devices: Sequence[torch.device] | None = None,
    ) -> None:
        super().__init__(layouts, dtype, device, devices)
        self.length = 0
        self.capacity = 0
        self.slots: Tensor | slice | None = None
        self.causal = True
        self._last_row = -1
        self.latent_layers: frozenset[int] = frozenset()
        self._fill: Callable[[int], None] | None = None
        self._unfilled: set[int] = set()
        self.rows = torch.empty(0, dtype=torch.int64, device=self.device)
        self.groups = torch.empty(0, dtype=torch.int64, device=self.device)
        self._copies: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._reserve(max(1, capacity))

    @property
    def attended(self) -> int:
        """Rows in use."""
        return self.length

    def _reserve(self, capacity: int) -> None:
        self._grow(1, capacity)
        with torch.inference_mode(False):
            rows = torch.zeros(capacity, dtype=torch.int64, device=self.device)
            groups = torch.full((capacity,), -1, dtype=torch.int64, device=self.device)
            rows[: self.length].copy_(self.rows[: self.length])
            groups[: self.length].copy_(self.groups[: self.length])
            self._copies = {place: (rows.to(place), groups.to(place)) for place in self.elsewhere}
        self.rows, self.groups, self.capacity = rows, groups, capacity

    def order(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return `rows` and `groups` on the device of some layers."""
        return self._copies.get(device, (self.rows, self.groups))

    def _copy_order(self, start: int, stop: int) -> None:
        """Have the order of some slots on every layer's device."""
        for rows, groups in self._copies.values():
            rows[start:stop].copy_(self.rows[start:stop])
            groups[start:stop].copy_(self.groups[start:stop])

    def allocate(self, rows: Tensor, groups: Tensor | None = None) -> range:
        """Append slots for rows of the prompt [n] int64 (groups likewise; none: causal); contents are not yet set."""
        start, stop = self.length, self.length + int(rows.shape[0])
        if stop > self.capacity:
            self._reserve(max(stop, 2 * self.capacity))
        self._note_order(rows, groups)
        if len(rows) == 1 and rows.device.type == "cpu":
            # A number that is filled in is not copied to a device.
            self.rows[start:stop].fill_(int(rows[0]))
        else:
            self.rows[start:stop] = rows
        self.groups[start:stop] = -1 if groups is None else groups
        self._copy_order(start, stop)
        self.length = stop
        return range(start, stop)

    def _note_order(self, rows: Tensor, groups: Tensor | None) -> None:
        """Note whether the table is still causal with some rows at its end."""
        if not self.causal or len(rows) == 0:
            return
        if rows.device.type != "cpu" or (groups is not None and groups.device.type != "cpu"):
            self.causal = False
            return
        first, alone = int(rows[0]), len(rows) == 1
        rises = first > self._last_row and (alone or bool((rows[1:] > rows[:-1]).all()))
        self.causal = rises and (groups is None or not bool((groups >= 0).any()))
        self._last_row = first if alone else int(rows[-1])

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        """Scatter rows of one layer into slots, which must be allocated."""
        if isinstance(slots, slice):
            self._keys[layer][0, :, slots].copy_(rows.keys)
            self._values[layer][0, :, slots].copy_(rows.values)
        else:
            keys, values = self._keys[layer][0], self._values[layer][0]
            slots = slots.to(keys.device) if self.elsewhere else slots
            keys.index_copy_(1, slots, rows.keys.to(keys))
            values.index_copy_(1, slots, rows.values.to(values))

    def memory(self, layer: int) -> LayerMemory:
        """Return the memory of a layer's rows: one page, whose rows are the slots. It moves when the table grows."""
        return LayerMemory(self._keys[layer].transpose(1, 2), self._values[layer].transpose(1, 2))

    def fill_with(self, fill: Callable[[int], None]) -> None:
        """Have a layer's taken rows written when it is first needed, so that a forward begins before all are here.

        `fill(layer)` is called once for each layer and writes to this table; what it raises, the forward raises.
        """
        self._fill, self._unfilled = fill, set(range(len(self.layouts)))

    def forget_fill(self) -> None:
        """Give up what has not been written yet."""
        self._fill, self._unfilled = None, set()

    def settle(self) -> None:
        """Have every layer's taken rows written."""
        for layer in sorted(self._unfilled):
            self._ready(layer)

    def _ready(self, layer: int) -> None:
        if layer not in self._unfilled or self._fill is None:
            return
        fill = self._fill
        self._unfilled.discard(layer)
        if not self._unfilled:
            # What fills a table holds it: kept, the two would outlive the request until the next collection of cycles.
            self._fill = None
        fill(layer)

    def read(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows:
        """Return rows of a layer in slots `start` to `stop` (all in use by default), as views."""
        self._ready(layer)
        stop = self.length if stop is None else stop
        return LayerRows(self._keys[layer][0, :, start:stop], self._values[layer][0, :, start:stop])

    def gather(self, slots: Tensor) -> tuple[LayerRows, ...]:
        """Return copies of every layer's rows in some slots [n] int64, in that order."""
        where = self._on_layers(slots)
        return tuple(self.read(layer).select(where[device]) for layer, device in enumerate(self.devices))

    def _on_layers(self, slots: Tensor) -> dict[torch.device, Tensor]:
        """Return slots on the device of each layer."""
        return {device: slots.to(device) for device in (self.device, *self.elsewhere)}

    def drop(self, keep: Tensor) -> None:
        """Keep only the given slots [n] int64, in that order; slots move to 0 … n - 1."""
        self.settle()
        count = int(keep.shape[0])
        where = self._on_layers(keep)
        for tables in (self._keys, self._values):
            for table, device in zip(tables, self.devices, strict=True):
                table[:, :, :count] = table.index_select(2, where[device])
        keep = where[self.device]
        self.rows[:count] = self.rows.index_select(0, keep)
        self.groups[:count] = self.groups.index_select(0, keep)
        self._copy_order(0, count)
        self.length = count
        self._look_at_order()

    def _look_at_order(self) -> None:
        """Note again whether the table is causal, after slots have left it."""
        if self.device.type == "cpu":
            rows, groups = self.rows[: self.length], self.groups[: self.length]
            self.causal = bool((rows[1:] > rows[:-1]).all()) and not bool((groups >= 0).any())
            self._last_row = int(rows[-1]) if self.length else -1
        elif self.length == 0:
            self.causal, self._last_row = True, -1

    def truncate(self, length: int) -> None:
        """Forget all slots from `length` on."""
        if not 0 <= length <= self.length:
            raise ModelError(f"A table of {self.length} rows cannot be truncated to {length}.")
        self.length = length
        self._look_at_order()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the decoder: write at the current slots, hand back all rows in use [1, heads, length, width]."""
        self._ready(layer_idx)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self.slots is None:
            raise ModelError("The table has no slots for this forward; run the decoder through Adapter.forward.")
        if isinstance(self.slots, slice):
            keys[:, :, self.slots].copy_(key_states)
            values[:, :, self.slots].copy_(value_states)
        else:
            slots = self.slots.to(keys.device) if self.elsewhere else self.slots
            keys.index_copy_(2, slots, key_states)
            values.index_copy_(2, slots, value_states)
        if layer_idx in self.latent_layers:
            return key_states, value_states
        return keys[:, :, : self.length], values[:, :, : self.length]

    def __repr__(self) -> str:
        return f"KVTable({len(self.layouts)} layers, {self.length} of {self.capacity} rows, {self.dtype})"


def attention_masks(
    table: KVTable,
    slots: Tensor,
    windows: Iterable[int | None],
    hidden_from: Tensor | None,
    window_binds_groups: bool = True,
    columns: slice | None = None,
) -> dict[int | None, Tensor]:
    """Return an additive mask [1, 1, queries, length] in the table's dtype for each distinct window, where `slots` are.

    Row i attends row j if j is not after i, or both are in one bidirectional group; and not where `hidden_from`
    [queries, length] is True; and under a sliding window only the `window` nearest rows, counted in the whole prompt.
    `columns` are the slots that the mask is made for, and that `hidden_from` has; all in use by default.
    """
    columns = columns or slice(0, table.length)
    all_rows, all_groups = table.order(slots.device)
    rows, groups = all_rows[columns], all_groups[columns]
    distance = all_rows.index_select(0, slots)[:, None] - rows[None, :]
    own = all_groups.index_select(0, slots)[:, None]
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
        mask = torch.zeros(inside.shape, dtype=table.dtype, device=slots.device)
        masks[window] = mask.masked_fill_(~inside, torch.finfo(table.dtype).min)[None, None]
    return masks

"""KV tables that a decoder of transformers is given as its cache: of one request, and of sequences decoded together."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.placing import LayerMemory

_FIRST_ROWS = 256
"""Rows of a batch's table at least."""


class DecoderCache(Cache):
    """Rows of every layer, [sequences, heads, rows, width], and transformers' questions about them.

    A table of it says in `attended` how many rows a forward attends, and writes in `update`.

    Args:
        layouts: of the layers' rows.
        dtype: of the rows.
        device: of what is noted about the rows.
        devices: of each layer's rows; None where that is `device` for all.

    Attributes:
        elsewhere: the devices of layers beside `device`, each once.
    """

    def __init__(
        self,
        layouts: Sequence[LayerLayout],
        dtype: torch.dtype,
        device: torch.device | str,
        devices: Sequence[torch.device] | None = None,
    ) -> None:
        super().__init__(layers=[])
        self.layouts = tuple(layouts)
        self.dtype, self.device = dtype, torch.device(device)
        self.devices = (self.device,) * len(self.layouts) if devices is None else tuple(devices)
        self.elsewhere = tuple(place for place in dict.fromkeys(self.devices) if place != self.device)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def attended(self) -> int:
        """Rows that a forward attends, those that it writes included."""
        raise NotImplementedError

    @property
    def bytes(self) -> int:
        """Bytes held, unused ones included."""
        return sum(keys.nbytes + values.nbytes for keys, values in zip(self._keys, self._values, strict=True))

    def _grow(self, sequences: int, rows: int) -> None:
        """Make room for so many sequences and rows, no fewer than before; what is held is copied."""
        # Ordinary tensors even when called inside inference mode, so that any later caller may write in place.
        with torch.inference_mode(False), torch.no_grad():
            for tables, slots in (
                (self._keys, [layout.keys for layout in self.layouts]),
                (self._values, [layout.values for layout in self.layouts]),
            ):
                before = tables.copy()
                tables[:] = [
                    torch.zeros(sequences, heads, rows, width, dtype=self.dtype, device=device)
                    for (heads, width), device in zip(slots, self.devices, strict=True)
                ]
                for old, new in zip(before, tables, strict=False):
                    new[: old.shape[0], :, : old.shape[2]] = old

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.attended

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """Return how many rows are attended, and their offset, whichever argument this release passes."""
        return self.attended, 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return -1

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.layouts)


class KVTable(DecoderCache):
    """Preallocated rows of every layer, in the order they were allocated (physical), each with its place in the prompt.

    It is what the decoder is given as `past_key_values`: a forward writes its rows at `slots` and attends all rows in
    use. Physical order means nothing to attention; `rows` says which row of the prompt a slot holds. One request owns
    a table.

    Attributes:
        length: physical rows in use.
        capacity: physical rows allocated; grows by doubling.
        rows: [capacity] int64, row of the prompt held by each slot; `order` has it on the layers' devices.
        groups: [capacity] int64, bidirectional group of each slot; -1 is causal.
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
        self._fill: Callable[[int], None] | None = None
        self._unfilled: set[int] = set()
        self.rows = torch.empty(0, dtype=torch.int64, device=self.device)
        self.groups = torch.empty(0, dtype=torch.int64, device=self.device)
        # Both, by another device.
        self._orders: dict[torch.device, tuple[Tensor, Tensor]] = {}
        self._reserve(max(1, capacity))

    @property
    def causal(self) -> bool:
        """Whether rows are in the order of the prompt, without groups; on a device nobody looks."""
        rows, groups = self.rows[: self.length], self.groups[: self.length]
        return self.device.type == "cpu" and not bool((rows[1:] <= rows[:-1]).any() or (groups >= 0).any())

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
        self.rows, self.groups, self.capacity = rows, groups, capacity
        self._orders.clear()

    def order(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return `rows` and `groups` on the device of some layers, where they are copied once until they change."""
        if device == self.device:
            return self.rows, self.groups
        if device not in self._orders:
            self._orders[device] = self.rows.to(device), self.groups.to(device)
        return self._orders[device]

    def allocate(self, rows: Tensor, groups: Tensor | None = None) -> range:
        """Append slots for rows of the prompt [n] int64 (groups likewise; none: causal); contents are not yet set."""
        start, stop = self.length, self.length + int(rows.shape[0])
        if stop > self.capacity:
            self._reserve(max(stop, 2 * self.capacity))
        if len(rows) == 1 and rows.device.type == "cpu":
            # A number that is filled in is not copied to a device.
            self.rows[start:stop].fill_(int(rows[0]))
        else:
            self.rows[start:stop] = rows
        self.groups[start:stop] = -1 if groups is None else groups
        self.length = stop
        self._orders.clear()
        return range(start, stop)

    def write(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
        """Scatter rows of one layer into slots, which must be allocated."""
        for table, given in ((self._keys[layer][0], rows.keys), (self._values[layer][0], rows.values)):
            if isinstance(slots, slice):
                table[:, slots].copy_(given)
            else:
                table.index_copy_(1, slots.to(table.device), given.to(table))

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
        self.length = count
        self._orders.clear()

    def truncate(self, length: int) -> None:
        """Forget all slots from `length` on."""
        if not 0 <= length <= self.length:
            raise ModelError(f"A table of {self.length} rows cannot be truncated to {length}.")
        self.length = length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the decoder: write at the current slots, hand back all rows in use [1, heads, length, width]."""
        self._ready(layer_idx)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self.slots is None:
            raise ModelError("The table has no slots for this forward; run the decoder through Adapter.forward.")
        self.write(layer_idx, self.slots, LayerRows(key_states[0], value_states[0]))
        return keys[:, :, : self.length], values[:, :, : self.length]

    def __repr__(self) -> str:
        return f"KVTable({len(self.layouts)} layers, {self.length} of {self.capacity} rows, {self.dtype})"


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


@dataclass(frozen=True, slots=True)
class StepShape:
    """Steps of one shape do the same on the same memory, whatever that holds.

    Attributes:
        sequences, rows: that a step computes and attends, padding included.
        storage: counts how often the table's memory has moved.
    """

    sequences: int
    rows: int
    storage: int


class BatchTable(DecoderCache):
    """Rows of every layer for several sequences. A step writes one row of each at its end.

    It is what the decoder is given as `past_key_values`. Sequences are numbered from 0; when one leaves, the last takes
    its number. Rows are in the order of the tables that they came from; `rows` says which row of its prompt each is.

    Args:
        layouts, dtype, device, devices: as of any table.
        padded: whether steps are padded to few shapes, so that each can be recorded once: sequences to a power of two,
            rows to a step of `padded_length`. Memory is then kept when the last sequence leaves.

    Attributes:
        lengths: rows in use of each sequence.
    """

    def __init__(
        self,
        layouts: Sequence[LayerLayout],
        dtype: torch.dtype,
        device: torch.device | str,
        padded: bool = False,
        devices: Sequence[torch.device] | None = None,
    ) -> None:
        super().__init__(layouts, dtype, device, devices)
        self.lengths: list[int] = []
        self._padded = padded
        self._room = (0, 0)
        self._storage = 0
        self._rows = torch.zeros(0, 0, dtype=torch.int64, device=self.device)
        # For each sequence that there is room for: its number, and where its next row goes; 0 where there is none.
        self._numbers = self._lengths = torch.zeros(0, dtype=torch.int64, device=self.device)
        # Whether sequences came or went since `_lengths` was made; else each step adds one.
        self._moved = True
        # Of the step under way: its sequences, and rows of the longest, the new one and padding included; 0 between.
        self._width = self._longest = 0
        # Of the step under way: where layers on other devices write, numbers and lengths.
        self._ends: dict[torch.device, tuple[Tensor, Tensor]] = {}

    @property
    def sequences(self) -> int:
        """Sequences in it."""
        return len(self.lengths)

    @property
    def attended(self) -> int:
        """Rows that the step under way attends."""
        return self._longest

    @property
    def shape(self) -> StepShape:
        """The shape of the step under way."""
        return StepShape(self._width, self._longest, self._storage)

    def padded_rows(self, more: int = 0) -> int:
        """Return the rows of the longest sequence times their number, with one more sequence of `more` rows."""
        return max(more, *self.lengths, 0) * (self.sequences + (more > 0))

    def admit(self, table: KVTable) -> int:
        """Copy a table's rows as a new sequence and return its number."""
        table.settle()
        number, length = self.sequences, table.length
        self._reserve(number + 1, length + 1)
        for layer in range(len(self.layouts)):
            rows = table.read(layer)
            self._keys[layer][number, :, :length] = rows.keys
            self._values[layer][number, :, :length] = rows.values
        self._rows[number, :length] = table.rows[:length]
        self.lengths.append(length)
        self._moved = True
        return number

    def release(self, number: int) -> None:
        """Forget a sequence; the last one takes its number."""
        last = self.sequences - 1
        if not 0 <= number <= last:
            raise ModelError(f"there is no sequence {number} among {last + 1}")
        if number < last:
            length = self.lengths[last]
            for tables in (self._keys, self._values):
                for table in tables:
                    table[number, :, :length] = table[last, :, :length]
            self._rows[number, :length] = self._rows[last, :length]
            self.lengths[number] = length
        self.lengths.pop()
        self._moved = True
        if last == 0 and not self._padded:
            # Nothing of earlier sequences stays in memory.
            self._room, self._keys, self._values, self._rows = (0, 0), [], [], self._rows[:0, :0].clone()

    def begin(self) -> None:
        """Begin a step of one new row of each sequence."""
        width, longest = self.sequences, max(self.lengths) + 1
        if self._padded:
            width, longest = padded_count(width), padded_length(longest)
        self._reserve(width, longest)
        self._width, self._longest = width, longest
        if self._moved:
            empty = [0] * (len(self._lengths) - self.sequences)
            self._lengths.copy_(torch.tensor(self.lengths + empty))
            self._moved = False
        for place in self.elsewhere:
            self._ends[place] = (self._numbers[:width].to(place), self._lengths[:width].to(place))

    def place(self, rows: Tensor) -> None:
        """Note for a step that each new row is row `rows` [sequences, padding included] int64 of its prompt."""
        self._rows.index_put_((self._numbers[: self._width], self._lengths[: self._width]), rows)

    def end(self) -> None:
        """End a step: the new rows are in use."""
        self.lengths = [length + 1 for length in self.lengths]
        self._lengths[: self.sequences] += 1
        self._width = self._longest = 0

    def abandon(self) -> None:
        """Give a step up: its rows are not in use."""
        self._width = self._longest = 0

    def masks(self, windows: Iterable[int | None]) -> dict[int | None, Tensor]:
        """Return an additive mask [sequences, 1, 1, longest] of the step's new rows for each distinct window."""
        width, longest = self._width, self._longest
        ends = self._lengths[:width, None]
        held = torch.arange(longest, device=self.device)[None] <= ends
        distances = None
        masks = {}
        for window in set(windows):
            seen = held
            if window is not None:
                if distances is None:
                    rows = self._rows[:width, :longest]
                    distances = rows.gather(1, ends) - rows
                seen = held & (distances < window)
            mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
            masks[window] = mask.masked_fill_(~seen, torch.finfo(self.dtype).min)[:, None, None]
        return masks

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by the decoder: write each sequence's new row, hand back all rows up to the longest."""
        if self._longest == 0:
            raise ModelError("no step has begun; run the decoder through Adapter.decode.")
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        width = self._width
        numbers, ends = self._ends.get(keys.device, (self._numbers[:width], self._lengths[:width]))
        keys[numbers, :, ends] = key_states[:, :, 0]
        values[numbers, :, ends] = value_states[:, :, 0]
        return keys[:width, :, : self._longest], values[:width, :, : self._longest]

    def _reserve(self, sequences: int, rows: int) -> None:
        """Make room, by doubling; what is held is copied."""
        room = (
            self._room[0] if sequences <= self._room[0] else max(sequences, 2 * self._room[0]),
            self._room[1] if rows <= self._room[1] else max(rows, 2 * self._room[1], _FIRST_ROWS),
        )
        if room == self._room:
            return
        self._grow(*room)
        with torch.inference_mode(False):
            places = torch.zeros(room, dtype=torch.int64, device=self.device)
            places[: self._rows.shape[0], : self._rows.shape[1]] = self._rows
            self._numbers = torch.arange(room[0], device=self.device)
            self._lengths = torch.zeros(room[0], dtype=torch.int64, device=self.device)
        self._rows, self._room = places, room
        self._storage, self._moved = self._storage + 1, True

    def __repr__(self) -> str:
        return f"BatchTable({len(self.layouts)} layers, {self.sequences} sequences, {self.dtype})"


def padded_count(sequences: int) -> int:
    """Return the next power of two."""
    return 1 << (sequences - 1).bit_length()


def padded_length(rows: int) -> int:
    """Return the next multiple of an eighth of the power of two that holds so many rows, of 256 at least."""
    step = max(_FIRST_ROWS, (1 << (rows - 1).bit_length()) // 8)
    return -(-rows // step) * step

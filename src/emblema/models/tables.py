"""KV tables that a decoder of transformers is given as its cache."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout, LayerRows, MappedRows, StateMap
from emblema.kv.placing import LayerMemory


@dataclass(frozen=True, slots=True)
class LayerState:
    """A state [1, heads, key width, value width] of linear attention, of all rows of a prompt before row `until`."""

    state: Tensor
    until: int


@dataclass(frozen=True, slots=True)
class ScanStart:
    """Where a layer of linear attention begins, and the row of the prompt before which it ends.

    Attributes:
        state: [1, heads, key width, value width]; None at the beginning of the prompt.
        inputs: [1, channels, taps - 1] of its convolution, of the rows before; None there.
        until: row of the prompt; None where the state that it ends with is not kept.
    """

    state: Tensor | None
    inputs: Tensor | None
    until: int | None


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
        scan: where the layer of linear attention under way begins.
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
        self.scan: ScanStart | None = None

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

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        """Called by a convolution: write the inputs of new rows, hand back what each row reads.

        Args:
            conv_states: [rows, channels, 1]; each row is given to the layer as a sequence of its own.
            layer_idx: of the layer.

        Returns:
            [rows, channels, taps]: the inputs of the rows before, as the prompt orders them, then its own; zeros where
            the prompt begins.
        """
        layout = self.layouts[layer_idx]
        if layout.kind == "linear":
            before = None if self.scan is None else self.scan.inputs
            return conv_states if before is None else torch.cat((before, conv_states), dim=-1)
        given = conv_states[:, None, None, :, 0].split((layout.keys[1], layout.values[1]), dim=-1)
        self._write_new(layer_idx, *given)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        sequences, slots = self._read_rows(layout.taps or 1, keys.device)
        read = torch.cat((keys[sequences, 0, slots.clamp_min(0)], values[sequences, 0, slots.clamp_min(0)]), dim=-1)
        return read.masked_fill((slots < 0)[..., None], 0).transpose(1, 2)

    def _write_new(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write a layer's new rows, [rows, heads, 1, width] each."""
        raise NotImplementedError

    def _read_rows(self, taps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return which rows a convolution reads for each new row: sequences [rows, 1] and slots [rows, taps].

        The row itself is the last; a slot of -1 is none.
        """
        raise NotImplementedError

    def get_conv_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor | None:
        """Hand a convolution no earlier inputs: `update_conv_state` has them."""
        return None

    def is_recording_past(self, *args: Any, **kwargs: Any) -> bool:
        """Return that no earlier states are to be kept."""
        return False

    def has_previous_state(self, *args: Any, **kwargs: Any) -> bool:
        """Return that no earlier inputs are to be asked for, as releases before 5.23 ask."""
        return False

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
        slots: where a forward under way writes its rows.
        rows_before: of a forward under way, the slots [rows, taps] that convolutions of so many taps read.
        states: by layer of linear attention, the state that its last forward ended with, while its rows stay.
        maps: by layer of linear attention, the maps that stand for runs of slots; what these slots hold, but for the
            last of them, counts for nothing.
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
        self.rows_before: Callable[[int], Tensor] | None = None
        self.states: dict[int, LayerState] = {}
        self.maps: dict[int, tuple[StateMap, ...]] = {}
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
        if self.states and len(rows) and int(rows.min()) < max(known.until for known in self.states.values()):
            self.states.clear()
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
        """Scatter rows of one layer into slots, which must be allocated.

        Rows that are kept as maps go into slots one after another.
        """
        if isinstance(rows, MappedRows):
            first = slots.start if isinstance(slots, slice) else int(slots[0])
            self.write_mapped(layer, first, rows)
            return
        self.states.pop(layer, None)
        self._put(layer, slots, rows)

    def write_mapped(self, layer: int, first: int, rows: MappedRows, skip: int = 0) -> None:
        """Write rows that are kept as maps into slots from `first` on.

        Args:
            layer: of linear attention.
            first: slot of their first row.
            rows: the rows.
            skip: how many of the first rows are left as they are.
        """
        self.states.pop(layer, None)
        held = rows.rows_held()
        keys, values = (tensor[:, int((held < skip).sum()) :] for tensor in (rows.keys, rows.values))
        self._put(layer, first + held[held >= skip], LayerRows(keys, values))
        device = self.devices[layer]
        maps = [each.with_tensors([own.to(device) for own in each.tensors]) for each in rows.maps]
        made = {first + each.start: each.at(first + each.start) for each in maps}
        self.maps[layer] = (*(each for each in self.maps.get(layer, ()) if each.start not in made), *made.values())

    def forget_maps(self, slots: Tensor) -> None:
        """Have some slots [n] int64 no longer be stood for by maps: their rows will be written in every layer."""
        own = set(slots.tolist())
        for layer, maps in self.maps.items():
            self.maps[layer] = tuple(each for each in maps if not own.issuperset(range(each.start, each.stop)))
            self.states.pop(layer, None)

    def put(self, layer: int, slots: Tensor, rows: LayerRows) -> None:
        """Write what a forward computes in a layer of linear attention, whose state follows."""
        self._ready(layer)
        self._put(layer, slots, rows)

    def _put(self, layer: int, slots: Tensor | slice, rows: LayerRows) -> None:
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
        """Return rows of a layer in slots `start` to `stop` (all in use by default), as views.

        Runs of them that maps stand for are returned as maps.

        Raises:
            ModelError: a map stands for some of the slots and for others.
        """
        stop = self.length if stop is None else stop
        rows = self.slots_of(layer, start, stop)
        maps = [each for each in self.maps.get(layer, ()) if each.start < stop and start < each.stop]
        if not maps:
            return rows
        if any(each.start < start or stop < each.stop for each in maps):
            raise ModelError(f"Slots {start} to {stop} of layer {layer} end inside a run that a map stands for.")
        return MappedRows.of(rows, [each.at(each.start - start) for each in maps], self.layouts[layer].edge)

    def slots_of(self, layer: int, start: int = 0, stop: int | None = None) -> LayerRows:
        """Return what slots `start` to `stop` of a layer hold (all in use by default), as views: see `maps`."""
        self._ready(layer)
        stop = self.length if stop is None else stop
        return LayerRows(self._keys[layer][0, :, start:stop], self._values[layer][0, :, start:stop])

    def gather(self, slots: Tensor) -> tuple[LayerRows, ...]:
        """Return copies of every layer's rows in some slots [n] int64, in that order.

        Raises:
            ModelError: a map stands for one of the slots, and they do not follow one another.
        """
        self.settle()
        where, first = self._on_layers(slots), int(slots[0]) if len(slots) else 0
        found = []
        for layer, device in enumerate(self.devices):
            if not any(bool(((slots >= each.start) & (slots < each.stop)).any()) for each in self.maps.get(layer, ())):
                found.append(self.slots_of(layer).select(where[device]))
            elif torch.equal(slots, torch.arange(first, first + len(slots), device=slots.device)):
                found.append(self.read(layer, first, first + len(slots)).clone())
            else:
                raise ModelError("Slots that a map stands for cannot be gathered in another order.")
        return tuple(found)

    def _on_layers(self, slots: Tensor) -> dict[torch.device, Tensor]:
        """Return slots on the device of each layer."""
        return {device: slots.to(device) for device in (self.device, *self.elsewhere)}

    def drop(self, keep: Tensor) -> None:
        """Keep only the given slots [n] int64, in that order; slots move to 0 … n - 1."""
        self.settle()
        self.states.clear()
        if any(self.maps.values()):
            self._move_maps(keep.tolist())
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

    def _move_maps(self, keep: list[int]) -> None:
        """Keep the maps whose slots all stay, one after another; the others' go."""
        places = {slot: place for place, slot in enumerate(keep)}
        for layer, maps in self.maps.items():
            stay = []
            for each in maps:
                moved = [places.get(slot) for slot in range(each.start, each.stop)]
                if moved[0] is not None and moved == list(range(moved[0], moved[0] + len(moved))):
                    stay.append(each.at(moved[0]))
                elif any(place is not None for place in moved):
                    raise ModelError("Slots that a map stands for stay together, or leave together.")
            self.maps[layer] = tuple(stay)

    def truncate(self, length: int) -> None:
        """Forget all slots from `length` on."""
        if not 0 <= length <= self.length:
            raise ModelError(f"A table of {self.length} rows cannot be truncated to {length}.")
        self.states.clear()
        for layer, maps in self.maps.items():
            self.maps[layer] = tuple(each for each in maps if each.stop <= length)
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

    def get_recurrent_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor | None:
        """Hand linear attention the state that it begins with."""
        return None if self.scan is None else self.scan.state

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        """Called by linear attention: keep the state that it ends with."""
        if self.scan is not None and self.scan.until is not None:
            self.states[layer_idx] = LayerState(recurrent_states, self.scan.until)
        return recurrent_states

    def _write_new(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self._ready(layer)
        if self.slots is None:
            raise ModelError("The table has no slots for this forward; run the decoder through Adapter.forward.")
        self.write(layer, self.slots, LayerRows(keys[:, :, 0].transpose(0, 1), values[:, :, 0].transpose(0, 1)))

    def _read_rows(self, taps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if self.rows_before is None:
            raise ModelError("The table has no rows for this forward; run the decoder through Adapter.forward.")
        slots = self.rows_before(taps)
        return slots.new_zeros(1), slots

    def __repr__(self) -> str:
        return f"KVTable({len(self.layouts)} layers, {self.length} of {self.capacity} rows, {self.dtype})"

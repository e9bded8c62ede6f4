"""The KV table of sequences that are decoded together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout
from emblema.models.linear_attention import last_inputs
from emblema.models.tables import DecoderCache, KVTable

_FIRST_ROWS = 256
"""Rows of a batch's table at least."""


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
        # A layer of linear attention goes on from a state, and needs no rows.
        kept = [replace(each, keys=(1, 0), values=(1, 0)) if each.kind == "linear" else each for each in layouts]
        super().__init__(kept, dtype, device, devices)
        # By such a layer, for each sequence: the last inputs of its convolution, and its state.
        self._inputs: dict[int, Tensor] = {}
        self._states: dict[int, Tensor] = {}
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
        # Of the step under way: the slots that convolutions read, by their taps.
        self._before: dict[int, Tensor] = {}

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
        for layer, layout in enumerate(self.layouts):
            if layout.kind == "linear":
                self._admit_state(table, layer)
                continue
            rows = table.read(layer)
            self._keys[layer][number, :, :length] = rows.keys
            self._values[layer][number, :, :length] = rows.values
        self._rows[number, :length] = table.rows[:length]
        self.lengths.append(length)
        self._moved = True
        return number

    def _admit_state(self, table: KVTable, layer: int) -> None:
        """Copy a table's state of a layer of linear attention, which must be of all its rows.

        Raises:
            ModelError: no forward has ended with the last row of the prompt since rows of the layer changed.
        """
        known, order = table.states.get(layer), table.rows[: table.length].sort()
        if known is None or known.until <= int(order.values[-1]):
            raise ModelError(f"The state of layer {layer} is not known: run the last row of the prompt first.")
        taps = self.layouts[layer].taps or 1
        inputs = last_inputs(table, layer, order.indices.to(self.devices[layer]), taps)
        for held, given in ((self._inputs, inputs), (self._states, known.state)):
            held.setdefault(layer, given.new_zeros(self._room[0], *given.shape[1:]))[self.sequences] = given[0]

    def get_conv_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor | None:
        """Hand linear attention the last inputs of its convolution, which it changes in place."""
        return self._inputs[layer_idx][: self._width] if layer_idx in self._inputs else None

    def get_recurrent_state(self, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        """Hand linear attention its states [sequences, heads, key width, value width]."""
        return self._states[layer_idx][: self._width]

    def update_recurrent_state(self, recurrent_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Tensor:
        """Called by linear attention: keep the states that a step ends with."""
        return self._states[layer_idx][: self._width].copy_(recurrent_states)

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
            for held in (*self._inputs.values(), *self._states.values()):
                held[number] = held[last]
            self.lengths[number] = length
        self.lengths.pop()
        self._moved = True
        if last == 0 and not self._padded:
            # Nothing of earlier sequences stays in memory.
            self._room, self._keys, self._values, self._rows = (0, 0), [], [], self._rows[:0, :0].clone()
            self._inputs, self._states = {}, {}

    def begin(self) -> None:
        """Begin a step of one new row of each sequence."""
        width, longest = self.sequences, max(self.lengths) + 1
        if self._padded:
            width, longest = padded_count(width), padded_length(longest)
        self._reserve(width, longest)
        self._width, self._longest = width, longest
        self._before.clear()
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
        self._write_new(layer_idx, key_states, value_states)
        keys, values, width = self._keys[layer_idx], self._values[layer_idx], self._width
        return keys[:width, :, : self._longest], values[:width, :, : self._longest]

    def _write_new(self, layer: int, keys: Tensor, values: Tensor) -> None:
        numbers, ends = self._ends_on(self._keys[layer].device)
        self._keys[layer][numbers, :, ends] = keys[:, :, 0]
        self._values[layer][numbers, :, ends] = values[:, :, 0]

    def _ends_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return on a device the numbers of the step's sequences, and where each one's new row goes."""
        return self._ends.get(device, (self._numbers[: self._width], self._lengths[: self._width]))

    def _read_rows(self, taps: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if taps not in self._before:
            rows = self._rows[: self._width, : self._longest]
            held = torch.arange(self._longest, device=self.device)[None] <= self._lengths[: self._width, None]
            last = rows.masked_fill(~held, -1).topk(min(taps, self._longest))
            slots = last.indices.masked_fill(last.values < 0, -1).flip(1)
            self._before[taps] = torch.nn.functional.pad(slots, (taps - slots.shape[1], 0), value=-1)
        return self._ends_on(device)[0][:, None], self._before[taps].to(device)

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
        for held in (self._inputs, self._states):
            for layer, old in held.items():
                held[layer] = torch.nn.functional.pad(old, (*(0, 0) * (old.dim() - 1), 0, room[0] - len(old)))
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

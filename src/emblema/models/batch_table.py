"""The KV of several sequences that are decoded together: one row each at every step, padded to the longest."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from emblema.errors import ModelError
from emblema.kv.layout import LayerLayout
from emblema.models.decoder_cache import DecoderCache
from emblema.models.table import KVTable

_FIRST_ROWS = 256


class BatchTable(DecoderCache):
    """Rows of every layer for several sequences. A step writes one row of each at its end.

    It is what the decoder is given as `past_key_values`. Sequences are numbered from 0; when one leaves, the last takes
    its number. Rows are in the order of the tables that they came from; `rows` says which row of its prompt each is.

    Attributes:
        lengths: rows in use of each sequence.
    """

    def __init__(self, layouts: Sequence[LayerLayout], dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__(layouts, dtype, device)
        self.lengths: list[int] = []
        self._room = (0, 0)
        self._rows = torch.zeros(0, 0, dtype=torch.int64, device=self.device)
        # Of the step under way: its sequences and where each one's new row goes, both [sequences] int64 on the device,
        # and the longest of them, its new row included; 0 between steps.
        self._each = self._ends = torch.zeros(0, dtype=torch.int64, device=self.device)
        # Whether sequences came or went since `_ends` was made; else each step adds one.
        self._moved = True
        self._longest = 0

    @property
    def sequences(self) -> int:
        """Sequences in it."""
        return len(self.lengths)

    @property
    def attended(self) -> int:
        """Rows of the longest sequence in the step under way."""
        return self._longest

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
        if last == 0:
            # Nothing of earlier sequences stays in memory.
            self._room, self._keys, self._values, self._rows = (0, 0), [], [], self._rows[:0, :0].clone()

    def begin(self, rows: Tensor) -> None:
        """Begin a step: each sequence's new row is row `rows` [sequences] int64 of its prompt."""
        self._longest = max(self.lengths) + 1
        self._reserve(self.sequences, self._longest)
        count = self.sequences
        if len(self._each) != count:
            self._each = torch.arange(count, device=self.device)
        if self._moved or len(self._ends) != count:
            self._ends, self._moved = torch.tensor(self.lengths, device=self.device), False
        self._rows.index_put_((self._each, self._ends), rows.to(self.device, non_blocking=True))

    def end(self) -> None:
        """End a step: the new rows are in use."""
        self.lengths = [length + 1 for length in self.lengths]
        self._ends = self._ends + 1
        self._longest = 0

    def abandon(self) -> None:
        """Give a step up: its rows are not in use."""
        self._longest = 0

    def masks(self, windows: Iterable[int | None]) -> dict[int | None, Tensor]:
        """Return an additive mask [sequences, 1, 1, longest] of the step's new rows for each distinct window."""
        count, longest = self.sequences, self._longest
        held = torch.arange(longest, device=self.device)[None] <= self._ends[:, None]
        distances = None
        masks = {}
        for window in set(windows):
            seen = held
            if window is not None:
                if distances is None:
                    rows = self._rows[:count, :longest]
                    distances = rows.gather(1, self._ends[:, None]) - rows
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
        count = self.sequences
        keys[self._each, :, self._ends] = key_states[:, :, 0]
        values[self._each, :, self._ends] = value_states[:, :, 0]
        return keys[:count, :, : self._longest], values[:count, :, : self._longest]

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
        self._rows, self._room = places, room

    def __repr__(self) -> str:
        return f"BatchTable({len(self.layouts)} layers, {self.sequences} sequences, {self.dtype})"

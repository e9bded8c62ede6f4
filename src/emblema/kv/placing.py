"""The placing pass: rows of chunks are copied to where a prompt has them, turned and patched on the way.

What is the same in all layers (which rows go where, and by how much they turn) is made once a prompt. A `Placer` then
takes any number of layers at once and writes each number once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, RotaryBand
from emblema.kv.patch import Factors
from emblema.kv.rotation import PhaseBook, Phases


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The memory that one layer's rows are kept in, each [pages, rows of a page, heads, width] in any strides.

    A dense table is one page. Slot `s` is row `s % rows` of page `s // rows`.
    """

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class PlacedSegment:
    """Rows of one chunk that go side by side.

    Attributes:
        source: the first row among the chunk's.
        first: the first row among the placement's.
        rows: how many there are.
    """

    source: int
    first: int
    rows: int

    @property
    def stop(self) -> int:
        """The row after the last among the placement's."""
        return self.first + self.rows


@dataclass(frozen=True)
class RowPlacement:
    """Where the rows of some segments go, and how they turn: the same in all layers.

    Attributes:
        segments: in the order of their rows, without gaps.
        slots: [rows] int64, where each row goes, on the device of the memory; a slice where they follow one another.
        source: phases of the positions that the rows were written at.
        target: phases of their positions in the prompt.
    """

    segments: tuple[PlacedSegment, ...]
    slots: Tensor | slice
    source: PhaseBook
    target: PhaseBook

    @property
    def rows(self) -> int:
        return self.segments[-1].stop

    def on(self, device: torch.device) -> "RowPlacement":
        """Return the same placement for memory on a device, copied once; itself where it is there."""
        if device == self.target.positions.device:
            return self
        if device not in self._copies:
            source, target = self.source.on(device), self.target.on(device)
            slots = self.slots if isinstance(self.slots, slice) else self.slots.to(device, non_blocking=True)
            self._copies[device] = RowPlacement(self.segments, slots, source, target)
        return self._copies[device]

    @cached_property
    def _copies(self) -> dict[torch.device, "RowPlacement"]:
        return {}

    @cached_property
    def slot_indices(self) -> Tensor:
        """[rows] int64, on the device of the positions."""
        if isinstance(self.slots, slice):
            return torch.arange(self.slots.start, self.slots.stop, device=self.target.positions.device)
        return self.slots

    def tiles(self, rows: int) -> Tensor:
        """Return tiles of so many rows at most, [tiles, 4] int64 on the device: segment, source row, row here, rows."""
        if rows not in self._tiles:
            made = [
                (index, segment.source + start, segment.first + start, min(rows, segment.rows - start))
                for index, segment in enumerate(self.segments)
                for start in range(0, segment.rows, rows)
            ]
            self._tiles[rows] = torch.tensor(made).to(self.target.positions.device, non_blocking=True)
        return self._tiles[rows]

    @cached_property
    def _tiles(self) -> dict[int, Tensor]:
        return {}

    @cached_property
    def _known(self) -> dict[tuple[RotaryBand, int, int, bool], Phases]:
        return {}

    def turn(self, band: RotaryBand, start: int = 0, stop: int | None = None) -> Phases:
        """Return phases of some rows (all by default) from the source to the target."""
        key = (band, start, self.rows if stop is None else stop, True)
        if key not in self._known:
            source, target = (book(band).slice(*key[1:3]) for book in (self.source, self.target))
            self._known[key] = source.inverse().then(target)
        return self._known[key]

    def home(self, band: RotaryBand, start: int = 0, stop: int | None = None) -> Phases:
        """Return phases of the positions in the prompt of some rows, all by default."""
        key = (band, start, self.rows if stop is None else stop, False)
        if key not in self._known:
            self._known[key] = self.target(band).slice(*key[1:3])
        return self._known[key]


@dataclass(frozen=True, slots=True)
class SlotRows:
    """What is placed in one cache slot (keys or values) of one layer.

    Attributes:
        sources: of each segment, its chunk's rows [heads, tokens, width], on the device of the memory.
        factors: of each segment, position-free factors of what is added, on that device; None for nothing.
        band: what is turned; None for nothing.
        memory: where the rows go, [pages, rows of a page, heads, width].
    """

    sources: tuple[Tensor, ...]
    factors: tuple[Factors | None, ...]
    band: RotaryBand | None
    memory: Tensor


class Placer(Protocol):
    """Carries placing passes out."""

    @property
    def takes_layers_together(self) -> bool:
        """Whether many layers at once are quicker than one after another."""
        ...

    def place(self, placement: RowPlacement, slots: Sequence[SlotRows]) -> None:
        """Write rows: turned, with what is added, in float32 and cast once."""
        ...


def band_of(layout: LayerLayout, slot: str) -> RotaryBand | None:
    """Return the band that is turned in `keys` or in `values` of a layer; None where there is none."""
    return layout.rotary if layout.rotary is not None and layout.rotary.slot == slot else None


def scratch_memory(layout: LayerLayout, rows: int, dtype: torch.dtype, device: torch.device) -> LayerMemory:
    """Return memory of one page, laid out as a layer's rows are: [heads, rows, width]."""
    keys, values = (
        torch.empty(heads, rows, width, dtype=dtype, device=device).transpose(0, 1)[None]
        for heads, width in (layout.keys, layout.values)
    )
    return LayerMemory(keys, values)

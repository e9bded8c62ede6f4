"""Exact relocation: turn the rotary band of keys from one position to another.

Rows are turned in float32 with the decoder's own rotary tables and cast once, always from rows as first written
(Kamera section 3: `R(delta) R(p) = R(p + delta)`). A pure rotation by `delta` would not do: the model's tables round
`position * frequency` in float32, so the old phase is undone and the new one applied, each read from the tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows, Pairing, RotaryBand

RotaryTable = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [n] int64 to (cosines, sines), each [n, columns] float32, any attention scaling divided out."""


@dataclass(frozen=True)
class Phases:
    """Cosines and sines of one band at some tokens, each [tokens, width / 2]."""

    cos: Tensor
    sin: Tensor

    def inverse(self) -> "Phases":
        """Return the rotation back."""
        return Phases(self.cos, -self.sin)

    def then(self, other: "Phases") -> "Phases":
        """Return this rotation followed by another."""
        return Phases(self.cos * other.cos - self.sin * other.sin, self.sin * other.cos + self.cos * other.sin)

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """`c`, `s` [tokens, width]: a band `x` paired by halves turns to `x c + y s`, `y` being each feature's pair."""
        return torch.cat((self.cos, self.cos), dim=-1), torch.cat((-self.sin, self.sin), dim=-1)

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """The same for a band whose pairs are neighbours."""
        return self.cos.repeat_interleave(2, dim=-1), torch.stack((-self.sin, self.sin), dim=-1).flatten(-2)

    def slice(self, start: int, stop: int) -> "Phases":
        """Return the phases of tokens `start` to `stop`."""
        return Phases(self.cos[start:stop], self.sin[start:stop])


def phases(table: RotaryTable, band: RotaryBand, positions: Tensor) -> Phases:
    """Return phases of a band at positions [axes, tokens]; each frequency reads the axis and column that turn it."""
    device = positions.device
    if device.type == "cpu":
        unique, inverse = torch.unique(positions, return_inverse=True)
    else:
        # To know how many differ, the processor would have to wait for the device.
        unique, inverse = positions.reshape(-1), torch.arange(positions.numel(), device=device)
    cos, sin = table(unique)
    axes, columns = (torch.tensor(each).to(device, non_blocking=True) for each in (band.axes, band.frequencies))
    rows = inverse.reshape(positions.shape).index_select(0, axes).transpose(0, 1)
    return Phases(cos[rows, columns], sin[rows, columns])


class PhaseBook:
    """Phases of many layers at the same positions, each distinct band worked out once."""

    def __init__(self, tables: Mapping[str, RotaryTable], positions: Tensor) -> None:
        self.tables = tables
        self.positions = positions
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Phases] = {}
        # The book that this one is a slice of.
        self._whole: tuple[PhaseBook, int, int] | None = None

    def __call__(self, band: RotaryBand) -> Phases:
        key = (band.table, band.axes, band.frequencies)
        if key not in self._known:
            self._known[key] = self._worked_out(band)
        return self._known[key]

    def _worked_out(self, band: RotaryBand) -> Phases:
        if self._whole is None:
            return phases(self.tables[band.table], band, self.positions)
        book, start, stop = self._whole
        return book(band).slice(start, stop)

    def slice(self, start: int, stop: int) -> "PhaseBook":
        """Return a book of tokens `start` to `stop`, whose phases are slices of this one's."""
        book = PhaseBook(self.tables, self.positions[:, start:stop])
        book._whole = (self, start, stop)
        return book


def rotate(rows: Tensor, band: RotaryBand, turn: Phases) -> Tensor:
    """Return rows [heads, tokens, width] with their band turned; the rest of each row is passed through.

    It is a new tensor in the phases' dtype (float32, or float64 when the phases are).
    """
    cos, sin = turn.halves if band.pairing == "half" else turn.pairs
    own = rows[..., band.start : band.start + band.width].to(cos.dtype)
    # Runs of a whole band are several times quicker than both halves apart.
    turned: Tensor = own * cos
    turned += _swapped(own, band.pairing).mul_(sin)
    if band.width == rows.shape[-1]:
        return turned
    whole = rows.to(cos.dtype, copy=True)
    whole[..., band.start : band.start + band.width] = turned
    return whole


def _swapped(rows: Tensor, pairing: Pairing) -> Tensor:
    """Return a copy with the two features of each pair exchanged."""
    if pairing == "half":
        first, second = rows.chunk(2, dim=-1)
        return torch.cat((second, first), dim=-1)
    swapped: Tensor = rows.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return swapped


def relocate(rows: LayerRows, layout: LayerLayout, source: PhaseBook, target: PhaseBook) -> LayerRows:
    """Return rows as first written at the source positions, turned to the target positions, in their own dtype."""
    band = layout.rotary
    if band is None:
        return rows
    turned = turn_rows(rows, band, source(band).inverse().then(target(band)))
    return LayerRows(turned.keys.to(rows.keys.dtype), turned.values.to(rows.values.dtype))


def unplace(rows: LayerRows, layout: LayerLayout, source: PhaseBook) -> LayerRows:
    """Return rows with their position taken out, float32: the frame in which patches are formed and added."""
    band = layout.rotary
    turned = rows if band is None else turn_rows(rows, band, source(band).inverse())
    return LayerRows(turned.keys.float(), turned.values.float())


def place(rows: LayerRows, layout: LayerLayout, target: PhaseBook, dtype: torch.dtype) -> LayerRows:
    """Return position-free rows set at the target positions, cast once to `dtype`."""
    band = layout.rotary
    placed = rows if band is None else turn_rows(rows, band, target(band))
    return LayerRows(placed.keys.to(dtype), placed.values.to(dtype))


def turn_rows(rows: LayerRows, band: RotaryBand, turn: Phases) -> LayerRows:
    """Return rows whose rotated slot is turned, in float32; the other slot is passed through."""
    if band.slot == "keys":
        return LayerRows(rotate(rows.keys, band, turn), rows.values)
    return LayerRows(rows.keys, rotate(rows.values, band, turn))

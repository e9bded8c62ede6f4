"""Exact relocation: turn the rotary band of keys from one position to another.

Rows are turned in float32 with the decoder's own rotary tables and cast once, always from rows as first written
(Kamera section 3: `R(delta) R(p) = R(p + delta)`). A pure rotation by `delta` would not do: the model's tables round
`position * frequency` in float32, so the old phase is undone and the new one applied, each read from the tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows, RotaryBand

RotaryTable = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [n] int64 to (cosines, sines), each [n, columns] float32, any attention scaling divided out."""


@dataclass(frozen=True, slots=True)
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

    def slice(self, start: int, stop: int) -> "Phases":
        """Return the phases of tokens `start` to `stop`."""
        return Phases(self.cos[start:stop], self.sin[start:stop])


def phases(table: RotaryTable, band: RotaryBand, positions: Tensor) -> Phases:
    """Return phases of a band at positions [axes, tokens]; each frequency reads the axis and column that turn it."""
    unique, inverse = torch.unique(positions, return_inverse=True)
    cos, sin = table(unique)
    axes = torch.tensor(band.axes, device=positions.device)
    columns = torch.tensor(band.frequencies, device=positions.device)
    rows = inverse.reshape(positions.shape).index_select(0, axes).transpose(0, 1)
    return Phases(cos[rows, columns], sin[rows, columns])


class PhaseBook:
    """Phases of many layers at the same positions, each distinct band worked out once."""

    def __init__(self, tables: Mapping[str, RotaryTable], positions: Tensor) -> None:
        self.tables = tables
        self.positions = positions
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Phases] = {}

    def __call__(self, band: RotaryBand) -> Phases:
        key = (band.table, band.axes, band.frequencies)
        if key not in self._known:
            self._known[key] = phases(self.tables[band.table], band, self.positions)
        return self._known[key]


def rotate(rows: Tensor, band: RotaryBand, turn: Phases) -> Tensor:
    """Return rows [heads, tokens, width] with their band turned; the rest of each row is passed through.

    It is a new tensor in the phases' dtype (float32, or float64 when the phases are).
    """
    turned = rows.to(turn.cos.dtype, copy=True)
    half = band.width // 2
    if band.pairing == "half":
        first = turned[..., band.start : band.start + half]
        second = turned[..., band.start + half : band.start + band.width]
    else:
        first = turned[..., band.start : band.start + band.width : 2]
        second = turned[..., band.start + 1 : band.start + band.width : 2]
    real = first * turn.cos - second * turn.sin
    second.mul_(turn.cos).add_(first * turn.sin)
    first.copy_(real)
    return turned


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

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
        """Return this rotation followed by another one."""
        return Phases(self.cos * other.cos - self.sin * other.sin, self.sin * other.cos + self.cos * other.sin)

    def slice(self, start: int, stop: int) -> "Phases":
        """Return the phases of tokens `start` to `stop`."""
        return Phases(self.cos[start:stop], self.sin[start:stop])

    def to(self, dtype: torch.dtype) -> "Phases":
        """Return the same phases in another dtype (float64 for a reference)."""
        return Phases(self.cos.to(dtype), self.sin.to(dtype))


def phases(table: RotaryTable, band: RotaryBand, positions: Tensor) -> Phases:
    """Phases of a band at positions [axes, tokens]; each frequency reads the axis and the table column that turn it."""
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
    """Turn the band of rows [heads, tokens, width]; the rest of each row is passed through.

    Returns a new tensor in the phases' dtype (float32, or float64 when the phases are).
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
    """Relocate rows, as first written at the source positions, to the target positions, in their own dtype."""
    band = layout.rotary
    if band is None:
        return rows
    turn = source(band).inverse().then(target(band))
    if band.slot == "keys":
        return LayerRows(rotate(rows.keys, band, turn).to(rows.keys.dtype), rows.values)
    return LayerRows(rows.keys, rotate(rows.values, band, turn).to(rows.values.dtype))


def unplace(rows: LayerRows, layout: LayerLayout, source: PhaseBook) -> LayerRows:
    """Take the position out of rows, float32: the frame in which patches are formed and added."""
    return _turn(rows, layout, None if layout.rotary is None else source(layout.rotary).inverse())


def place(rows: LayerRows, layout: LayerLayout, target: PhaseBook, dtype: torch.dtype) -> LayerRows:
    """Place position-free rows at the target positions; cast once to `dtype`."""
    placed = _turn(rows, layout, None if layout.rotary is None else target(layout.rotary))
    return LayerRows(placed.keys.to(dtype), placed.values.to(dtype))


def _turn(rows: LayerRows, layout: LayerLayout, turn: Phases | None) -> LayerRows:
    keys, values = rows.keys.float(), rows.values.float()
    band = layout.rotary
    if band is None or turn is None:
        return LayerRows(keys, values)
    if band.slot == "keys":
        return LayerRows(rotate(keys, band, turn), values)
    return LayerRows(keys, rotate(values, band, turn))

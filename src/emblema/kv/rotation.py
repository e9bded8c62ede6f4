"""Exact relocation: turn the rotary band of keys from one position to another.

Rows are turned in float32 with the decoder's own rotary tables and cast once, always from rows as first written
(Kamera section 3: `R(delta) R(p) = R(p + delta)`). A pure rotation by `delta` would not do: the model's tables round
`position * frequency` in float32, so the old phase is undone and the new one applied, each read from the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from emblema.kv.layout import KVRows, LayerLayout, LayerRows, RotaryBand

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
    def factors(self) -> Tensor:
        """[tokens, width] cosines of a band whose features are paired by halves."""
        return torch.cat((self.cos, self.cos), dim=-1)

    @cached_property
    def numbers(self) -> Tensor:
        """[tokens, width / 2] complex: what a pair turns by as a product."""
        return torch.complex(self.cos, self.sin)

    def slice(self, start: int, stop: int) -> "Phases":
        """Return the phases of tokens `start` to `stop`."""
        return Phases(self.cos[start:stop], self.sin[start:stop])

    def to(self, device: torch.device) -> "Phases":
        """Return the same phases on a device."""
        return Phases(self.cos.to(device), self.sin.to(device))


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
    # Indexed by a transposed tensor, they would be laid out by columns.
    return Phases(cos[rows, columns].contiguous(), sin[rows, columns].contiguous())


class PhaseBook:
    """Phases of many layers at the same positions, each distinct band worked out once."""

    def __init__(self, tables: Mapping[str, RotaryTable], positions: Tensor) -> None:
        self.tables = tables
        self.positions = positions
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Phases] = {}
        # The book that this one is a slice of, or a copy of.
        self._whole: tuple[PhaseBook, int, int] | None = None
        self._original: PhaseBook | None = None
        self._copies: dict[torch.device, PhaseBook] = {}

    def __call__(self, band: RotaryBand) -> Phases:
        key = (band.table, band.axes, band.frequencies)
        if key not in self._known:
            self._known[key] = self._worked_out(band)
        return self._known[key]

    def _worked_out(self, band: RotaryBand) -> Phases:
        if self._whole is not None:
            book, start, stop = self._whole
            return book(band).slice(start, stop)
        if self._original is not None:
            return self._original(band).to(self.positions.device)
        return phases(self.tables[band.table], band, self.positions)

    def slice(self, start: int, stop: int) -> "PhaseBook":
        """Return a book of tokens `start` to `stop`, whose phases are slices of this one's."""
        book = PhaseBook(self.tables, self.positions[:, start:stop])
        book._whole = (self, start, stop)
        return book

    def on(self, device: torch.device) -> "PhaseBook":
        """Return a book whose phases are copies of this one's on a device, each made once; itself where it is there."""
        if device == self.positions.device:
            return self
        if self._whole is not None:
            book, start, stop = self._whole
            return book.on(device).slice(start, stop)
        if device not in self._copies:
            copy = PhaseBook(self.tables, self.positions.to(device))
            copy._original = self
            self._copies[device] = copy
        return self._copies[device]


def rotate(rows: Tensor, band: RotaryBand, turn: Phases) -> Tensor:
    """Return rows [heads, tokens, width] with their band turned; the rest of each row is passed through.

    It is a new tensor in the phases' dtype (float32, or float64 when the phases are).
    """
    turned = torch.empty(rows.shape, dtype=turn.cos.dtype, device=rows.device)
    rotate_into(turned, rows.to(turned.dtype), band, turn)
    return turned


def rotate_into(out: Tensor, rows: Tensor, band: RotaryBand, turn: Phases, *, add: bool = False) -> None:
    """Write rows [..., tokens, width] with their band turned into `out`, or add them to it.

    All are in the phases' dtype; `out` and `rows` may have any strides and share no memory.
    """
    first, last = band.start, band.start + band.width
    for start, stop in ((0, first), (last, rows.shape[-1])):
        if start < stop and add:
            out[..., start:stop] += rows[..., start:stop]
        elif start < stop:
            out[..., start:stop] = rows[..., start:stop]
    made, own = out[..., first:last], rows[..., first:last]
    if band.pairing == "half":
        _turn_halves(made, own, turn, add)
    else:
        _turn_pairs(made, own, turn, add)


def _turn_halves(out: Tensor, rows: Tensor, turn: Phases, add: bool) -> None:
    half = rows.shape[-1] // 2
    # Runs of a whole band are several times quicker than both halves apart.
    if add:
        out.addcmul_(rows, turn.factors)
    else:
        torch.mul(rows, turn.factors, out=out)
    out[..., :half].addcmul_(rows[..., half:], turn.sin, value=-1)
    out[..., half:].addcmul_(rows[..., :half], turn.sin)


def _turn_pairs(out: Tensor, rows: Tensor, turn: Phases, add: bool) -> None:
    made, own = _complex(out), _complex(rows)
    if made is not None and own is not None:
        if add:
            made.addcmul_(own, turn.numbers)
        else:
            torch.mul(own, turn.numbers, out=made)
        return
    first, second = rows[..., 0::2], rows[..., 1::2]
    if not add:
        out.zero_()
    out[..., 0::2].addcmul_(first, turn.cos).addcmul_(second, turn.sin, value=-1)
    out[..., 1::2].addcmul_(second, turn.cos).addcmul_(first, turn.sin)


def _complex(rows: Tensor) -> Tensor | None:
    """Return rows whose neighbours are pairs as complex numbers, a view; None where memory does not allow it."""
    if rows.stride(-1) != 1 or rows.storage_offset() % 2 or any(step % 2 for step in rows.stride()[:-1]):
        return None
    return torch.view_as_complex(rows.unflatten(-1, (-1, 2)))


def relocate(rows: LayerRows, layout: LayerLayout, source: PhaseBook, target: PhaseBook) -> LayerRows:
    """Return rows as first written at the source positions, turned to the target positions, in their own dtype."""
    band = layout.rotary
    if band is None:
        return rows
    source, target = source.on(rows.keys.device), target.on(rows.keys.device)
    turned = turn_rows(rows, band, source(band).inverse().then(target(band)))
    return LayerRows(turned.keys.to(rows.keys.dtype), turned.values.to(rows.values.dtype))


def unplace(rows: LayerRows, layout: LayerLayout, source: PhaseBook) -> LayerRows:
    """Return rows with their position taken out, float32: the frame in which patches are formed and added."""
    band = layout.rotary
    turned = rows if band is None else turn_rows(rows, band, source.on(rows.keys.device)(band).inverse())
    return LayerRows(turned.keys.float(), turned.values.float())


def place(rows: LayerRows, layout: LayerLayout, target: PhaseBook, dtype: torch.dtype) -> LayerRows:
    """Return position-free rows set at the target positions, cast once to `dtype`."""
    band = layout.rotary
    placed = rows if band is None else turn_rows(rows, band, target.on(rows.keys.device)(band))
    return LayerRows(placed.keys.to(dtype), placed.values.to(dtype))


def move_rows(
    rows: KVRows, layouts: Sequence[LayerLayout], source: PhaseBook, target: PhaseBook, dtype: torch.dtype
) -> KVRows:
    """Return every layer's rows moved from the source positions to the target positions, in `dtype`."""
    return tuple(
        place(unplace(layer, layout, source), layout, target, dtype)
        for layer, layout in zip(rows, layouts, strict=True)
    )


def turn_rows(rows: LayerRows, band: RotaryBand, turn: Phases) -> LayerRows:
    """Return rows whose rotated slot is turned, in float32; the other slot is passed through."""
    if band.slot == "keys":
        return LayerRows(rotate(rows.keys, band, turn), rows.values)
    return LayerRows(rows.keys, rotate(rows.values, band, turn))

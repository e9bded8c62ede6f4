"""Rotary phases that one stream asks for again and again, each position worked out once."""

from collections.abc import Mapping

import torch
from torch import Tensor

from emblema.kv.layout import RotaryBand
from emblema.kv.rotation import PhaseBook, Phases, RotaryTable

LEAST = 256
"""Positions that are worked out at first; more are added by doubling."""

Key = tuple[str, tuple[int, ...], tuple[int, ...]]


class PhaseTables:
    """Phases of every band at positions 0, 1, …, as far as any was asked for: the same numbers as a `PhaseBook`'s.

    Args:
        tables: the decoder's own rotary tables, by name.
    """

    def __init__(self, tables: Mapping[str, RotaryTable]) -> None:
        self.tables = tables
        self._known: dict[Key, Phases] = {}

    @property
    def bytes(self) -> int:
        """Bytes held, on the device."""
        return sum(known.cos.nbytes + known.sin.nbytes for known in self._known.values())

    def book(self, positions: Tensor) -> PhaseBook:
        """Phases at positions [axes, tokens] int64, none below 0."""
        return _Book(self, positions)

    def at(self, band: RotaryBand, positions: Tensor, top: int) -> Phases:
        """Phases of a band at positions [axes, tokens], the largest of which is `top`."""
        known = self._upto(band, top, positions.device)
        if len(set(band.axes)) == 1:
            rows = positions[band.axes[0]]
            return Phases(known.cos.index_select(0, rows), known.sin.index_select(0, rows))
        own = positions.T[:, list(band.axes)]
        return Phases(known.cos.gather(0, own), known.sin.gather(0, own))

    def _upto(self, band: RotaryBand, top: int, device: torch.device) -> Phases:
        key = (band.table, band.axes, band.frequencies)
        known = self._known.get(key)
        have = 0 if known is None else known.cos.shape[0]
        if known is None or top >= have:
            every = torch.arange(max(top + 1, 2 * have, LEAST), device=device)
            columns = torch.tensor(band.frequencies, device=device)
            cos, sin = (part.index_select(1, columns) for part in self.tables[band.table](every))
            known = self._known[key] = Phases(cos, sin)
        return known


class _Book(PhaseBook):
    """A book that looks phases up."""

    def __init__(self, kept: PhaseTables, positions: Tensor) -> None:
        super().__init__(kept.tables, positions)
        self._kept = kept
        self._top = -1

    def __call__(self, band: RotaryBand) -> Phases:
        key = (band.table, band.axes, band.frequencies)
        if key not in self._known:
            if self._top < 0 and self.positions.numel():
                self._top = int(self.positions.max())
            self._known[key] = self._kept.at(band, self.positions, self._top)
        return self._known[key]

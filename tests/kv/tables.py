"""Rotary tables and bands for tests of the algebra: as a decoder makes them, without a decoder."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.kv.layout import RotaryBand


def table(positions: Tensor, base: float = 10_000.0, columns: int = 8) -> tuple[Tensor, Tensor]:
    """Plain rotary tables, positions times frequencies rounded in float32 as decoders do."""
    frequencies = base ** (-torch.arange(columns, dtype=torch.float32) / columns)
    angles = positions.float()[:, None] * frequencies
    return angles.cos(), angles.sin()


BANDS = {
    "half": RotaryBand("keys", "half", 0, 16, "", (0,) * 8, tuple(range(8))),
    "pairs": RotaryBand("keys", "pairs", 0, 16, "", (0,) * 8, tuple(range(8))),
    "partial": RotaryBand("keys", "pairs", 4, 8, "", (0,) * 4, (0, 2, 4, 6)),
    "blocked axes": RotaryBand("keys", "half", 0, 16, "", (0, 0, 1, 1, 1, 2, 2, 2), tuple(range(8))),
    "interleaved axes": RotaryBand("keys", "half", 0, 16, "", (0, 1, 2, 0, 1, 2, 0, 1), tuple(range(8))),
}


def turned_pairs(rows: Tensor, band: RotaryBand, turns: NDArray[np.complex128]) -> NDArray[np.float64]:
    """The reference: each pair of features as a complex number, times a turn for every token and pair.

    Of features and their pairs it knows what the layout's definition says, and nothing of the code under test.
    """
    found = rows.double().numpy().copy()
    for pair in range(band.width // 2):
        if band.pairing == "half":
            first, second = band.start + pair, band.start + pair + band.width // 2
        else:
            first, second = band.start + 2 * pair, band.start + 2 * pair + 1
        product = (found[..., first] + 1j * found[..., second]) * turns[:, pair]
        found[..., first], found[..., second] = product.real, product.imag
    return found


def table_turns(band: RotaryBand, positions: Tensor) -> NDArray[np.complex128]:
    """The float32 table's turns [tokens, pairs], each read by itself."""
    turns = np.empty((positions.shape[1], band.width // 2), dtype=np.complex128)
    for token in range(positions.shape[1]):
        for pair, (axis, column) in enumerate(zip(band.axes, band.frequencies, strict=True)):
            cos, sin = table(positions[axis, token][None])
            turns[token, pair] = float(cos[0, column]) + 1j * float(sin[0, column])
    return turns

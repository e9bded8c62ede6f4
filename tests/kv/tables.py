"""Rotary tables and bands for tests of the algebra: as a decoder makes them, without a decoder."""

import torch
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

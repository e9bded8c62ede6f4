"""Encoders that attend over whole pictures: the bundled ones have learnt to attend nothing, which is mended here."""

from typing import Any

import torch

SEED = 1


def add_attention(model: Any, gain: float) -> None:
    """Add random numbers to what the encoder's attention puts out in a bundled model of Qwen's kind, in place.

    Args:
        model: the model.
        gain: their root mean square over one over the root of the width; every cell then takes something of all.
    """
    draw = torch.Generator().manual_seed(SEED)
    for block in model.model.visual.blocks:
        weight = block.attn.proj.weight
        drawn = torch.randn(weight.shape, generator=draw)
        with torch.no_grad():
            weight += (drawn * gain / weight.shape[1] ** 0.5).to(weight)

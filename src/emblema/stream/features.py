"""What frames are compared by: mean keys and mean values."""

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, unplace
from emblema.models.queries import matched


def key_shape(layout: LayerLayout) -> tuple[int, int]:
    """Return heads and width of the keys that queries are matched with; latent rows match with both halves."""
    heads, width = layout.keys
    return (heads, width + layout.values[1]) if layout.kind == "latent" else (heads, width)


def mean_keys(rows: LayerRows, layout: LayerLayout, book: PhaseBook, tokens: int, parts: int = 1) -> Tensor:
    """Return the mean position-free key of each part of each frame, [frames, parts, heads, width] float32.

    Args:
        rows: of consecutive frames.
        book: phases of the positions at which they were written.
        tokens: rows of a frame.
        parts: runs of rows that a frame is divided in, as equal as can be; at most `tokens`.
    """
    split = _by_frame(matched(unplace(rows, layout, book), layout), tokens).tensor_split(parts, dim=1)
    return torch.stack([part.mean(1) for part in split], dim=1)


def mean_values(rows: LayerRows, layout: LayerLayout, tokens: int) -> Tensor:
    """Return the mean value of each frame, [frames, heads x width] float32; latent rows have none beside the key."""
    values = _by_frame(rows.values, tokens).mean(1).flatten(1)
    return values[:, :0] if layout.kind == "latent" else values


def _by_frame(rows: Tensor, tokens: int) -> Tensor:
    """Return [frames, tokens, heads, width] float32 of rows [heads, frames x tokens, width]."""
    heads, count, width = rows.shape
    return rows.float().transpose(0, 1).reshape(count // tokens, tokens, heads, width)

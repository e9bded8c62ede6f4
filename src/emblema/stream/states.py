"""From a frame's rows to the vector that it is clustered by."""

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, unplace


def frame_vectors(rows: LayerRows, layout: LayerLayout, book: PhaseBook, tokens: int) -> Tensor:
    """Mean position-free key of each frame, heads side by side, then its mean value: [frames, width] float32.

    Args:
        rows: of frames one behind the other.
        book: phases of the positions at which they were written.
        tokens: rows of a frame.
    """
    free = unplace(rows, layout, book)
    return torch.cat([_means(free.keys, tokens), _means(free.values, tokens)], dim=1)


def matched_width(layout: LayerLayout) -> int:
    """How much of a vector queries meet and clusters are made by: the mean key; of latent rows all of it."""
    keys, values = (heads * width for heads, width in (layout.keys, layout.values))
    return keys + values if layout.kind == "latent" else keys


def _means(rows: Tensor, tokens: int) -> Tensor:
    heads, _, width = rows.shape
    return rows.reshape(heads, -1, tokens, width).mean(2).transpose(0, 1).reshape(-1, heads * width)

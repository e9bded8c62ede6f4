"""What frames and rows are compared by: mean keys of frames, and attention that rows get."""

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, unplace


def frame_vectors(rows: LayerRows, layout: LayerLayout, book: PhaseBook, tokens: int, parts: int = 1) -> Tensor:
    """Return one vector for each frame, [frames, parts x matched width + the rest] float32.

    It is the mean position-free key of each part, heads side by side, then the mean value of all rows. Latent rows
    match with both halves: each part has both, and nothing follows.

    Args:
        rows: of consecutive frames.
        book: phases of the positions at which they were written.
        tokens: rows of a frame.
        parts: runs of rows that a frame is divided in, as equal as can be; at most `tokens`.
    """
    free = unplace(rows, layout, book)
    keys, values = (_by_frame(states, tokens) for states in (free.keys, free.values))
    if layout.kind == "latent":
        return _part_means(torch.cat([keys, values], dim=2), parts).flatten(1)
    return torch.cat([_part_means(keys, parts).flatten(1), _part_means(values, 1).flatten(1)], dim=1)


def matched_width(layout: LayerLayout) -> int:
    """Return the width of a part that queries are matched with: the mean key; of latent rows all of it."""
    keys, values = (heads * width for heads, width in (layout.keys, layout.values))
    return keys + values if layout.kind == "latent" else keys


def saliency(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the attention mass of each row, summed over queries and heads: [rows] float32.

    Args:
        queries: [query heads, queries, width] position-free, times the attention's own scale.
        keys: [key heads, rows, width] position-free; key heads divide query heads.
    """
    shared = keys.repeat_interleave(queries.shape[0] // keys.shape[0], dim=0)
    return torch.softmax(queries @ shared.transpose(1, 2), dim=-1).sum((0, 1))


def _by_frame(rows: Tensor, tokens: int) -> Tensor:
    """Return [frames, tokens, heads x width] float32 of rows [heads, frames x tokens, width]."""
    heads, count, width = rows.shape
    return rows.float().transpose(0, 1).reshape(count // tokens, tokens, heads * width)


def _part_means(states: Tensor, parts: int) -> Tensor:
    """Return [frames, parts, width] of states [frames, tokens, width]."""
    return torch.stack([part.mean(1) for part in states.tensor_split(parts, dim=1)], dim=1)

"""From a frame's rows to the vector that it is clustered by."""

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, unplace


def frame_vectors(rows: LayerRows, layout: LayerLayout, book: PhaseBook, tokens: int, parts: int = 1) -> Tensor:
    """What each frame is known by, [frames, parts x matched width + the rest] float32.

    The mean position-free key of each of its parts, heads side by side, one part behind the other; then the mean value
    of all its rows. Of latent rows both halves are keys: each part has both, and nothing follows.

    Args:
        rows: of frames one behind the other.
        book: phases of the positions at which they were written.
        tokens: rows of a frame.
        parts: runs of rows that a frame is divided in, as equal as can be; no more than it has rows.
    """
    free = unplace(rows, layout, book)
    keys, values = (_frames(each, tokens) for each in (free.keys, free.values))
    if layout.kind == "latent":
        return _means(torch.cat([keys, values], dim=2), parts).flatten(1)
    return torch.cat([_means(keys, parts).flatten(1), _means(values, 1).flatten(1)], dim=1)


def matched_width(layout: LayerLayout) -> int:
    """How much of a part queries meet and clusters are made by: the mean key; of latent rows all of it."""
    keys, values = (heads * width for heads, width in (layout.keys, layout.values))
    return keys + values if layout.kind == "latent" else keys


def _frames(rows: Tensor, tokens: int) -> Tensor:
    """[frames, tokens, heads x width] float32 of rows [heads, frames x tokens, width]."""
    heads, count, width = rows.shape
    return rows.float().transpose(0, 1).reshape(count // tokens, tokens, heads * width)


def _means(states: Tensor, parts: int) -> Tensor:
    """[frames, parts, width] of states [frames, tokens, width]."""
    return torch.stack([part.mean(1) for part in states.tensor_split(parts, dim=1)], dim=1)

"""Attention that rows get."""

import torch
from torch import Tensor


def saliency(queries: Tensor, keys: Tensor) -> Tensor:
    """Return the attention mass of each row, summed over queries and heads: [rows] float32.

    Args:
        queries: [query heads, queries, width] position-free, times the attention's own scale.
        keys: [key heads, rows, width] position-free; key heads divide query heads.
    """
    shared = keys.repeat_interleave(queries.shape[0] // keys.shape[0], dim=0)
    return torch.softmax(queries @ shared.transpose(1, 2), dim=-1).sum((0, 1))

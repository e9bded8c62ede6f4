"""Attention of one new row of each sequence of a batch, without copies of key heads for the query heads they serve."""

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from emblema.models.attended_rows import OTHER_SCORES
from emblema.models.attention_switch import stock_attend


def attend_step(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any
) -> tuple[Tensor, None]:
    """Attend in transformers' interface; layers whose scores are changed on the way attend as they do by themselves.

    Args:
        query: [sequences, heads, 1, width].
        key, value: [sequences, key heads, rows, width].
        mask: [sequences, 1, 1, rows], added to the scores.

    Returns:
        [sequences, 1, heads, value width], and no weights.
    """
    sequences, heads, count, width = query.shape
    key_heads = key.shape[1]
    if count != 1 or heads == key_heads or any(extra.get(name) is not None for name in OTHER_SCORES):
        attended: tuple[Tensor, None] = stock_attend(module, query, key, value, mask, **extra)
        return attended
    packed = query.reshape(sequences, key_heads, heads // key_heads, width)
    mixed = scaled_dot_product_attention(packed, key, value, mask, scale=extra.get("scaling"))
    return mixed.reshape(sequences, 1, heads, value.shape[3]), None

"""How much attention rows of the table get from the rows that a forward runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.errors import ModelError
from emblema.models.adapter import Adapter


class Attention:
    """Attention weights summed over layers, heads and the rows that ran."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None

    def add(self, weights: Tensor) -> None:
        """Take in weights [1, heads, rows, length]."""
        mass = weights.sum(dim=(0, 1, 2))
        self._sum = mass if self._sum is None else self._sum + mass

    def mass(self) -> Tensor:
        """[length] float32, by slot.

        Raises:
            ModelError: nothing was noted.
        """
        if self._sum is None:
            raise ModelError("the model's attention does not go through transformers' interface: nothing was noted")
        return self._sum


@contextmanager
def attention_noted(adapter: Adapter) -> Iterator[Attention]:
    """Note the attention of every forward in the block; the decoder's own function computes it as before.

    The model must not run in another thread meanwhile; other models may.
    """
    config = adapter.config
    before = config._attn_implementation
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    noted = Attention()

    def note(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        scaling = extra.get("scaling")
        scores = query.float() @ key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(2, 3)
        scores = scores * (query.shape[-1] ** -0.5 if scaling is None else float(scaling))
        noted.add(torch.softmax(scores if mask is None else scores + mask.float(), dim=-1))
        return stock(module, query, key, value, mask, **extra)

    # A name of its own for every call, so that models in other threads never meet it.
    name = f"emblema_attending_{id(noted):x}"
    ALL_ATTENTION_FUNCTIONS[name] = note
    try:
        config._attn_implementation = name
        yield noted
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[name]

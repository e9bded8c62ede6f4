"""The attention that some rows of a forward pay, layer by layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.models.adapter import Adapter
from emblema.models.attention_switch import attending_by


class Recording:
    """Attention of the rows `start` to `stop` of one forward, counted in the order in which they run.

    Attributes:
        attention: per layer, [rows, slots] weights summed over heads, float32; layers without any are missing.
    """

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.attention: dict[int, Tensor] = {}
        self._seen: dict[int, int] = {}

    def attended(self, layer: int, weights: Tensor) -> None:
        """Take in weights [heads, rows, slots] of one block of rows."""
        seen = self._seen.get(layer, 0)
        self._seen[layer] = seen + weights.shape[1]
        own = weights.sum(dim=0)[max(0, self.start - seen) : max(0, self.stop - seen)]
        before = self.attention.get(layer)
        if before is not None and before.shape[1] < own.shape[1]:
            before = torch.nn.functional.pad(before, (0, own.shape[1] - before.shape[1]))
        self.attention[layer] = own if before is None else torch.cat((before, own))


@contextmanager
def recorded(adapter: Adapter, start: int, stop: int) -> Iterator[Recording]:
    """Record every forward in the block; the decoder's own functions compute it as before.

    The model must not run in another thread meanwhile. A model whose attention does not go through transformers'
    interface leaves no attention.
    """
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    found = Recording(start, stop)

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        scaling = extra.get("scaling")
        scores = query.float() @ key.float().repeat_interleave(query.shape[1] // key.shape[1], dim=1).transpose(2, 3)
        scores = scores * (query.shape[-1] ** -0.5 if scaling is None else float(scaling))
        weights = torch.softmax(scores if mask is None else scores + mask.float(), dim=-1)
        found.attended(int(module.layer_idx), weights[0])
        return stock(module, query, key, value, mask, **extra)

    with attending_by(adapter.config, attend):
        yield found

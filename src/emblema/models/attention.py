"""How much some rows of a batch attend to the rows of the table, noted while the decoder runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.models.adapter import Adapter
from emblema.models.queries import attending_by

Note = Callable[[int, Tensor, Tensor], None]
"""Called with a layer, indices [queries] into the noted rows, and weights [heads, queries, table rows] float32."""

BLOCK = 256
"""Queries whose weights are worked out at once."""


@contextmanager
def noting_attention(adapter: Adapter, rows: Tensor, note: Note) -> Iterator[None]:
    """Have a function told what rows of the batch attend, while the decoder runs inside the block.

    The weights are worked out apart from the attention kernel: one product a layer of the noted queries with all keys,
    grouped by key head, with the layer's own mask and scale. The batch is run once, in the order of its rows.

    Args:
        adapter: the model; it must not run in another thread meanwhile.
        rows: [noted] int64, indices into the batch, in order.
        note: called for every layer and at most `BLOCK` queries at once.
    """
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    passed: dict[int, int] = {}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        layer = int(module.layer_idx)
        first = passed.get(layer, 0)
        passed[layer] = first + query.shape[2]
        inside = ((rows >= first) & (rows < passed[layer])).nonzero().squeeze(1)
        for places in inside.split(BLOCK):
            chosen = (rows[places] - first).to(query.device)
            own = None if mask is None else mask[0, 0].index_select(0, chosen)
            note(layer, places, _weights(query[0].index_select(1, chosen), key[0], own, extra.get("scaling")))
        return stock(module, query, key, value, mask, **extra)

    with attending_by(adapter, attend):
        yield


def _weights(queries: Tensor, keys: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Return attention weights [heads, queries, rows] float32 of queries [heads, queries, width] over all keys."""
    heads, count, width = queries.shape
    scale = width**-0.5 if scaling is None else float(scaling)
    grouped = (queries.float() * scale).reshape(keys.shape[0], -1, width)
    scores = (grouped @ keys.float().transpose(1, 2)).view(heads, count, -1)
    return torch.softmax(scores if mask is None else scores + mask.float(), dim=-1)


class QuestionAttention:
    """What the rows of a question attend, added up over layers and heads. Its `add` is what `noting_attention` calls.

    Two readings are kept for every row of the table: the weight that the last row gives it, summed over layers and
    heads, and the largest weight that any row of the question gives it.

    Args:
        rows: how many rows the question has.
        length: rows of the table.
        device: of the model.
        layers: layers whose attention counts; None for all.
    """

    def __init__(self, rows: int, length: int, device: torch.device, layers: frozenset[int] | None = None) -> None:
        self._rows, self._layers = rows, layers
        self._last = torch.zeros(length, device=device)
        self._largest = torch.zeros(length, device=device)

    def add(self, layer: int, places: Tensor, weights: Tensor) -> None:
        """Add one layer's weights of some of the question's rows."""
        if self._layers is not None and layer not in self._layers:
            return
        self._largest = torch.maximum(self._largest, weights.amax(dim=(0, 1)))
        if int(places[-1]) == self._rows - 1:
            self._last += weights[:, -1].sum(dim=0)

    def scores(self, slots: Tensor) -> Tensor:
        """Return a score [slots] float32 for rows of the table: both readings, each as shares of their sum, added."""
        last, largest = self._last[slots], self._largest[slots]
        return last / last.sum().clamp_min(1e-9) + largest / largest.sum().clamp_min(1e-9)

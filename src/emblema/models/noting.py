"""How much some rows of a batch attend to the rows of the table, noted while the decoder runs."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from emblema.models.adapter import Adapter
from emblema.models.attention import attending_by, row_attend

Note = Callable[[int, Tensor, Tensor], None]
"""Called with a layer, indices [queries] into the noted rows, and weights [heads, queries, table rows] float32."""

BLOCK = 256
"""Queries whose weights are worked out at once."""


@contextmanager
def noting_attention(
    adapter: Adapter, rows: Tensor, note: Note, layers: Collection[int] | None = None
) -> Iterator[None]:
    """Have a function told what rows of the batch attend, while the decoder runs inside the block.

    The weights are worked out apart from the attention kernel: one product a layer of the noted queries with all keys,
    grouped by key head, with the layer's own mask and scale. The batch is run once, in the order of its rows.

    Args:
        adapter: the model.
        rows: [noted] int64, indices into the batch, in order.
        note: called for every such layer and at most `BLOCK` queries at once.
        layers: layers whose attention is worked out; None for all.
    """
    passed: dict[int, int] = {}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **extra: Any) -> Any:
        layer = int(module.layer_idx)
        first = passed.get(layer, 0)
        passed[layer] = first + query.shape[2]
        if layers is not None and layer not in layers:
            return row_attend(module, query, key, value, mask, **extra)
        inside = ((rows >= first) & (rows < passed[layer])).nonzero().squeeze(1)
        # An empty tensor splits into one empty part.
        for places in inside.split(BLOCK) if len(inside) else ():
            chosen = (rows[places] - first).to(query.device)
            own = None if mask is None else mask[0, 0].index_select(0, chosen)
            note(layer, places, attention_weights(query[0].index_select(1, chosen), key[0], own, extra.get("scaling")))
        return row_attend(module, query, key, value, mask, **extra)

    with attending_by(adapter.config, attend):
        yield


def attention_weights(queries: Tensor, keys: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """Return attention weights [heads, queries, rows] float32 of queries over all keys, apart from the kernel.

    Args:
        queries: [heads, queries, width].
        keys: [key heads, rows, width]; each serves as many heads in turn.
        mask: [queries, rows], added to the scores; None where every query sees all rows.
        scaling: of the scores; None for one over the root of the width.
    """
    heads, count, width = queries.shape
    scale = width**-0.5 if scaling is None else float(scaling)
    grouped = (queries.float() * scale).reshape(keys.shape[0], -1, width)
    scores = (grouped @ keys.float().transpose(1, 2)).view(heads, count, -1)
    return torch.softmax(scores if mask is None else scores + mask.float(), dim=-1)


@dataclass(frozen=True, slots=True)
class QuestionReadings:
    """What the rows of a question attend: two readings for every row, summed or compared over layers and heads.

    Attributes:
        last: [rows] float32, the weight that the question's last row gives each, summed over layers and heads.
        largest: [rows] float32, the largest weight that any row of the question gives each.
    """

    last: Tensor
    largest: Tensor

    def joined(self, other: "QuestionReadings") -> "QuestionReadings":
        """Return the readings of all heads, from those of some heads and of the others."""
        return QuestionReadings(self.last + other.last, torch.maximum(self.largest, other.largest))

    def scores(self, rows: Tensor) -> Tensor:
        """Return a score [rows] float32 for some rows: both readings, each as shares of their sum, added."""
        last, largest = self.last[rows], self.largest[rows]
        return last / last.sum().clamp_min(1e-9) + largest / largest.sum().clamp_min(1e-9)


class QuestionAttention:
    """Adds up what the rows of a question attend. Its `add` is what `noting_attention` calls.

    Args:
        rows: how many rows the question has.
        length: rows of the table.
        device: where they are added up; the weights may come from others.
    """

    def __init__(self, rows: int, length: int, device: torch.device) -> None:
        self._rows = rows
        self._last = torch.zeros(length, device=device)
        self._largest = torch.zeros(length, device=device)

    def add(self, layer: int, places: Tensor, weights: Tensor) -> None:
        """Add one layer's weights of some of the question's rows, over the first rows of the table or all of them."""
        held, device = weights.shape[-1], self._last.device
        largest = self._largest[:held]
        torch.maximum(largest, weights.amax(dim=1).amax(dim=0).to(device), out=largest)
        if int(places[-1]) == self._rows - 1:
            self._last[:held] += weights[:, -1].sum(dim=0).to(device)

    @property
    def readings(self) -> QuestionReadings:
        """What was added so far, by rows of the table."""
        return QuestionReadings(self._last, self._largest)

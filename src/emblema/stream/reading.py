"""The attention function of a stream: a forward's rows attend what a memory hands out, beside one another."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.errors import ModelError
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.queries import position_free
from emblema.models.table import KVTable
from emblema.stream.context import Part
from emblema.stream.method import Purpose, Query
from emblema.stream.phases import PhaseTables

Source = Callable[[int, Query], Sequence[Part]]
"""Layer and queries to the rows that they see; a bias has a line for every group of the queries, or one for all."""


class Reading:
    """One forward's rows: their queries have their positions taken out before a source is asked.

    Args:
        adapter: the model.
        batch: the rows that run.
        groups: [rows] int64, who asks with each row; -1 asks for nothing and sees what group 0 does.
        count: number of groups.
        purpose: whether frames ask or a question.
        source: hands out what is seen.
        phases: kept for the stream.
    """

    def __init__(
        self,
        adapter: Adapter,
        batch: RowBatch,
        groups: Tensor,
        count: int,
        purpose: Purpose,
        source: Source,
        phases: PhaseTables,
    ) -> None:
        self.adapter, self.groups, self.count, self.purpose, self.source = adapter, groups, count, purpose, source
        self._book = phases.book(batch.positions)
        # An adapter may run a long batch in runs: each layer's next call goes on where its last one ended.
        self._done = [0] * len(adapter.layouts)

    @property
    def layers(self) -> int:
        """Layers that have asked."""
        return sum(done > 0 for done in self._done)

    def attend(self, stock: Callable[..., Any], call: tuple[Any, Tensor, Tensor, Tensor, Tensor], extra: Any) -> Any:
        """One layer's attention: the stock function over what is seen and the forward's own rows."""
        module, query, key, value, mask = call
        layer = int(module.layer_idx)
        start, stop = self._done[layer], self._done[layer] + query.shape[2]
        self._done[layer] = stop
        scaling = extra.get("scaling")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        groups = self.groups[start:stop].clamp_min(0)
        parts = self.source(layer, self._query(layer, module, query[0] * scale, start, stop))
        biases = [part.bias.expand(query.shape[2], -1) if len(part.bias) == 1 else part.bias[groups] for part in parts]
        mask = torch.cat([*(bias.to(mask.dtype)[None, None] for bias in biases), mask], dim=3)
        seen = [(part.rows.keys[None], part.rows.values[None]) for part in parts]
        if self.adapter.layouts[layer].kind == "latent":
            seen = [module.expand_kv(*rows) for rows in seen]
        keys = torch.cat([*(rows[0] for rows in seen), key], dim=2)
        values = torch.cat([*(rows[1] for rows in seen), value], dim=2)
        return stock(module, query, keys, values, mask, **extra)

    def _query(self, layer: int, module: Any, states: Tensor, start: int, stop: int) -> Query:
        layout = self.adapter.layouts[layer]
        free = position_free(states.float(), module, layout, self._book, slice(start, stop))
        if free is None:
            raise ModelError(f"the queries of {self.adapter.names[layer]} do not fit the rows that it keeps: no stream")
        return Query(free, self.groups[start:stop], self.count, layout.keys[0], self.purpose)


@contextmanager
def reading(adapter: Adapter, run: Reading) -> Iterator[None]:
    """The decoder's attention reads a memory in this block; what it was before, it is again afterwards.

    The model must not run in another thread meanwhile; other models may.
    """
    config = adapter.config
    before = config._attn_implementation
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **extra: Any) -> Any:
        return run.attend(stock, (module, query, key, value, mask), extra)

    # A name of its own for every call, so that models in other threads never meet it.
    name = f"emblema_stream_{id(run):x}"
    ALL_ATTENTION_FUNCTIONS[name] = attend
    try:
        config._attn_implementation = name
        yield
    finally:
        config._attn_implementation = before
        del ALL_ATTENTION_FUNCTIONS[name]  # type: ignore[no-untyped-call]


def forward_reading(adapter: Adapter, batch: RowBatch, table: KVTable, run: Reading) -> Tensor:
    """Run rows through the decoder under a reading; hidden states [rows, hidden] after the final norm.

    Raises:
        ModelError: a layer's attention does not go through transformers' interface.
    """
    with reading(adapter, run):
        hidden = adapter.forward(batch, table)
    if run.layers < len(adapter.layouts):
        raise ModelError(f"{adapter.family}'s attention does not go through transformers' interface: no stream on it")
    return hidden

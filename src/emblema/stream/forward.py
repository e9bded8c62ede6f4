"""Forwards whose attention reads a memory: frames block by block, a question, and decoding after it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from emblema.errors import ModelError, PromptError
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.frames import FrameCodes
from emblema.models.queries import position_free
from emblema.models.table import KVTable
from emblema.stream.context import MemoryContext
from emblema.stream.method import Method, Purpose, Query, VisibleRange
from emblema.stream.recent import RecentWindow
from emblema.stream.seam import Asked, Closing

RESERVE = 64
"""Rows that a question's table has room for before it grows."""


class MemoryAttention:
    """The attention function of one forward: the stock one over what a memory hands out and the forward's own rows.

    Args:
        adapter: the model.
        batch: the rows that run.
        groups: [rows] int64, who asks with each row; -1 does not ask and sees what group 0 sees.
        count: number of groups.
        purpose: whether frames ask or a question.
        context: hands out what is seen.
    """

    def __init__(
        self,
        adapter: Adapter,
        batch: RowBatch,
        groups: Tensor,
        count: int,
        purpose: Purpose,
        context: MemoryContext,
    ) -> None:
        self.adapter, self.groups, self.count, self.purpose, self.context = adapter, groups, count, purpose, context
        self._book = context.phases.book(batch.positions)
        # An adapter may run a long batch in runs: each layer's next call goes on where its last one ended.
        self._done = [0] * len(adapter.layouts)

    @property
    def layers(self) -> int:
        """Layers that have called it."""
        return sum(done > 0 for done in self._done)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let the decoder's attention layers call this function in a block.

        The model must not run in another thread meanwhile; other models may.
        """
        config, stock = self.adapter.config, ALL_ATTENTION_FUNCTIONS["sdpa"]
        before = config._attn_implementation

        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **extra: Any) -> Any:
            return self._attend(stock, (module, query, key, value, mask), extra)

        # A name of its own for every call, so that models in other threads never meet it.
        name = f"emblema_stream_{id(self):x}"
        ALL_ATTENTION_FUNCTIONS[name] = attend
        try:
            config._attn_implementation = name
            yield
        finally:
            config._attn_implementation = before
            del ALL_ATTENTION_FUNCTIONS[name]  # type: ignore[no-untyped-call]

    def _attend(self, stock: Callable[..., Any], call: tuple[Any, Tensor, Tensor, Tensor, Tensor], extra: Any) -> Any:
        module, query, key, value, mask = call
        layer = int(module.layer_idx)
        start, stop = self._done[layer], self._done[layer] + query.shape[2]
        self._done[layer] = stop
        scaling = extra.get("scaling")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        groups = self.groups[start:stop].clamp_min(0)
        parts = self.context.attended(layer, self._query(layer, module, query[0] * scale, start, stop))
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


def forward(adapter: Adapter, batch: RowBatch, table: KVTable, attention: MemoryAttention) -> Tensor:
    """Run rows through the decoder; return hidden states [rows, hidden] after the final norm.

    Raises:
        ModelError: a layer's attention does not go through transformers' interface.
    """
    with attention.installed():
        hidden = adapter.forward(batch, table)
    if attention.layers < len(adapter.layouts):
        raise ModelError(f"{adapter.family}'s attention does not go through transformers' interface: no stream on it")
    return hidden


def encode_block(adapter: Adapter, method: Method, recent: RecentWindow, codes: FrameCodes, batched: bool) -> None:
    """Run frames of the block under way; there is room for them. Their rows stay in its table.

    All see the memory as it was when the block began, and each frame those before it. For a method that does not
    encode, only room in the table is taken.

    Args:
        batched: in one forward, or as few as the adapter's rows at once allow; else frame by frame.
    """
    together = max(1, adapter.block_rows // codes.tokens) if batched else 1
    visible = VisibleRange(0, recent.done, recent.done)
    for start in range(0, codes.frames, together):
        part = codes.slice(start, min(start + together, codes.frames))
        batch, groups = _frame_batch(adapter, recent, part)
        if not method.encodes:
            continue
        method.prepare(visible)
        begin = recent.positions.corner(recent.done)
        context = MemoryContext(adapter, method, recent, visible, begin, question=False)
        forward(adapter, batch, recent.table, MemoryAttention(adapter, batch, groups, part.frames, "frames", context))


def _frame_batch(adapter: Adapter, recent: RecentWindow, codes: FrameCodes) -> tuple[RowBatch, Tensor]:
    """Return rows of the next frames with slots in the table, and the group of each row: its frame in the batch."""
    tokens, first = codes.tokens, recent.count
    numbers = torch.arange(codes.frames, device=adapter.device)
    groups = numbers.repeat_interleave(tokens)
    rows = torch.arange(recent.table.length, recent.table.length + len(groups), device=adapter.device)
    together = groups + first if adapter.kind.bidirectional else torch.full_like(groups, -1)
    slots = recent.table.allocate(rows, together)
    batch = RowBatch(
        codes.embeds.reshape(len(groups), -1),
        recent.positions.written(numbers + first),
        torch.arange(slots.start, slots.stop, device=adapter.device),
        torch.ones_like(groups, dtype=torch.bool),
        tuple(layer.reshape(len(groups), -1) for layer in codes.deepstack),
    )
    return batch, groups


class MemoryRunner:
    """An adapter whose forwards see a memory beside their table; decoding runs on it."""

    def __init__(self, adapter: Adapter, context: MemoryContext) -> None:
        self.adapter, self._context = adapter, context

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.adapter.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.adapter.logits(hidden)

    def forward(self, batch: RowBatch, table: KVTable, asking: range | None = None) -> Tensor:
        """Run rows after the question; retrieval goes by the rows `asking`."""
        groups = torch.full((batch.embeds.shape[0],), -1, dtype=torch.int64, device=self.device)
        if asking is not None:
            groups[asking.start : asking.stop] = 0
        attention = MemoryAttention(self.adapter, batch, groups, 1, "question", self._context)
        return forward(self.adapter, batch, table, attention)


def prefill_question(
    adapter: Adapter, method: Method, recent: RecentWindow, visible: VisibleRange, closing: Closing, most: int
) -> Asked:
    """Prefill a question after what is visible.

    Args:
        most: tokens that may be decoded after it.

    Raises:
        PromptError: it does not fit into the model's context.
    """
    ids = torch.tensor(closing.token_ids)
    begin = recent.positions.corner(visible.high)
    longest = begin + len(ids) + most
    if longest > adapter.context_length:
        raise PromptError(
            f"the question would take positions up to {longest}; the model's context holds "
            f"{adapter.context_length}: ask less, or open the stream with positions='packed'"
        )
    encoded = adapter.encode_text(ids)
    table = adapter.table(encoded.tokens + min(most, RESERVE))
    slots = torch.arange(encoded.tokens, device=adapter.device)
    table.allocate(slots, encoded.groups)
    batch = RowBatch(encoded.embeds, encoded.positions + begin, slots, encoded.visual)
    method.prepare(visible)
    runner = MemoryRunner(adapter, MemoryContext(adapter, method, recent, visible, begin, question=True))
    hidden = runner.forward(batch, table, closing.question or range(len(ids)))
    return Asked(runner, table, begin + encoded.span, adapter.logits(hidden[-1:])[0])

"""Forwards whose attention reads a memory: frames block by block, a question, and decoding after it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from emblema.errors import ContextLengthError, ModelError
from emblema.models.attention import attending_by, stock_attend
from emblema.models.batch import RowBatch
from emblema.models.frames import FrameCodes
from emblema.models.queries import position_free
from emblema.models.tables import KVTable
from emblema.session.decoding import DecodeStart
from emblema.stream.context import MemoryContext
from emblema.stream.method import Method, Purpose, Query, VisibleRange
from emblema.stream.recent import RecentWindow
from emblema.stream.turn import QuestionTokens

RESERVE = 64
"""Rows that a question's table has room for before it grows."""


class MemoryForward:
    """One forward in which attention runs over what a memory hands out and the forward's own rows.

    Args:
        context: hands out what is seen.
        batch: the rows that run.
        groups: [rows] int64, who asks with each row; -1 does not ask and sees what group 0 sees.
        count: number of groups.
        purpose: whether frames ask or a question.
    """

    def __init__(self, context: MemoryContext, batch: RowBatch, groups: Tensor, count: int, purpose: Purpose) -> None:
        self.context, self.adapter, self.batch = context, context.adapter, batch
        self._groups, self._count, self._purpose = groups, count, purpose
        self._book = context.phases.book(batch.positions)
        # An adapter may run a long batch in runs: each layer's next call goes on where its last one ended.
        self._done = [0] * len(self.adapter.layouts)

    def run(self, table: KVTable) -> Tensor:
        """Run the rows; return hidden states [rows, hidden] after the final norm.

        Raises:
            ModelError: a layer's attention does not go through transformers' interface, or its queries do not fit.
        """
        adapter = self.adapter

        def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **extra: Any) -> Any:
            return self._attend(stock_attend, (module, query, key, value, mask), extra)

        with attending_by(adapter.config, attend):
            hidden = adapter.forward(self.batch, table)
        if not all(self._done):
            raise ModelError(
                f"{adapter.family}'s attention does not go through transformers' interface: no stream on it"
            )
        return hidden

    def _attend(self, stock: Callable[..., Any], call: tuple[Any, Tensor, Tensor, Tensor, Tensor], extra: Any) -> Any:
        module, query, key, value, mask = call
        layer = int(module.layer_idx)
        start, stop = self._done[layer], self._done[layer] + query.shape[2]
        self._done[layer] = stop
        scaling = extra.get("scaling")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        groups = self._groups[start:stop].clamp_min(0)
        parts = self.context.attended(layer, self._query(layer, module, query[0] * scale, start, stop))
        biases = [part.bias.expand(query.shape[2], -1) if len(part.bias) == 1 else part.bias[groups] for part in parts]
        mask = torch.cat([*(bias.to(mask.dtype)[None, None] for bias in biases), mask], dim=3)
        seen = [(part.rows.keys[None], part.rows.values[None]) for part in parts]
        if self.adapter.layouts[layer].kind == "latent":
            seen = [module.expand_kv(*rows) for rows in seen if rows[0].shape[2]]
        keys = torch.cat([*(rows[0] for rows in seen), key], dim=2)
        values = torch.cat([*(rows[1] for rows in seen), value], dim=2)
        return stock(module, query, keys, values, mask, **extra)

    def _query(self, layer: int, module: Any, states: Tensor, start: int, stop: int) -> Query:
        layout = self.adapter.layouts[layer]
        free = position_free(states.float(), module, layout, self._book, slice(start, stop))
        if free is None:
            raise ModelError(f"the queries of {self.adapter.names[layer]} do not fit the rows that it keeps: no stream")
        return Query(free, self._groups[start:stop], self._count, layout.keys[0], self._purpose)


def encode_block(method: Method, recent: RecentWindow, codes: FrameCodes) -> None:
    """Run frames of the block under way; there is room for them. Their rows stay in its table.

    All see the memory as it was when the block began, and each frame those before it. They run in one forward, or as
    few as the adapter's rows at once allow. For a method that does not encode, only room in the table is taken.
    """
    adapter = method.adapter
    together = max(1, adapter.block_rows // codes.tokens)
    visible = VisibleRange(0, recent.done, recent.done)
    for start in range(0, codes.frames, together):
        part = codes.slice(start, min(start + together, codes.frames))
        batch, groups = _frame_batch(recent, part)
        if not method.encodes:
            continue
        method.prepare(visible)
        begin = recent.positions.corner(recent.done)
        context = MemoryContext(method, recent, visible, begin, question=False)
        MemoryForward(context, batch, groups, part.frames, "frames").run(recent.table)


def _frame_batch(recent: RecentWindow, codes: FrameCodes) -> tuple[RowBatch, Tensor]:
    """Return rows of the next frames with slots in the table, and the group of each row: its frame in the batch."""
    adapter, tokens, first = recent.adapter, codes.tokens, recent.count
    numbers = torch.arange(codes.frames, device=adapter.device)
    groups = numbers.repeat_interleave(tokens)
    rows = torch.arange(recent.table.length, recent.table.length + len(groups), device=adapter.device)
    together = groups + first if adapter.kind.bidirectional(adapter.model.config) else torch.full_like(groups, -1)
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

    def __init__(self, context: MemoryContext) -> None:
        self.adapter, self._context = context.adapter, context

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.adapter.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.adapter.logits(hidden)

    def forward(self, batch: RowBatch, table: KVTable, asking: range = range(0)) -> Tensor:
        """Run rows after the question; retrieval goes by the rows `asking`."""
        groups = torch.full((batch.embeds.shape[0],), -1, dtype=torch.int64, device=self.device)
        groups[asking.start : asking.stop] = 0
        return MemoryForward(self._context, batch, groups, 1, "question").run(table)


def prefill_question(
    method: Method, recent: RecentWindow, visible: VisibleRange, question: QuestionTokens, most: int
) -> tuple[MemoryRunner, DecodeStart]:
    """Prefill a question after what is visible; return what decoding runs on, and where it begins.

    Args:
        most: tokens that may be decoded after it.

    Raises:
        ContextLengthError: it does not fit into the model's context.
    """
    adapter, ids = method.adapter, torch.tensor(question.token_ids)
    begin = recent.positions.corner(visible.high)
    longest = begin + len(ids) + most
    if longest > adapter.context_length:
        raise ContextLengthError(
            f"the question would take positions up to {longest}; the model's context holds "
            f"{adapter.context_length}: ask less, or open the stream with positions='packed'"
        )
    encoded = adapter.encode_text(ids)
    table = adapter.table(encoded.tokens + min(most, RESERVE))
    slots = torch.arange(encoded.tokens, device=adapter.device)
    table.allocate(slots, encoded.groups)
    positions = (encoded.positions + begin).to(adapter.device)
    batch = RowBatch(encoded.embeds, positions, slots, encoded.visual.to(adapter.device))
    method.prepare(visible)
    runner = MemoryRunner(MemoryContext(method, recent, visible, begin, question=True))
    hidden = runner.forward(batch, table, question.asking)
    logits = adapter.logits(hidden[-1:])[0]
    return runner, DecodeStart(table, logits, table.length, begin + encoded.span, adapter.axes)

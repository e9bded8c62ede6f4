"""A question behind the frames: prefilled over what a memory hands out, decoded over the same rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from emblema.errors import PromptError
from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.table import KVTable
from emblema.stream.local import Local
from emblema.stream.method import Method, Sight
from emblema.stream.reading import Reading, forward_reading
from emblema.stream.seam import Asked, Closing
from emblema.stream.source import MemorySource


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """What an answer cost.

    Attributes:
        method: the memory that was asked.
        frames: frames that the question could see: those that had come, or those asked for.
        retrieved: frames outside the window that were handed out in one layer or more.
        question_tokens: rows computed for the question.
        ttft_seconds: from the call to the first token; frames that were waiting are encoded before it and count.
        counts: what the memory counted for this answer alone: transfers, their bytes, splits and more.
        completion_tokens: tokens made, the end token too.
    """

    method: str
    frames: int
    retrieved: int
    question_tokens: int
    ttft_seconds: float
    counts: Mapping[str, float]
    completion_tokens: int = 0

    def of(self, tokens: int) -> "StreamUsage":
        """The same with the tokens that were made."""
        return replace(self, completion_tokens=tokens)


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame that was handed out to a question: its number, its time, and the share of layers that saw it."""

    frame: int
    at: float
    share: float


@dataclass(frozen=True, slots=True)
class StreamReply:
    """A finished answer.

    Attributes:
        text: the answer.
        token_ids: its tokens.
        finish_reason: `stop` at an end token or stop string, `length` at the most that was allowed.
        usage: what it cost.
        moments: frames outside the window that were retrieved for it, in order.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: StreamUsage
    moments: tuple[Moment, ...] = field(default=(), repr=False)


class StreamPiece(str):
    """A piece of a streamed answer; the last carries the whole reply."""

    reply: StreamReply | None

    def __new__(cls, text: str, reply: StreamReply | None = None) -> "StreamPiece":
        piece = super().__new__(cls, text)
        piece.reply = reply
        return piece


class MemoryRunner:
    """An adapter whose forwards see a memory beside their table: what decoding runs on."""

    def __init__(self, adapter: Adapter, source: MemorySource) -> None:
        self.adapter, self._source = adapter, source

    @property
    def device(self) -> torch.device:
        return self.adapter.device

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.adapter.embed(token_ids)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.adapter.logits(hidden)

    def forward(self, batch: RowBatch, table: KVTable, asking: range | None = None) -> Tensor:
        """Run rows behind the question; the rows `asking` are what retrieval goes by."""
        groups = torch.full((batch.embeds.shape[0],), -1, dtype=torch.int64, device=self.device)
        if asking is not None:
            groups[asking.start : asking.stop] = 0
        run = Reading(self.adapter, batch, groups, 1, "question", self._source, self._source.local.phases)
        return forward_reading(self.adapter, batch, table, run)


def ask(
    adapter: Adapter, method: Method, local: Local, sight: Sight, closing: Closing, most: int, reserve: int
) -> Asked:
    """Prefill a question behind what is in sight.

    Args:
        most: tokens that may be decoded behind it.
        reserve: rows to keep room for at first.

    Raises:
        PromptError: it stands outside the model's context.
    """
    ids = torch.tensor(closing.token_ids)
    begin = local.places.corner(sight.high)
    longest = begin + len(ids) + most
    if longest > adapter.context_length:
        raise PromptError(
            f"the question would stand at positions up to {longest}; the model's context holds "
            f"{adapter.context_length}: ask less, or open the stream with positions='packed'"
        )
    encoded = adapter.encode_text(ids)
    table = adapter.table(encoded.tokens + reserve)
    slots = torch.arange(encoded.tokens, device=adapter.device)
    table.allocate(slots, encoded.groups)
    batch = RowBatch(encoded.embeds, encoded.positions + begin, slots, encoded.visual)
    method.prepare(sight)
    runner = MemoryRunner(adapter, MemorySource(adapter, method, local, sight, begin, asked=True))
    hidden = runner.forward(batch, table, closing.question or range(len(ids)))
    return Asked(runner, table, begin + encoded.span, adapter.logits(hidden[-1:])[0])


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, Any]:
    """What was counted in between."""
    return {name: value - before.get(name, 0) for name, value in after.items()}

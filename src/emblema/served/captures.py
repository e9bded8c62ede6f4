"""Chunks that the store lacks, to be prefilled alone in idle time: each is requested once, and few wait."""

import math
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.served.idle_time import IdleTime
from emblema.served.request_plan import RequestPlan
from emblema.served.requests import MediaItem, ServedRequest

WAITING_CAPTURES = 64
REMEMBERED_CAPTURES = 4096
RECAPTURE_SECONDS = 10.0
"""How long a chunk that was captured is not captured again, as it may not be stored yet."""


@dataclass(frozen=True, slots=True)
class ChunkCapture:
    """A chunk to be prefilled alone, on memory that no request has; its rows are read after that and stored.

    Attributes:
        salt: of the tenant's store.
        chunk: ids and geometry, without rows.
        identifier: the picture's name while it is prefilled alone, by which its encoder output is found.
        feature: the picture as the engine's model takes it, under that name and at its place in `token_ids`.
        anchor: token ids that the chunk is prefilled after.
        blocks: vLLM's pages, in order.
    """

    salt: bytes
    chunk: Chunk
    identifier: str
    feature: Any = None
    anchor: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Rows that are prefilled, the anchor's included."""
        return len(self.anchor) + self.chunk.tokens

    @property
    def token_ids(self) -> list[int]:
        """Token ids of these."""
        return [*self.anchor, *self.chunk.encoded.token_ids.tolist()]

    @property
    def positions(self) -> Tensor:
        """Positions of these [axes, tokens]."""
        own = self.chunk.encoded.positions
        first = len(self.anchor)
        return torch.cat((torch.arange(first).expand(len(own), -1), own + first), dim=1)


class CaptureQueue:
    """What is to be captured; for the scheduler's thread.

    Args:
        feature: returns a request's picture as the engine's model takes it alone.
        anchor: token ids that chunks are prefilled after.
        most_rows: of a prompt; chunks that are as long with the anchor are not captured.

    Attributes:
        waiting: captures that wait for idle time.
        urgent: those that requests wait for.
        idle_time: says when the moment is idle_time.
    """

    def __init__(
        self,
        feature: Callable[[ServedRequest, MediaItem, ChunkCapture], Any],
        anchor: tuple[int, ...] = (),
        most_rows: int = sys.maxsize,
    ) -> None:
        self._feature, self._anchor, self._most_rows = feature, anchor, most_rows
        self.waiting: deque[ChunkCapture] = deque()
        self.urgent: deque[ChunkCapture] = deque()
        self.idle_time = IdleTime()
        # With the moment when each was captured; None before.
        self._requested: OrderedDict[str, float | None] = OrderedDict()

    def request(self, plan: RequestPlan, urgent: bool = False) -> None:
        """Have the chunks of a prompt captured that are missing, each once; see `RequestPlan.passing`.

        Args:
            plan: of the prompt.
            urgent: whether its request waits for them.
        """
        missing = {chunk.id for chunk in plan.missing} - (frozenset() if urgent else plan.passing)
        for item, (_, chunk) in zip(plan.request.items, plan.prompt.chunk_segments, strict=True):
            captured = self._requested.get(chunk.id, -math.inf)
            if urgent and captured is None:
                self._hurry(chunk.id)
            if chunk.id not in missing or captured is None or time.monotonic() - captured < RECAPTURE_SECONDS:
                continue
            capture = ChunkCapture(plan.request.store_salt, chunk, f"emblema-{item.digest}", anchor=self._anchor)
            # There is a token after its rows.
            if capture.tokens >= self._most_rows:
                continue
            self._requested[chunk.id] = None
            while len(self._requested) > REMEMBERED_CAPTURES:
                self._requested.popitem(last=False)
            # An engine may let go of a request's pictures when it is answered.
            made = replace(capture, feature=self._feature(plan.request, item, capture))
            (self.urgent if urgent else self.waiting).append(made)
            if len(self.waiting) > WAITING_CAPTURES:
                # It is requested again when it is shown again.
                self._requested.pop(self.waiting.popleft().chunk.id, None)

    def _hurry(self, chunk: str) -> None:
        """Have a chunk that waits for idle time captured at once."""
        found = next((wanted for wanted in self.waiting if wanted.chunk.id == chunk), None)
        if found is not None:
            self.waiting.remove(found)
            self.urgent.append(found)

    def drop(self, plan: RequestPlan) -> None:
        """Let go of the chunks of a prompt that wait, as they are deleted."""
        chunks = {chunk.id for _, chunk in plan.prompt.chunk_segments}
        for wanted in [wanted for wanted in self.waiting if wanted.chunk.id in chunks]:
            self.waiting.remove(wanted)
            self._requested.pop(wanted.chunk.id, None)

    def finish(self, chunk: str) -> None:
        """Note that a chunk was captured, or could not be."""
        self._requested[chunk] = time.monotonic()

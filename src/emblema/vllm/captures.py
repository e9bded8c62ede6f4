"""Chunks that the store lacks, prefilled alone in quiet moments, on pages that are taken from vLLM's pool for that."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from emblema.link.prompt import TextPart
from emblema.plugin.quiet import QuietMoments
from emblema.plugin.request_plan import MediaItem, RequestPlan, ServedRequest
from emblema.vllm.step_metadata import ChunkCapture

WAITING_CAPTURES = 64
REMEMBERED_CAPTURES = 4096
RECAPTURE_SECONDS = 10.0
"""How long a chunk that was captured is not captured again, as it may not be stored yet."""
BESIDE_ROWS = 256
"""Rows that a step captures beside answers that are decoded."""


class BlockPool(Protocol):
    """vLLM's pool of pages."""

    def get_num_free_blocks(self) -> int: ...

    def get_new_blocks(self, num_blocks: int) -> list[Any]: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A chunk to be prefilled alone: the request that showed it, its place in there, and what to store."""

    shown_by: ServedRequest
    item: MediaItem
    capture: ChunkCapture


class CaptureQueue:
    """What is to be captured, and what is under way; for the scheduler's thread.

    Args:
        workers: how many report that they are done with a chunk's pages.
        block_size: rows of a page.
        feature: returns a picture as vLLM's model takes it, under a name of its own.
    """

    def __init__(self, workers: int, block_size: int, feature: Callable[[CaptureRequest], Any]) -> None:
        self._workers, self._block_size, self._feature = workers, block_size, feature
        self._pool: BlockPool | None = None
        self._waiting: deque[CaptureRequest] = deque(maxlen=WAITING_CAPTURES)
        # By chunk, its pages and how many workers are not done with them.
        self._running: dict[str, tuple[list[Any], int]] = {}
        # Chunks that were requested, so that each is requested once; with the moment when it was done.
        self._requested: OrderedDict[str, float | None] = OrderedDict()
        self.quiet = QuietMoments()

    def bind_pool(self, pool: BlockPool) -> None:
        """Take the pool of pages."""
        self._pool = pool

    @property
    def waiting(self) -> bool:
        """Whether any chunk waits for a quiet moment."""
        return bool(self._waiting)

    @property
    def running(self) -> bool:
        """Whether any chunk is being prefilled."""
        return bool(self._running)

    def request(self, plan: RequestPlan) -> None:
        """Have the chunks of a prompt captured that are missing, each once."""
        missing = {chunk.id for chunk in plan.missing}
        items = iter(plan.request.items)
        for segment in plan.prompt.segments:
            if isinstance(segment.part, TextPart):
                continue
            item, chunk = next(items), segment.part.chunk
            captured = self._requested.get(chunk.id, -math.inf)
            if chunk.id not in missing or captured is None or time.monotonic() - captured < RECAPTURE_SECONDS:
                continue
            self._requested[chunk.id] = None
            while len(self._requested) > REMEMBERED_CAPTURES:
                self._requested.popitem(last=False)
            capture = ChunkCapture(plan.request.store_salt, chunk, f"emblema-{item.digest}")
            self._waiting.append(CaptureRequest(plan.request, item, capture))

    def begin(self, idle: bool) -> Sequence[ChunkCapture]:
        """Return the chunks whose prefill begins in this step, with pages.

        Args:
            idle: whether no request is there.
        """
        now = time.monotonic()
        if self._pool is None or self._running or not self._waiting:
            return ()
        begun: list[ChunkCapture] = []
        for _ in range(min(self.quiet.captures(now, idle), len(self._waiting))):
            wanted = self._waiting[0]
            pages = -(-wanted.capture.chunk.tokens // self._block_size)
            if pages > self._pool.get_num_free_blocks():
                break
            self._waiting.popleft()
            blocks = self._pool.get_new_blocks(pages)
            self._running[wanted.capture.chunk.id] = (blocks, self._workers)
            numbers = tuple(block.block_id for block in blocks)
            begun.append(replace(wanted.capture, blocks=numbers, feature=self._feature(wanted)))
        if begun:
            self.quiet.begin(now)
        return begun

    def finish(self, captured: dict[str, int]) -> None:
        """Give pages back of which all workers are done.

        Args:
            captured: by chunk, how many workers are.
        """
        for chunk, workers in captured.items():
            blocks, left = self._running.pop(chunk)
            if left > workers:
                self._running[chunk] = (blocks, left - workers)
                continue
            if self._pool is not None:
                self._pool.free_blocks(reversed(blocks))
            self._requested[chunk] = time.monotonic()
        if captured and not self._running:
            self.quiet.end(time.monotonic())

"""Chunks that the store lacks, prefilled alone in quiet moments, on pages that are taken from vLLM's pool for that."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from emblema.link.prompt import TextPart
from emblema.plugin.quiet import CAPTURES_AT_ONCE, QuietMoments
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
        self._waiting: deque[CaptureRequest] = deque()
        # Those that requests wait for, which no quiet moment is awaited for.
        self._urgent: deque[CaptureRequest] = deque()
        # By chunk, its pages and how many workers are not done with them.
        self._running: dict[str, tuple[list[Any], int]] = {}
        # Chunks that were requested, so that each is requested once; with the moment when it was done.
        self._requested: OrderedDict[str, float | None] = OrderedDict()
        # Whether requests wait for those that are under way.
        self._hurries = False
        self.quiet = QuietMoments()

    def bind_pool(self, pool: BlockPool) -> None:
        """Take the pool of pages."""
        self._pool = pool

    @property
    def waiting(self) -> bool:
        """Whether any chunk waits for a quiet moment."""
        return bool(self._waiting)

    @property
    def urgent(self) -> bool:
        """Whether requests wait for any chunk that is not captured, or is being prefilled."""
        return bool(self._urgent) or self._hurries

    @property
    def running(self) -> bool:
        """Whether any chunk is being prefilled."""
        return bool(self._running)

    @property
    def running_rows(self) -> int:
        """Rows of the pages of chunks that are being prefilled."""
        return sum(len(blocks) for blocks, _ in self._running.values()) * self._block_size

    def request(self, plan: RequestPlan, urgent: bool = False) -> None:
        """Have the chunks of a prompt captured that are missing, each once.

        Args:
            plan: of the prompt.
            urgent: whether its request waits for them.
        """
        missing = {chunk.id for chunk in plan.missing}
        items = iter(plan.request.items)
        for segment in plan.prompt.segments:
            if isinstance(segment.part, TextPart):
                continue
            item, chunk = next(items), segment.part.chunk
            captured = self._requested.get(chunk.id, -math.inf)
            if urgent and captured is None:
                self._hurry(chunk.id)
            if chunk.id not in missing or captured is None or time.monotonic() - captured < RECAPTURE_SECONDS:
                continue
            self._requested[chunk.id] = None
            while len(self._requested) > REMEMBERED_CAPTURES:
                self._requested.popitem(last=False)
            capture = ChunkCapture(plan.request.store_salt, chunk, f"emblema-{item.digest}")
            (self._urgent if urgent else self._waiting).append(CaptureRequest(plan.request, item, capture))
            if len(self._waiting) > WAITING_CAPTURES:
                # It is requested again when it is shown again.
                self._requested.pop(self._waiting.popleft().capture.chunk.id, None)

    def _hurry(self, chunk: str) -> None:
        """Have a chunk that waits for a quiet moment captured at once."""
        found = next((wanted for wanted in self._waiting if wanted.capture.chunk.id == chunk), None)
        if found is not None:
            self._waiting.remove(found)
            self._urgent.append(found)

    def begin(self, idle: bool) -> Sequence[ChunkCapture]:
        """Return the chunks whose prefill begins in this step, with pages.

        Args:
            idle: whether no request is there.
        """
        now = time.monotonic()
        if self._pool is None or self._running:
            return ()
        queue = self._urgent or self._waiting
        self._hurries = bool(self._urgent)
        most = CAPTURES_AT_ONCE if self._hurries else self.quiet.captures(now, idle)
        begun: list[ChunkCapture] = []
        for _ in range(min(most, len(queue))):
            wanted = queue[0]
            pages = -(-wanted.capture.chunk.tokens // self._block_size)
            if pages > self._pool.get_num_free_blocks():
                break
            queue.popleft()
            blocks = self._pool.get_new_blocks(pages)
            self._running[wanted.capture.chunk.id] = (blocks, self._workers)
            numbers = tuple(block.block_id for block in blocks)
            begun.append(replace(wanted.capture, blocks=numbers, feature=self._feature(wanted)))
        self._hurries = self._hurries and bool(begun)
        if begun and not self._hurries:
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
            self._hurries = False
            self.quiet.end(time.monotonic())

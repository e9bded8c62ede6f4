"""Chunks that are prefilled alone inside vLLM, beside what is scheduled, on pages that are taken from its pool."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from emblema.served.captures import CaptureQueue, ChunkCapture
from emblema.served.idle_time import CAPTURES_AT_ONCE
from emblema.served.request_plan import RequestPlan
from emblema.vllm.step_metadata import StepMetadata

BESIDE_ROWS = 256
"""Rows that a step captures beside answers that are decoded."""
POLLING_SECONDS = 0.005
"""How long a step without work takes while something waits for idle time."""


class BlockPool(Protocol):
    """vLLM's pool of pages."""

    def get_num_free_blocks(self) -> int: ...

    def get_new_blocks(self, num_blocks: int) -> list[Any]: ...

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None: ...


class PageCaptures:
    """What is being captured, in idle time or because requests wait for it; for the scheduler's thread.

    Args:
        queue: what is to be.
        workers: how many report that they are done with a chunk's pages.
        block_size: rows of a page.
        most_rows: that a step may have.
        enabled: whether anything is captured.
    """

    def __init__(
        self,
        queue: CaptureQueue,
        workers: int,
        block_size: int,
        most_rows: int,
        enabled: bool = True,
    ) -> None:
        self.queue, self._workers, self._block_size = queue, workers, block_size
        self._most_rows, self._enabled = most_rows, enabled
        self._pool: BlockPool | None = None
        # By chunk, its pages and how many workers are not done with them.
        self._running: dict[str, tuple[list[Any], int]] = {}
        self._rows = 0
        # Whether requests wait for those that are under way.
        self._hurries = False

    def bind_pool(self, pool: BlockPool) -> None:
        """Take the pool of pages."""
        self._pool = pool

    @property
    def waiting(self) -> bool:
        """Whether any chunk waits for idle time."""
        return bool(self.queue.waiting)

    @property
    def urgent(self) -> bool:
        """Whether requests wait for any chunk that is not captured, or is being prefilled."""
        return bool(self.queue.urgent) or self._hurries

    @property
    def running(self) -> bool:
        """Whether any chunk is being prefilled."""
        return bool(self._running)

    @property
    def pending(self) -> bool:
        """Whether vLLM is to go on stepping for any of it."""
        return self.waiting or self.running

    def take_rows(self) -> int:
        """Return how many rows were begun to be prefilled alone since the last call, the anchor's included."""
        rows, self._rows = self._rows, 0
        return rows

    def capture(self, plan: RequestPlan, urgent: bool = False) -> None:
        """Have what a prompt lacks prefilled alone, unless its request declines that.

        Args:
            plan: of the prompt.
            urgent: whether its request waits for that.
        """
        declined = plan.request.keeps or plan.request.options.get("capture", True) is not True
        if self._enabled and not declined:
            self.queue.request(plan, urgent)

    def fill(
        self,
        step: StepMetadata,
        scheduled: Mapping[str, tuple[int, int]],
        slots: int,
        idle: bool,
        waits: bool,
        reads: bool,
    ) -> StepMetadata:
        """Return a step with what it captures beside what is scheduled.

        Args:
            step: the step.
            scheduled: by request id, its first row and how many there are.
            slots: places in the batch that no request has.
            idle: whether no request is there.
            waits: whether any has not been scheduled yet.
            reads: whether anything is being read for one of these.
        """
        self.queue.idle_time.look(time.monotonic())
        step = replace(step, pressed=self.queue.idle_time.pressed)
        left = self._most_rows - sum(count for _, count in scheduled.values())
        if self.urgent:
            begun = tuple(self.begin(not scheduled))
            own = sum(len(blocks) for blocks, _ in self._running.values()) * self._block_size
            return replace(step, captures=begun, side_rows=min(left, own), side_slots=slots)
        # Who waits though nothing is read for it waits for pages, which this work may have.
        held_up = waits and self.running and not reads
        if any(count > 1 for _, count in scheduled.values()) or (waits and not held_up):
            return step
        begun = () if waits else tuple(self.begin(idle))
        if not scheduled and not self.running and self.waiting:
            # Nothing else holds the engine up, which asks again at once.
            time.sleep(POLLING_SECONDS)
        rows = left if idle else min(left, BESIDE_ROWS)
        return replace(step, captures=begun, side_rows=rows if self.running else 0, side_slots=slots)

    def begin(self, idle: bool) -> Sequence[ChunkCapture]:
        """Return the chunks whose prefill begins in this step, with pages.

        Args:
            idle: whether no request is there.
        """
        now = time.monotonic()
        if self._pool is None or self._running:
            return ()
        queue, idle_time = self.queue.urgent or self.queue.waiting, self.queue.idle_time
        self._hurries = bool(self.queue.urgent)
        most = CAPTURES_AT_ONCE if self._hurries else idle_time.captures(now, idle)
        begun: list[ChunkCapture] = []
        for _ in range(min(most, len(queue))):
            pages = -(-queue[0].tokens // self._block_size)
            if pages > self._pool.get_num_free_blocks():
                break
            wanted, blocks = queue.popleft(), self._pool.get_new_blocks(pages)
            self._running[wanted.chunk.id] = (blocks, self._workers)
            self._rows += wanted.tokens
            begun.append(replace(wanted, blocks=tuple(block.block_id for block in blocks)))
        self._hurries = self._hurries and bool(begun)
        if begun and not self._hurries:
            idle_time.begin(now)
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
            self.queue.finish(chunk)
        if captured and not self._running:
            self._hurries = False
            self.queue.idle_time.end(time.monotonic())

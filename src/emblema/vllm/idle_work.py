"""What a server does in idle time: pictures prefilled alone, and answered prompts compared with full prefill."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from emblema.served.idle_time import IdleTime
from emblema.served.request_plan import RequestPlan
from emblema.vllm.batch_places import BatchPlaces
from emblema.vllm.captures import BESIDE_ROWS, BlockPool, PageCaptures
from emblema.vllm.shadow_canary import ShadowCanary
from emblema.vllm.step_metadata import StepMetadata, WorkerReport

POLLING_SECONDS = 0.005
"""How long a step without work takes while something waits for idle time."""


class IdleWork:
    """Fills steps with work that no request waits for; for the scheduler's thread.

    Args:
        captures: what is prefilled alone; None where nothing is.
        canary: what is compared; None where nothing is.
        most_rows: that a step may have.
        together: whether engines step together, all or none with what their schedulers know of.
    """

    def __init__(
        self, captures: PageCaptures | None, canary: ShadowCanary | None, most_rows: int, together: bool
    ) -> None:
        self.captures, self.canary = captures, canary
        self._most_rows, self._together = most_rows, together
        self.idle_time = IdleTime() if captures is None else captures.queue.idle_time

    def bind_pool(self, pool: BlockPool) -> None:
        """Take the pool of pages."""
        for side in (self.captures, self.canary):
            if side is not None:
                side.bind_pool(pool)

    @property
    def waiting(self) -> bool:
        """Whether anything waits for idle time."""
        return any(side is not None and side.waiting for side in (self.captures, self.canary))

    @property
    def running(self) -> bool:
        """Whether anything has pages."""
        return any(side is not None and side.running for side in (self.captures, self.canary))

    @property
    def urgent(self) -> bool:
        """Whether requests wait for any of it."""
        return self.captures is not None and self.captures.urgent

    @property
    def pending(self) -> bool:
        """Whether vLLM is to go on stepping for it."""
        return not self._together and (self.waiting or self.running)

    def capture(self, plan: RequestPlan, urgent: bool = False) -> None:
        """Have what a prompt lacks prefilled alone, unless its request declines that.

        Args:
            plan: of the prompt.
            urgent: whether its request waits for that.
        """
        if self.captures is not None and plan.request.options.get("capture", True) is True:
            self.captures.queue.request(plan, urgent)

    def consider(self, request_id: str, plan: RequestPlan | None) -> None:
        """Perhaps have an answered prompt compared; None for one that was not planned."""
        if self.canary is not None and plan is not None:
            self.canary.consider(request_id, plan)

    def fill(
        self,
        step: StepMetadata,
        scheduled: Mapping[str, tuple[int, int]],
        places: BatchPlaces,
        idle: bool,
        waits: bool,
        reads: bool,
    ) -> StepMetadata:
        """Return a step with what it does beside what is scheduled.

        Args:
            step: the step.
            scheduled: by request id, its first row and how many there are.
            places: of the batch.
            idle: whether no request is there.
            waits: whether any has not been scheduled yet.
            reads: whether anything is being read for one of these.
        """
        if self.canary is not None:
            step = self.canary.tell(step)
        if self._together and not scheduled:
            return step
        now = time.monotonic()
        self.idle_time.look(now)
        step = replace(step, pressed=self.idle_time.pressed)
        # Who waits though nothing is read for it waits for pages, which this work may have.
        held_up = waits and self.running and not reads
        if held_up and self.canary is not None:
            self.canary.give_up()
        if self.captures is not None and self.captures.urgent:
            return self._hurry(step, self.captures, scheduled, places)
        if any(count > 1 for _, count in scheduled.values()) or (waits and not held_up):
            return step
        if not waits:
            step = self._begin(step, now, idle)
        if not scheduled and not self.running and self.waiting:
            # Nothing else holds the engine up, which asks again at once.
            time.sleep(POLLING_SECONDS)
        rows = self._most_rows - sum(count for _, count in scheduled.values())
        rows = rows if idle else min(rows, BESIDE_ROWS)
        slots = places.free if scheduled else places.unused
        return replace(step, side_rows=rows if self.running else 0, side_slots=slots)

    def _hurry(
        self, step: StepMetadata, captures: PageCaptures, scheduled: Mapping[str, tuple[int, int]], places: BatchPlaces
    ) -> StepMetadata:
        """Return a step with pictures that requests wait for, in the rows that it has left."""
        step = replace(step, captures=tuple(captures.begin(not scheduled)))
        rows = self._most_rows - sum(count for _, count in scheduled.values())
        slots = places.free if scheduled else places.unused
        return replace(step, side_rows=min(rows, captures.running_rows), side_slots=slots)

    def _begin(self, step: StepMetadata, now: float, idle: bool) -> StepMetadata:
        """Begin to prefill pictures alone; a prompt is compared where none waits for that."""
        comparing = self.canary is not None and self.canary.running
        captures = None if comparing else self.captures
        if captures is not None:
            step = replace(step, captures=tuple(captures.begin(idle)))
        if self.canary is None or (captures is not None and (captures.waiting or captures.running)):
            return step
        return self.canary.begin(step, self.idle_time, now, idle)

    def note(self, report: WorkerReport) -> None:
        """Take what the workers report."""
        if self.captures is not None:
            self.captures.finish(report.captured)
        if self.canary is not None:
            self.canary.note(report, self.idle_time, time.monotonic())

    def take_counts(self) -> dict[str, Any]:
        """Return what was compared since the last call, by the names of `LinkedStats`."""
        return {} if self.canary is None else self.canary.take_counts()

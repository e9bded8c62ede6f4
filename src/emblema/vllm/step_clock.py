"""How long steps took: on a CPU what the processor did, on an accelerator by its own events, read once they are past.

What other processes of a busy machine take from a step is none of its costs.
"""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from emblema.vllm.step_costs import StepWork

MOST_EVENTS = 64


class StepClock:
    """Times one worker's steps.

    Args:
        device: that the steps run on.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = device.type == "cuda"
        self._began: Any = None
        self._running: deque[tuple[StepWork, Any, Any]] = deque(maxlen=MOST_EVENTS)
        self._past: list[tuple[StepWork, float]] = []

    def begin(self) -> None:
        """Note that a step begins."""
        self._began = self._event() if self._events else time.thread_time()

    def end(self, work: StepWork) -> None:
        """Note that the step under way has ended, or is all in the device's queue."""
        if self._events:
            self._running.append((work, self._began, self._event()))
        else:
            self._past.append((work, time.thread_time() - self._began))

    def take(self) -> Iterator[tuple[StepWork, float]]:
        """Yield steps that are past, with their seconds, each once."""
        while self._running and self._running[0][2].query():
            work, began, ended = self._running.popleft()
            yield work, began.elapsed_time(ended) / 1000
        past, self._past = self._past, []
        yield from past

    @staticmethod
    def _event() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

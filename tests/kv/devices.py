"""A device that is simulated: work is queued, and runs when somebody waits for it."""

import threading
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor


class Device:
    """Two streams of a device: the model's, and one for copies. Nothing runs before it is waited for."""

    def __init__(self) -> None:
        self.model: list[Callable[[], object]] = []
        self.queued: list[Callable[[], object]] = []
        self.kept: list[Tensor] = []
        # The threads that waited.
        self.waits: list[int] = []

    def compute(self, target: Tensor, number: float) -> None:
        """Queue what fills a tensor on the model's stream."""
        self.model.append(partial(target.fill_, number))

    def reuse(self, tensor: Tensor) -> None:
        """Queue what the allocator would give a tensor's memory to; not where a stream keeps it."""
        if not any(kept is tensor for kept in self.kept):
            self.compute(tensor, -1)

    # the stream for copies

    def follow(self) -> None:
        self.queued.append(partial(self._run, self.model, list(self.model)))

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def copy(self, source: Tensor, target: Tensor) -> None:
        self.kept.append(source)
        self.queued.append(partial(target.copy_, source))

    def mark(self) -> "Mark":
        return Mark(self, list(self.queued))

    def wait(self, queued: list[Callable[[], object]]) -> None:
        """Have done what was queued."""
        self.waits.append(threading.get_ident())
        self._run(self.queued, queued)

    def _run(self, stream: list[Callable[[], object]], queued: list[Callable[[], object]]) -> None:
        for work in queued:
            if work in stream:
                stream.remove(work)
                work()


class Mark:
    """A point on the stream for copies."""

    def __init__(self, device: Device, before: list[Callable[[], object]]) -> None:
        self._device, self._before = device, before

    def wait(self) -> None:
        self._device.wait(self._before)

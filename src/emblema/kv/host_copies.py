"""Copies of a device's tensors in host memory, made beside the model: on a stream of their own, for another thread.

What the model's stream has queued is not done when a call returns, and a tensor's memory is used again as soon as the
stream that made it is told so. So a copy waits for the model's stream by an event, keeps its source until it is done,
and whoever uses it waits for an event behind it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class CopyStream(Protocol):
    """A stream for copies to the host."""

    def follow(self) -> None:
        """Have it wait for all that the calling thread has queued on its own stream."""

    def copy(self, source: Tensor) -> Tensor:
        """Queue a copy in page-locked memory, keep the source's memory until it is done, and return it at once."""

    def mark(self) -> Callable[[], None]:
        """Return what waits until all that is queued by now is done; any thread may call it."""


class CudaCopyStream:
    """A stream of a CUDA device.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, source: Tensor) -> Tensor:
        target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._stream)
        return target

    def mark(self) -> Callable[[], None]:
        # A thread that waits must not take the processor from the one that queues kernels.
        done = torch.cuda.Event(blocking=True)
        done.record(self._stream)
        return done.synchronize


@dataclass(frozen=True, slots=True)
class PendingCopies:
    """Copies under way.

    Attributes:
        wait: returns when they are done.
    """

    _copies: tuple[Tensor, ...]
    wait: Callable[[], None]

    def take(self) -> tuple[Tensor, ...]:
        """Return the copies when they are done; for any thread."""
        self.wait()
        return self._copies


class HostCopier:
    """Copies tensors to the host; for the model's thread.

    Args:
        stream: where copies are queued; None where tensors are in host memory, and are handed on as they are.
    """

    def __init__(self, stream: CopyStream | None) -> None:
        self._stream = stream

    @classmethod
    def of(cls, device: torch.device) -> "HostCopier":
        """Return one for a device's tensors."""
        return cls(CudaCopyStream(device) if device.type == "cuda" else None)

    def copy(self, tensors: Sequence[Tensor]) -> PendingCopies:
        """Queue copies of tensors behind all that this thread has queued; it may let go of them at once."""
        if self._stream is None:
            return PendingCopies(tuple(tensors), _done)
        self._stream.follow()
        copies = tuple(self._stream.copy(tensor) for tensor in tensors)
        return PendingCopies(copies, self._stream.mark())


def _done() -> None:
    """Wait for nothing."""

"""Copies between a device and page-locked host memory, made beside the model: on a stream of their own.

What the model's stream has queued is not done when a call returns, and a tensor's memory is used again as soon as the
stream that made it is told so. So a stream of copies waits for the model's stream by an event, keeps the tensors on the
device until it is done, and whoever uses a copy waits for an event behind it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class CopyEvent(Protocol):
    """A point on a stream of copies."""

    def join(self, tensors: Sequence[Tensor]) -> None:
        """Have the calling thread's stream wait for the point, and keep the tensors' memory until it is done too."""

    def wait(self) -> None:
        """Wait for the point; any thread may."""


class CopyStream(Protocol):
    """A stream for copies between a device and the host."""

    def follow(self) -> None:
        """Have it wait for all that the calling thread has queued on its own stream."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return page-locked memory."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Queue a copy from or to page-locked memory, and keep what is on the device until it is done."""

    def mark(self) -> CopyEvent:
        """Return a point behind all that is queued by now."""


@dataclass(frozen=True, slots=True)
class CudaCopyEvent:
    """A `torch.cuda.Event`."""

    event: torch.cuda.Event

    def join(self, tensors: Sequence[Tensor]) -> None:
        current = torch.cuda.current_stream(tensors[0].device)
        current.wait_event(self.event)
        for tensor in tensors:
            tensor.record_stream(current)

    def wait(self) -> None:
        self.event.synchronize()


class CudaCopyStream:
    """A stream of a CUDA device.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

    def copy(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        for tensor in (source, target):
            if tensor.device.type == "cuda":
                tensor.record_stream(self._stream)

    def mark(self) -> CopyEvent:
        # A thread that waits must not take the processor from the one that queues kernels.
        done = torch.cuda.Event(blocking=True)
        done.record(self._stream)
        return CudaCopyEvent(done)


def copy_stream(device: torch.device) -> CopyStream | None:
    """Return a stream for a device's copies; None where its memory is the host's, or it has no streams."""
    return CudaCopyStream(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class PendingCopies:
    """Copies in host memory under way, and the event that they are there behind; None where they are there."""

    copies: tuple[Tensor, ...]
    event: CopyEvent | None

    def take(self) -> tuple[Tensor, ...]:
        """Return the copies when they are done; for any thread."""
        if self.event is not None:
            self.event.wait()
        return self.copies


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
        return cls(copy_stream(device))

    def copy(self, tensors: Sequence[Tensor]) -> PendingCopies:
        """Queue copies of tensors behind all that this thread has queued; it may let go of them at once."""
        if self._stream is None:
            return PendingCopies(tuple(tensors), None)
        self._stream.follow()
        copies = tuple(self._stream.pinned(tensor.shape, tensor.dtype) for tensor in tensors)
        for source, target in zip(tensors, copies, strict=True):
            self._stream.copy(source, target)
        return PendingCopies(copies, self._stream.mark())

"""Rows on their way into a device's memory: staged in page-locked buffers, copied on a stream beside the model's.

A copy of pageable memory holds up the thread that asks for it, and the default stream. Here the loading thread only
queues copies; whoever reads a layer has its own stream wait for that layer's event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows

ALIGNMENT = 256
"""Of the addresses of keys and values, in bytes."""
STAGES = 4
"""Layers that may be on their way at once; the next waits until the first of them has arrived."""


class UploadEvent(Protocol):
    """A point on a stream of copies."""

    def join(self, tensors: Sequence[Tensor]) -> None:
        """Have the calling thread's stream wait for the point, and keep the tensors' memory until it is done too."""

    def wait(self) -> None:
        """Wait for the point; any thread may."""


class UploadStream(Protocol):
    """A stream for copies to a device."""

    def follow(self) -> None:
        """Have it wait for what the calling thread's stream was told: that may still use memory given out anew."""

    def stage(self, size: int) -> Tensor:
        """Return a page-locked buffer of bytes."""

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Queue a copy from page-locked memory, and keep the target's memory until it is done."""

    def mark(self) -> UploadEvent:
        """Return a point behind all that is queued by now."""


@dataclass(frozen=True, slots=True)
class CudaUploadEvent:
    """A `torch.cuda.Event`."""

    event: torch.cuda.Event

    def join(self, tensors: Sequence[Tensor]) -> None:
        current = torch.cuda.current_stream(tensors[0].device)
        current.wait_event(self.event)
        for tensor in tensors:
            tensor.record_stream(current)

    def wait(self) -> None:
        self.event.synchronize()


class CudaUploadStream:
    """A stream of a CUDA device.

    Args:
        device: with its index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def stage(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def copy(self, source: Tensor, target: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        target.record_stream(self._stream)

    def mark(self) -> UploadEvent:
        # A thread that waits must not take the processor from the one that queues kernels.
        done = torch.cuda.Event(blocking=True)
        done.record(self._stream)
        return CudaUploadEvent(done)


@dataclass(slots=True)
class _Stage:
    """A page-locked buffer, and when its last copy is done."""

    buffer: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    done: UploadEvent | None = None


class RowUploader:
    """Copies the layers of one chunk to a device, one after another, into one slab; for one thread.

    Args:
        device: where they go.
        stream: where copies are queued; None where each is made at once.
        sizes: bytes of each layer.
    """

    def __init__(self, device: torch.device, stream: UploadStream | None, sizes: Sequence[int]) -> None:
        self._device, self._stream = device, stream
        self._stages = [_Stage() for _ in range(STAGES)]
        self._count = 0
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._bytes = sum(sizes) + 2 * ALIGNMENT * len(sizes)

    @classmethod
    def of(cls, device: torch.device, sizes: Sequence[int]) -> "RowUploader":
        """Return one for a device."""
        return cls(device, CudaUploadStream(device) if device.type == "cuda" else None, sizes)

    def upload(self, rows: LayerRows) -> tuple[LayerRows, UploadEvent | None]:
        """Return a layer's rows on the device, and the event that they are there behind; None where they are there.

        The rows may be let go of at once.
        """
        if self._stream is None or rows.keys.device == self._device:
            return rows.to(self._device), None
        stage = self._stages[self._count % STAGES]
        self._count += 1
        if stage.done is not None:
            stage.done.wait()
        parts = (rows.keys, rows.values)
        starts = (0, _aligned(rows.keys.nbytes))
        size = starts[1] + _aligned(rows.values.nbytes)
        if stage.buffer.numel() < size:
            stage.buffer = self._stream.stage(size)
        slab = self._memory(size, self._stream)
        targets = []
        for part, start in zip(parts, starts, strict=True):
            staged, target = (
                memory[start : start + part.nbytes].view(part.dtype).view(part.shape) for memory in (stage.buffer, slab)
            )
            staged.copy_(part)
            self._stream.copy(staged, target)
            targets.append(target)
        stage.done = self._stream.mark()
        return LayerRows(*targets), stage.done

    def _memory(self, size: int, stream: UploadStream) -> Tensor:
        """Return so many bytes on the device, set aside once: what the model is told later is not waited for."""
        if self._slab.numel() < size:
            self._slab = torch.empty(max(self._bytes, size), dtype=torch.uint8, device=self._device)
            stream.follow()
        taken, self._slab = self._slab[:size], self._slab[size:]
        return taken

    def finish(self) -> None:
        """Wait until every layer is there."""
        for stage in self._stages:
            if stage.done is not None:
                stage.done.wait()


class LayerUploader:
    """Copies the layers of one chunk to their devices; for one thread.

    Args:
        devices: of each layer.
        sizes: bytes of each layer.
    """

    def __init__(self, devices: Sequence[torch.device], sizes: Sequence[int]) -> None:
        own: dict[torch.device, list[int]] = {}
        for device, size in zip(devices, sizes, strict=True):
            own.setdefault(device, []).append(size)
        self._devices = devices
        self._uploaders = {device: RowUploader.of(device, held) for device, held in own.items()}

    def upload(self, layer: int, rows: LayerRows) -> tuple[LayerRows, UploadEvent | None]:
        """Return a layer's rows on its device, as `RowUploader.upload` does."""
        return self._uploaders[self._devices[layer]].upload(rows)

    def finish(self) -> None:
        """Wait until every layer is there."""
        for uploader in self._uploaders.values():
            uploader.finish()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

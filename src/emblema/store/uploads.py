"""Rows on their way into a device's memory: staged in page-locked buffers, copied on a stream beside the model's.

A copy of pageable memory holds up the thread that asks for it, and the default stream. Here the loading thread only
queues copies; whoever reads a layer has its own stream wait for that layer's event.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from emblema.kv.device_copies import CopyEvent, CopyStream, copy_stream
from emblema.kv.layout import LayerRows

ALIGNMENT = 256
"""Of the addresses of tensors, in bytes."""
TENSORS = 5
"""Of a layer, at most: keys and values, and three of a map of its state."""
STAGES = 4
"""Layers that may be on their way at once; the next waits until the first of them has arrived."""


@dataclass(slots=True)
class _Stage:
    """A page-locked buffer, and when its last copy is done."""

    buffer: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    done: CopyEvent | None = None


class RowUploader:
    """Copies the layers of one chunk to a device, one after another, into one slab; for one thread.

    Args:
        device: where they go.
        stream: where copies are queued; None where each is made at once.
        sizes: bytes of each layer.
    """

    def __init__(self, device: torch.device, stream: CopyStream | None, sizes: Sequence[int]) -> None:
        self._device, self._stream = device, stream
        self._stages = [_Stage() for _ in range(STAGES)]
        self._count = 0
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._bytes = sum(sizes) + TENSORS * ALIGNMENT * len(sizes)

    @classmethod
    def of(cls, device: torch.device, sizes: Sequence[int]) -> "RowUploader":
        """Return one for a device."""
        return cls(device, copy_stream(device), sizes)

    def upload(self, rows: LayerRows) -> tuple[LayerRows, CopyEvent | None]:
        """Return a layer's rows on the device, and the event that they are there behind; None where they are there.

        The rows may be let go of at once.
        """
        if self._stream is None or rows.keys.device == self._device:
            return rows.to(self._device), None
        stage = self._stages[self._count % STAGES]
        self._count += 1
        if stage.done is not None:
            stage.done.wait()
        parts = rows.tensors
        *starts, size = accumulate((_aligned(part.nbytes) for part in parts), initial=0)
        if stage.buffer.numel() < size:
            stage.buffer = self._stream.pinned((size,), torch.uint8)
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
        return rows.with_tensors(targets), stage.done

    def _memory(self, size: int, stream: CopyStream) -> Tensor:
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

    def upload(self, layer: int, rows: LayerRows) -> tuple[LayerRows, CopyEvent | None]:
        """Return a layer's rows on its device, as `RowUploader.upload` does."""
        return self._uploaders[self._devices[layer]].upload(rows)

    def finish(self) -> None:
        """Wait until every layer is there."""
        for uploader in self._uploaders.values():
            uploader.finish()


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

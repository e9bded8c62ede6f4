"""Rows of the frames that left the window, on the host in the order of time, and their way to the device."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from emblema.errors import StoreError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.stream.lines import FrameLines, FrameNumbers


@dataclass(slots=True)
class Transfers:
    """Counts since the stream began.

    Attributes:
        fetches: runs of consecutive frames that were copied from the host to the device.
        fetched_bytes: their bytes.
        predicted, hits: frames that were prefetched, and those of them that their layer then asked for.
    """

    fetches: int = 0
    fetched_bytes: int = 0
    predicted: int = 0
    hits: int = 0

    def counts(self) -> dict[str, float]:
        """Return all counts by name."""
        return {name: float(getattr(self, name)) for name in self.__slots__}


class HostRows:
    """The rows of one layer.

    A frame's rows are one line: keys [heads, tokens, width], then values.

    Args:
        tokens: rows of a frame.
        step: as of `FrameLines`.

    Attributes:
        lines: of all frames.
    """

    def __init__(
        self, layout: LayerLayout, tokens: int, dtype: torch.dtype, transfers: Transfers, step: int | None = None
    ) -> None:
        self.layout, self.tokens, self.transfers = layout, tokens, transfers
        self.lines = FrameLines(tokens * layout.features, dtype, step)

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return self.lines.bytes

    @property
    def frames(self) -> range:
        """The frames that are here."""
        return self.lines.frames

    def append(self, frames: range, rows: LayerRows) -> None:
        """Write rows [heads, frames x tokens, width] of the next frames."""
        self.lines.append(frames, self._lines(rows))

    def _lines(self, rows: LayerRows) -> Tensor:
        """Return rows of frames [heads, frames x tokens, width] as lines [frames, features]."""
        frames = rows.tokens // self.tokens
        parts = [
            part.reshape(heads, frames, self.tokens, width).transpose(0, 1).reshape(frames, -1)
            for part, (heads, width) in ((rows.keys, self.layout.keys), (rows.values, self.layout.values))
        ]
        return torch.cat(parts, dim=1)

    def rows(self, lines: Tensor) -> LayerRows:
        """Return lines [frames, features] as rows."""
        split = self.layout.keys[0] * self.layout.keys[1] * self.tokens
        keys, values = (
            part.reshape(len(lines), heads, self.tokens, width).transpose(0, 1).reshape(heads, -1, width)
            for part, (heads, width) in ((lines[:, :split], self.layout.keys), (lines[:, split:], self.layout.values))
        )
        return LayerRows(keys, values)

    def copy(self, frames: FrameNumbers, device: torch.device) -> Tensor:
        """Return a copy of the lines of frames, which rise, on a device: [frames, features].

        Raises:
            StoreError: a line is on disk, and damaged there.
        """
        return self.lines.copy(frames).to(device)

    def fetch(self, frames: FrameNumbers, device: torch.device) -> Tensor:
        """Return `copy`, counted as a transfer."""
        lines = self.copy(frames, device)
        self.count_transfer(frames, lines)
        return lines

    def count_transfer(self, frames: FrameNumbers, lines: Tensor) -> None:
        """Count lines that were copied to the device."""
        self.transfers.fetches += min(1, len(frames)) + int(numpy.count_nonzero(frames[1:] - frames[:-1] > 1))
        self.transfers.fetched_bytes += lines.nbytes


class RowFetcher:
    """Copies lines to the device for one reading. What a layer gets never depends on what was prefetched."""

    def __init__(self, stores: Sequence[HostRows], transfers: Transfers, device: torch.device) -> None:
        self._stores, self._transfers, self._device = stores, transfers, device
        self._pool: ThreadPoolExecutor | None = None
        self._copying: dict[int, tuple[FrameNumbers, Future[Tensor]]] = {}
        self._copied: dict[int, tuple[FrameNumbers, Tensor]] = {}

    @property
    def bytes(self) -> int:
        """Bytes on the device that were prefetched."""
        return sum(lines.nbytes for _, lines in self._copied.values())

    def prefetch(self, layer: int, frames: FrameNumbers) -> None:
        """Copy lines on a thread for a later layer; once a layer and reading."""
        if not len(frames) or layer in self._copying or layer in self._copied:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "emblema-stream-fetch")
        self._transfers.predicted += len(frames)
        self._copying[layer] = frames, self._pool.submit(self._stores[layer].copy, frames, self._device)

    def fetch(self, layer: int, frames: FrameNumbers) -> Tensor:
        """Return lines of frames, which rise; wait for those that are being copied, and copy those that are missing.

        Raises:
            StoreError: a line is on disk, and damaged there.
        """
        store = self._stores[layer]
        self._collect(layer)
        here, held = self._copied.get(layer, (frames[:0], None))
        known = numpy.isin(frames, here)
        self._transfers.hits += int(known.sum())
        if held is None or not known.any():
            return store.fetch(frames, self._device)
        lines = held.new_empty(len(frames), held.shape[1])
        lines[torch.from_numpy(known.nonzero()[0])] = held[torch.from_numpy(numpy.searchsorted(here, frames[known]))]
        if not known.all():
            lines[torch.from_numpy((~known).nonzero()[0])] = store.fetch(frames[~known], self._device)
        return lines

    def _collect(self, layer: int) -> None:
        frames, copying = self._copying.pop(layer, (None, None))
        # A guess that could not be read was perhaps not wanted; if it is, the layer reads it and says what is wrong.
        if frames is None or copying is None or isinstance(copying.exception(), StoreError):
            return
        self._copied[layer] = frames, copying.result()
        self._stores[layer].count_transfer(*self._copied[layer])

    def clear(self) -> None:
        """Give up what is on the device, once it has come."""
        for layer in list(self._copying):
            self._collect(layer)
        self._copied.clear()

    def close(self) -> None:
        """End the thread."""
        self.clear()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

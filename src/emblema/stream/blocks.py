"""Rows of frames on the host in contiguous blocks, the unit of transfer, and their transfers to the device."""

import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.stream.buffers import host_buffer
from emblema.stream.state import StreamState

LEAST_SLAB, SLAB_SHARE = 16, 16
"""Lines of a slab: so many at least, and one for so many that there are."""


@dataclass(slots=True)
class Transfers:
    """Counts since the stream began.

    Attributes:
        fetches, fetched_bytes: blocks copied from the host to the device, each in one transfer.
        stores, stored_bytes: writes from the device to the host, one for each run of frames that joins a block.
        moved_bytes: bytes moved on the host where clusters were cut; nothing is transferred for it.
        fetch_seconds: time that fetches took, on any thread.
        waited_seconds: the part of it that a layer waited for.
        predicted, hits: blocks that were prefetched, and those of them that their layer then asked for.
        asked: blocks that layers asked for, the first layer's aside, which cannot be prefetched.
    """

    fetches: int = 0
    fetched_bytes: int = 0
    stores: int = 0
    stored_bytes: int = 0
    moved_bytes: int = 0
    fetch_seconds: float = 0.0
    waited_seconds: float = 0.0
    predicted: int = 0
    hits: int = 0
    asked: int = 0

    def counts(self) -> dict[str, float]:
        """Return all counts by name."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


@dataclass(slots=True)
class Block:
    """Where a block's lines are: in a slab, from a first line on.

    Attributes:
        lines: [capacity, features], a view of the slab.
        count: of them that are used.
    """

    lines: Tensor
    count: int = 0


class BlockStore:
    """The blocks of one layer, on the host.

    A frame's rows are one line of a block: keys [heads, tokens, width], then values. Blocks lie in slabs, and the lines
    of one that grew or was divided are used again: no gaps come to be between them in the process's memory.

    Args:
        tokens: rows of a frame.
    """

    def __init__(self, layout: LayerLayout, tokens: int, dtype: torch.dtype, transfers: Transfers) -> None:
        self.layout, self.tokens, self.transfers = layout, tokens, transfers
        self._dtype = dtype
        self._blocks: dict[int, Block] = {}
        self._slab = torch.empty(0, tokens * layout.features, dtype=dtype)
        # Lines of all slabs; of the last slab, those in use. Free blocks by their capacity.
        self._lines = self._used = 0
        self._free: dict[int, list[Tensor]] = {}

    def __contains__(self, id: int) -> bool:
        return id in self._blocks

    @property
    def bytes(self) -> int:
        """Bytes of all blocks, spare lines included; what is left of the last slab is not written and takes none."""
        return (self._lines - len(self._slab) + self._used) * self._slab.shape[1] * self._slab.element_size()

    def lines(self, rows: LayerRows) -> Tensor:
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

    def append(self, id: int, lines: Tensor) -> None:
        """Write lines from the device after those of a block; a new block is made for a new id."""
        self._add(id, lines)
        self.transfers.stores += 1
        self.transfers.stored_bytes += lines.nbytes

    def _add(self, id: int, lines: Tensor) -> None:
        block = self._blocks.get(id)
        held = 0 if block is None else block.count
        if block is None or held + len(lines) > len(block.lines):
            larger = Block(self._take(held + len(lines)), held)
            if block is not None:
                larger.lines[:held] = block.lines[:held]
                self._give_back(block)
            block = self._blocks[id] = larger
        block.lines[held : held + len(lines)].copy_(lines)
        block.count = held + len(lines)

    def _take(self, lines: int) -> Tensor:
        """Return room for so many lines, or for up to half as many more: there are few sizes, so that each returns."""
        capacity = 1
        while capacity < lines:
            capacity += (capacity + 1) // 2
        if free := self._free.get(capacity):
            return free.pop()
        if self._used + capacity > len(self._slab):
            if self._used < len(self._slab):
                rest = self._slab[self._used :]
                self._free.setdefault(len(rest), []).append(rest)
            lines = max(capacity, LEAST_SLAB, self._lines // SLAB_SHARE)
            self._slab = host_buffer((lines, self._slab.shape[1]), self._dtype)
            self._lines, self._used = self._lines + len(self._slab), 0
        self._used += capacity
        return self._slab[self._used - capacity : self._used]

    def _give_back(self, block: Block) -> None:
        self._free.setdefault(len(block.lines), []).append(block.lines)

    def copy(self, id: int, device: torch.device) -> Tensor:
        """Return a copy of a block's lines on a device, [frames, features]."""
        block = self._blocks[id]
        return block.lines[: block.count].to(device, copy=True)

    def fetch(self, id: int, device: torch.device) -> Tensor:
        """Return `copy`, counted as a transfer that its layer waits for."""
        began, transfers = time.perf_counter(), self.transfers
        lines = self.copy(id, device)
        seconds = time.perf_counter() - began
        transfers.fetch_seconds += seconds
        transfers.waited_seconds += seconds
        transfers.fetches += 1
        transfers.fetched_bytes += lines.nbytes
        return lines

    def divide(self, id: int, parts: dict[int, list[int]]) -> None:
        """Divide a block on the host into new blocks: their ids, and the lines of each."""
        block = self._blocks.pop(id)
        for new, lines in parts.items():
            moved = block.lines[torch.tensor(lines)]
            self._add(new, moved)
            self.transfers.moved_bytes += moved.nbytes
        self._give_back(block)

    def state(self) -> StreamState:
        """Return the state for a file: all blocks joined."""
        ids, blocks = list(self._blocks), list(self._blocks.values())
        facts = {"ids": ids, "counts": [block.count for block in blocks]}
        return StreamState({"lines": torch.cat([block.lines[: block.count] for block in blocks])} if ids else {}, facts)

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; there is no block yet."""
        ids, counts = state.facts["ids"], state.facts["counts"]
        for id, lines in zip(ids, state.tensors["lines"].split(counts) if ids else (), strict=True):
            self._add(id, lines)


CopiedBlocks = tuple[dict[int, Tensor], float]
"""Blocks by id, and the seconds that their copies took."""


class BlockFetcher:
    """Copies blocks to the device for one reading. What a layer gets never depends on what was prefetched."""

    def __init__(self, stores: Sequence[BlockStore], transfers: Transfers, device: torch.device) -> None:
        self._stores, self._transfers, self._device = stores, transfers, device
        self._pool: ThreadPoolExecutor | None = None
        self._copying: list[Future[CopiedBlocks] | None] = [None for _ in stores]
        self._predicted: list[frozenset[int]] = [frozenset() for _ in stores]
        self._copied: list[dict[int, Tensor]] = [{} for _ in stores]

    @property
    def bytes(self) -> int:
        """Bytes on the device."""
        return sum(lines.nbytes for copied in self._copied for lines in copied.values())

    def prefetch(self, layer: int, ids: Collection[int]) -> None:
        """Copy blocks on a thread for a later layer; once a layer and reading."""
        new = [id for id in ids if id not in self._copied[layer]]
        if not new or self._copying[layer] is not None:
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "emblema-stream-fetch")
        self._transfers.predicted += len(new)
        self._predicted[layer] = frozenset(new)
        self._copying[layer] = self._pool.submit(self._copy, layer, new)

    def fetch(self, layer: int, ids: Sequence[int]) -> list[Tensor]:
        """Return blocks on the device; wait for those that are being copied, and copy those that are missing."""
        began = time.perf_counter()
        copied, predicted = self._copied[layer], self._predicted[layer]
        if layer:
            self._transfers.asked += len(ids)
            self._transfers.hits += sum(id in predicted for id in ids)
        if any(id in predicted for id in ids):
            self._collect(layer)
        self._add(layer, self._copy(layer, [id for id in ids if id not in copied]))
        self._transfers.waited_seconds += time.perf_counter() - began
        return [copied[id] for id in ids]

    def _copy(self, layer: int, ids: Sequence[int]) -> CopiedBlocks:
        began = time.perf_counter()
        return {id: self._stores[layer].copy(id, self._device) for id in ids}, time.perf_counter() - began

    def _collect(self, layer: int) -> None:
        copying = self._copying[layer]
        if copying is not None:
            self._add(layer, copying.result())
            self._copying[layer] = None

    def _add(self, layer: int, copied: CopiedBlocks) -> None:
        blocks, seconds = copied
        self._copied[layer].update(blocks)
        self._transfers.fetches += len(blocks)
        self._transfers.fetched_bytes += sum(lines.nbytes for lines in blocks.values())
        self._transfers.fetch_seconds += seconds

    def wait(self) -> None:
        """Wait for copies under way; blocks may be changed afterwards."""
        for layer in range(len(self._stores)):
            self._collect(layer)
            self._predicted[layer] = frozenset()

    def clear(self) -> None:
        """Give up what is on the device."""
        self.wait()
        for copied in self._copied:
            copied.clear()

    def close(self) -> None:
        """End the thread."""
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

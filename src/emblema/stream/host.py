"""Members' rows on the host: one contiguous block a cluster and layer, the unit of transfer. Everything is counted."""

import time
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.stream.saved import Saved


@dataclass(slots=True)
class Transfers:
    """Counts since the stream began.

    Attributes:
        fetches, fetched_bytes: blocks copied from the host to the device, each in one transfer.
        stores, stored_bytes: writes from the device to the host, one for each run of frames that joins a block.
        moved_bytes: bytes regrouped on the host where clusters were cut; nothing crosses over for it.
        fetch_seconds: time that fetches took, on whatever thread.
        waited_seconds: the part of it that a layer waited for.
        predicted, hits: clusters that prefetching brought, and those of them that their layer then asked for.
        asked: clusters that layers asked of the host, the first layer's aside, which nobody can guess.
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

    def fetched(self, copy: Callable[[], Tensor]) -> Tensor:
        """One transfer to the device that its layer waits for."""
        began = time.perf_counter()
        lines = copy()
        seconds = time.perf_counter() - began
        self.fetch_seconds += seconds
        self.waited_seconds += seconds
        self.fetches += 1
        self.fetched_bytes += lines.nbytes
        return lines

    def counts(self) -> dict[str, float]:
        """By name."""
        return {field.name: float(getattr(self, field.name)) for field in fields(self)}


class HostRows:
    """The blocks of one layer.

    A frame's rows lie in a block as one line: keys [heads, tokens, width], then values.
    """

    def __init__(self, layout: LayerLayout, tokens: int, dtype: torch.dtype, transfers: Transfers) -> None:
        self.layout, self.tokens, self.transfers = layout, tokens, transfers
        self._dtype = dtype
        self._blocks: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}

    def __contains__(self, id: int) -> bool:
        return id in self._blocks

    @property
    def bytes(self) -> int:
        """Bytes held, room for members to come included."""
        return sum(block.nbytes for block in self._blocks.values())

    def lines(self, rows: LayerRows) -> Tensor:
        """Rows of frames [heads, frames x tokens, width] as lines [frames, features]."""
        frames = rows.tokens // self.tokens
        parts = [
            part.reshape(heads, frames, self.tokens, width).transpose(0, 1).reshape(frames, -1)
            for part, (heads, width) in ((rows.keys, self.layout.keys), (rows.values, self.layout.values))
        ]
        return torch.cat(parts, dim=1)

    def rows(self, lines: Tensor) -> LayerRows:
        """Lines [frames, features] as rows."""
        split = self.layout.keys[0] * self.layout.keys[1] * self.tokens
        keys, values = (
            part.reshape(len(lines), heads, self.tokens, width).transpose(0, 1).reshape(heads, -1, width)
            for part, (heads, width) in ((lines[:, :split], self.layout.keys), (lines[:, split:], self.layout.values))
        )
        return LayerRows(keys, values)

    def store(self, id: int, lines: Tensor) -> None:
        """Write lines from the device behind those that a block has; a new block is made for them."""
        held = self._counts.get(id, 0)
        self._room(id, held + len(lines))
        self._blocks[id][held : held + len(lines)].copy_(lines)
        self._counts[id] = held + len(lines)
        self.transfers.stores += 1
        self.transfers.stored_bytes += lines.nbytes

    def _room(self, id: int, lines: int) -> None:
        width = self.tokens * self.layout.features
        block = self._blocks.get(id)
        if block is None:
            self._blocks[id] = torch.empty(max(1, lines), width, dtype=self._dtype)
        elif lines > block.shape[0]:
            more = torch.empty(max(lines - block.shape[0], block.shape[0] // 2), width, dtype=self._dtype)
            self._blocks[id] = torch.cat((block, more))

    def copy(self, id: int, device: torch.device) -> Tensor:
        """A block's lines on the device, [frames, features], in one piece."""
        return self._blocks[id][: self._counts[id]].to(device, copy=True)

    def cut(self, id: int, parts: dict[int, list[int]]) -> None:
        """Divide a block on the host: new ids to the lines that they get. The block is gone afterwards."""
        block = self._blocks.pop(id)
        del self._counts[id]
        for new, lines in parts.items():
            self._blocks[new] = block[torch.tensor(lines)]
            self._counts[new] = len(lines)
            self.transfers.moved_bytes += self._blocks[new].nbytes

    def saved(self) -> Saved:
        """For a file: the blocks one behind the other."""
        ids = list(self._blocks)
        blocks = [self._blocks[id][: self._counts[id]] for id in ids]
        return Saved({"lines": torch.cat(blocks)} if ids else {}, {"ids": ids, "counts": list(self._counts.values())})

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved."""
        ids, counts = saved.facts["ids"], saved.facts["counts"]
        blocks = saved.tensors["lines"].split(counts) if ids else ()
        self._blocks = {id: block.clone() for id, block in zip(ids, blocks, strict=True)}
        self._counts = dict(zip(ids, counts, strict=True))

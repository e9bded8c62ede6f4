"""Full attention: every row stays on the device and is visible. The upper bound, where it fits."""

from collections.abc import Mapping

import torch

from emblema.stream.method import (
    EvictedFrames,
    MemoryBytes,
    Method,
    Query,
    Selection,
    StreamContext,
    StreamRows,
    VisibleRange,
)


class FullAttention(Method):
    """Keeps everything."""

    name = "full"
    bounded = False

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._blocks: list[EvictedFrames] = []

    def admit(self, evicted: EvictedFrames) -> None:
        self._blocks.append(evicted)

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        parts = []
        for block in self._blocks:
            if block.frames.start < visible.high and block.frames.stop > visible.low:
                frames = torch.arange(block.frames.start, block.frames.stop, device=block.positions.device)
                parts.append(
                    StreamRows(block.layers[layer], block.positions, frames.repeat_interleave(self.positions.tokens))
                )
        if not parts:
            return Selection()
        rows = StreamRows.joined(*parts)
        return Selection(rows, visible.mask(rows.frames)[None])

    def bytes(self) -> MemoryBytes:
        return MemoryBytes({"rows": sum(layer.bytes for block in self._blocks for layer in block.layers)}, {})

    def retrieved(self) -> Mapping[int, float]:
        return {frame: 1.0 for block in self._blocks for frame in block.frames}

"""Full attention: every row stays on the device, and is seen. The ceiling, where it fits."""

from collections.abc import Mapping

import torch

from emblema.kv.layout import LayerRows
from emblema.stream.baselines.base import Base
from emblema.stream.method import NOTHING, Bytes, Departed, Found, Query, Scene, Sight, StreamRows


class Full(Base):
    """Keeps everything."""

    name = "full"
    bounded = False

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._blocks: list[Departed] = []

    def admit(self, departed: Departed) -> None:
        self._blocks.append(departed)

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        blocks = [block for block in self._blocks if block.frames.start < sight.high and block.frames.stop > sight.low]
        if not blocks:
            return NOTHING
        parts = [block.layers[layer] for block in blocks]
        kv = LayerRows(torch.cat([one.keys for one in parts], 1), torch.cat([one.values for one in parts], 1))
        positions = torch.cat([block.positions for block in blocks], 1)
        frames = torch.cat([torch.arange(block.frames.start, block.frames.stop) for block in blocks])
        owners = frames.to(positions.device).repeat_interleave(self.places.tokens)
        return Found(StreamRows(kv, positions, owners), sight.of(owners)[None])

    def bytes(self) -> Bytes:
        held = sum(layer.bytes for block in self._blocks for layer in block.layers)
        return Bytes({"rows": held}, {})

    def retrieved(self) -> Mapping[int, float]:
        return {frame: 1.0 for block in self._blocks for frame in block.frames}

"""What the layers of one forward are handed: what is always seen, and what a memory finds for their queries."""

import torch
from torch import Tensor

from emblema.models.adapter import Adapter
from emblema.stream.context import Composer, Part
from emblema.stream.local import Local
from emblema.stream.method import Method, Query, Sight


class MemorySource:
    """Reads a method's memory for one block or one question.

    Args:
        method: the memory.
        local: what is always seen.
        sight: what may be seen.
        end: the position at which the forward's own rows begin.
        asked: for a question, whose rows are behind the block under way and see all the same in every forward; a
            block's own rows see one another through their table instead.
    """

    def __init__(self, adapter: Adapter, method: Method, local: Local, sight: Sight, end: int, asked: bool) -> None:
        self.adapter, self.method, self.local, self.sight, self.asked = adapter, method, local, sight, asked
        first = local.all(0) if asked else local.rows(0)
        seen = sight.of(first.frames) if method.shares_local else torch.zeros_like(first.frames, dtype=torch.bool)
        self._seen: Tensor | None = None if bool(seen.all()) else seen.nonzero().squeeze(1)
        frames, positions = first.frames, first.positions
        if self._seen is not None:
            frames, positions = frames[self._seen], positions[:, self._seen]
        self._composer = Composer(adapter, local.places, positions, frames, end, local.phases)
        self._kept: dict[int, list[Part]] = {}

    def __call__(self, layer: int, query: Query) -> list[Part]:
        if layer in self._kept:
            return self._kept[layer]
        layout = self.adapter.layouts[layer]
        rows = self.local.every(layer) if self.asked else self.local.layers[layer]
        if self._seen is not None:
            rows = rows.select(self._seen)
        found = self.method.read(layer, query, self.sight)
        parts = [*self._composer.found(layout, found), self._composer.local(layout, rows)]
        if self.asked:
            self._kept[layer] = parts
        return parts

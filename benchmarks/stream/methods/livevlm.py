"""LiveVLM (arXiv 2505.15269): ReKV's retrieval over frames whose rows are thinned as they leave the window.

Rows are kept by the attention that the newest frames' queries give them, without positions; each other row is merged
into the kept row of its frame whose key is most similar.
"""

import torch
from torch import Tensor

from benchmarks.stream.methods.rekv import Rekv
from benchmarks.stream.methods.saliency import saliency
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import place, unplace
from emblema.models.queries import matched
from emblema.stream.method import EvictedFrames, MemoryBytes, Query, Selection, StreamContext, VisibleRange


class LiveVlm(Rekv):
    """Half of a frame's rows are kept."""

    name = "livevlm"
    share = 0.5

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        # Per layer, those of the frames that came since others left.
        self._queries: dict[int, list[Tensor]] = {}
        # Per layer, which rows of each frame were kept: [frames, kept].
        self._chosen = [torch.zeros(0, self.kept, dtype=torch.int64, device=self.adapter.device) for _ in self.stores]

    @property
    def kept(self) -> int:
        return max(1, round(self.positions.tokens * self.share))

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        if query.purpose == "frames":
            self._queries.setdefault(layer, []).append(query.states)
        return super().read(layer, query, visible)

    def thinned(self, layer: int, rows: LayerRows, evicted: EvictedFrames) -> LayerRows:
        layout, tokens = self.adapter.layouts[layer], self.positions.tokens
        free = unplace(rows, layout, self.context.phases.book(evicted.positions))
        mass = saliency(torch.cat(self._queries.pop(layer), dim=1), matched(free, layout)).reshape(-1, tokens)
        chosen = mass.topk(self.kept, dim=1).indices.sort(dim=1).values
        self._chosen[layer] = torch.cat((self._chosen[layer], chosen))
        keys, values = (part.unflatten(1, (-1, tokens)).transpose(0, 1) for part in (free.keys, free.values))
        flat = torch.nn.functional.normalize(keys.transpose(1, 2).flatten(2), dim=-1)
        likeness = flat @ flat.gather(1, chosen[:, :, None].expand(-1, -1, flat.shape[2])).transpose(1, 2)
        # A kept row stays with itself, whatever else it is like.
        nearest = likeness.argmax(2).scatter_(1, chosen, torch.arange(self.kept).to(chosen).expand_as(chosen))
        home = torch.nn.functional.one_hot(nearest, self.kept).to(keys.dtype)
        weights = (home / home.sum(1, keepdim=True)).transpose(1, 2)[:, None]
        merged = [(weights @ part).transpose(0, 1).flatten(1, 2) for part in (keys, values)]
        frames = torch.tensor(list(evicted.frames), device=self.adapter.device)
        book = self.context.phases.book(self.written(layer, frames))
        return place(LayerRows(merged[0], merged[1]), layout, book, self.adapter.dtype)

    def written(self, layer: int, frames: Tensor) -> Tensor:
        offsets = self.positions.offsets[:, self._chosen[layer][frames - self.first]]
        return (self.positions.corners(frames)[None, :, None] + offsets).flatten(1)

    def bytes(self) -> MemoryBytes:
        held = super().bytes()
        return MemoryBytes({**held.device, "chosen": sum(chosen.nbytes for chosen in self._chosen)}, held.host)


class LiveVlmByRanks(LiveVlm):
    """Four mean keys a frame, by ranks."""

    name = "livevlm-orders"
    parts = 4

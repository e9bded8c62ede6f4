"""StreamMem (arXiv 2508.15717): a memory of fixed size on the device, thinned without knowing the question.

What the chat template writes behind any question asks for the rows: those that its queries attend most are kept, and
beside them one row for each new frame, the mean of the frame's rows weighted by that attention. All compete for
`budget` frames' worth of rows in each layer.
"""

import torch

from emblema.kv.layout import LayerRows
from emblema.kv.rotation import place, unplace
from emblema.models.queries import matched, queries
from emblema.stream.baselines.base import Base
from emblema.stream.baselines.saliency import saliency
from emblema.stream.local import joined
from emblema.stream.method import NOTHING, Bytes, Departed, Found, Query, Scene, Sight, StreamRows


class StreamMem(Base):
    """Keeps the rows that a question not asked yet would attend."""

    name = "streammem"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._queries = queries(scene.adapter, scene.ending)
        self._rows: list[StreamRows] = []

    @property
    def _room(self) -> int | None:
        """Rows that a layer keeps; None for all."""
        return None if self.settings.budget is None else self.settings.budget * self.places.tokens

    def admit(self, departed: Departed) -> None:
        owners = torch.arange(departed.frames.start, departed.frames.stop, device=self.adapter.device)
        frames = owners.repeat_interleave(departed.tokens)
        fresh = [StreamRows(rows, departed.positions, frames) for rows in departed.layers]
        if not self._rows:
            self._rows = [_none(rows) for rows in fresh]
        self._rows = [
            self._thinned(layer, joined(old, self._with_means(layer, new)))
            for layer, (old, new) in enumerate(zip(self._rows, fresh, strict=True))
        ]

    def _free(self, layer: int, rows: StreamRows) -> LayerRows:
        return unplace(rows.kv, self.adapter.layouts[layer], self.scene.phases.book(rows.positions))

    def _with_means(self, layer: int, rows: StreamRows) -> StreamRows:
        """Rows of new frames with one more for each frame, amid it."""
        tokens, free = self.places.tokens, self._free(layer, rows)
        weights = saliency(self._queries.layers[layer], matched(free, self.adapter.layouts[layer])).reshape(-1, tokens)
        weights = (weights / weights.sum(1, keepdim=True).clamp_min(1e-12))[None, :, :, None]
        means = [(part.unflatten(1, (-1, tokens)) * weights).sum(2) for part in (free.keys, free.values)]
        middle = rows.positions.unflatten(1, (-1, tokens)).float().mean(2).floor().long()
        book = self.scene.phases.book(middle)
        placed = place(LayerRows(means[0], means[1]), self.adapter.layouts[layer], book, self.adapter.dtype)
        return joined(rows, StreamRows(placed, middle, rows.frames[::tokens]))

    def _thinned(self, layer: int, rows: StreamRows) -> StreamRows:
        kept = torch.arange(len(rows.frames), device=rows.frames.device)
        if self._room is not None and len(kept) > self._room:
            keys = matched(self._free(layer, rows), self.adapter.layouts[layer])
            kept = saliency(self._queries.layers[layer], keys).topk(self._room).indices
        # In the order of their frames, and inside a frame as they came.
        kept = kept.sort().values
        kept = kept[rows.frames[kept].argsort(stable=True)]
        return StreamRows(rows.kv.select(kept), rows.positions[:, kept], rows.frames[kept])

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        if query.purpose == "frames" or not self._rows:
            return NOTHING
        rows = self._rows[layer]
        return Found(rows, sight.of(rows.frames)[None])

    def bytes(self) -> Bytes:
        return Bytes({"rows": sum(rows.kv.bytes for rows in self._rows)}, {})


def _none(rows: StreamRows) -> StreamRows:
    return StreamRows(rows.kv.slice(0, 0), rows.positions[:, :0], rows.frames[:0])

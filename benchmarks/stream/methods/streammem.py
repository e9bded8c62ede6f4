"""StreamMem (arXiv 2508.15717): a memory of fixed size on the device, thinned without knowing the question.

The rows that what the chat template writes after any question attends most are kept. Beside them there is one row for
each new frame, the mean of the frame's rows weighted by that attention. All compete for `budget` frames' worth of rows
in each layer.
"""

import torch

from benchmarks.stream.methods.saliency import saliency
from emblema.kv.layout import LayerRows
from emblema.kv.rotation import place, unplace
from emblema.models.queries import matched, queries
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


class StreamMem(Method):
    """Keeps the rows that a question not asked yet would attend."""

    name = "streammem"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        self._queries = queries(context.adapter, context.ending)
        self._rows: list[StreamRows] = []

    def admit(self, evicted: EvictedFrames) -> None:
        frames = torch.tensor(list(evicted.frames), device=self.adapter.device)
        owners = frames.repeat_interleave(self.positions.tokens)
        fresh = [
            self._with_means(layer, StreamRows(rows, evicted.positions, owners))
            for layer, rows in enumerate(evicted.layers)
        ]
        joined = [StreamRows.joined(*pair) for pair in zip(self._rows, fresh, strict=True)] if self._rows else fresh
        self._rows = [self._thinned(layer, rows) for layer, rows in enumerate(joined)]

    def _free(self, layer: int, rows: StreamRows) -> LayerRows:
        return unplace(rows.kv, self.adapter.layouts[layer], self.context.phases.book(rows.positions))

    def _with_means(self, layer: int, rows: StreamRows) -> StreamRows:
        """Return rows of new frames and one more for each frame, at the frame's middle."""
        tokens, free = self.positions.tokens, self._free(layer, rows)
        weights = saliency(self._queries[layer], matched(free, self.adapter.layouts[layer])).reshape(-1, tokens)
        weights = (weights / weights.sum(1, keepdim=True).clamp_min(1e-12))[None, :, :, None]
        means = [(part.unflatten(1, (-1, tokens)) * weights).sum(2) for part in (free.keys, free.values)]
        middle = rows.positions.unflatten(1, (-1, tokens)).float().mean(2).floor().long()
        book = self.context.phases.book(middle)
        placed = place(LayerRows(means[0], means[1]), self.adapter.layouts[layer], book, self.adapter.dtype)
        return StreamRows.joined(rows, StreamRows(placed, middle, rows.frames[::tokens]))

    def _thinned(self, layer: int, rows: StreamRows) -> StreamRows:
        kept = torch.arange(len(rows.frames), device=rows.frames.device)
        most = len(kept) if self.settings.budget is None else self.settings.budget * self.positions.tokens
        if len(kept) > most:
            keys = matched(self._free(layer, rows), self.adapter.layouts[layer])
            kept = saliency(self._queries[layer], keys).topk(most).indices
        # In the order of their frames, and inside a frame as they came.
        kept = kept.sort().values
        return rows.select(kept[rows.frames[kept].argsort(stable=True)])

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        if query.purpose == "frames" or not self._rows:
            return Selection()
        rows = self._rows[layer]
        return Selection(rows, visible.mask(rows.frames)[None])

    def bytes(self) -> MemoryBytes:
        return MemoryBytes({"rows": sum(rows.kv.bytes for rows in self._rows)}, {})

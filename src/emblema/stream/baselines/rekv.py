"""ReKV (arXiv 2503.00540): every frame is a block on the host; a question retrieves frames by their mean keys.

Frames are encoded with a sliding window. For each layer the mean position-free key of every frame stays on the device,
heads side by side; a question's pooled query takes the `budget` frames with the largest product, which are copied and
moved to their positions when they are attended.
"""

from collections import Counter
from collections.abc import Mapping

import numpy
import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.stream.features import key_shape, mean_keys
from emblema.stream.host_rows import HostRows, Transfers
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


class Rekv(Method):
    """Frame by frame on the host, retrieved by mean keys."""

    name = "rekv"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        adapter = self.adapter
        self.transfers = Transfers()
        self.stores = [HostRows(layout, self.kept, adapter.dtype, self.transfers) for layout in adapter.layouts]
        shapes = [key_shape(layout) for layout in adapter.layouts]
        self._keys = [torch.zeros(0, heads * width, device=adapter.device) for heads, width in shapes]
        self.first, self._count = 0, 0
        self._retrieved: Counter[int] = Counter()

    @property
    def kept(self) -> int:
        """Rows kept of a frame."""
        return self.positions.tokens

    def admit(self, evicted: EvictedFrames) -> None:
        if self._count == 0:
            self.first = evicted.frames.start
        book = self.context.phases.book(evicted.positions)
        for layer, rows in enumerate(evicted.layers):
            self._add_keys(layer, mean_keys(rows, self.adapter.layouts[layer], book, self.positions.tokens).flatten(1))
            self.stores[layer].append(evicted.frames, self.thinned(layer, rows, evicted))
        self._count += len(evicted.frames)

    def _add_keys(self, layer: int, means: Tensor) -> None:
        keys, stop = self._keys[layer], self._count + len(means)
        if stop > len(keys):
            more = max(stop, int(1.25 * len(keys))) - len(keys)
            keys = self._keys[layer] = torch.cat((keys, keys.new_zeros(more, keys.shape[1])))
        keys[self._count : stop] = means

    def thinned(self, layer: int, rows: LayerRows, evicted: EvictedFrames) -> LayerRows:
        """Return what is kept of frames' rows: `kept` of each."""
        return rows

    def written(self, layer: int, frames: Tensor) -> Tensor:
        """Return positions [axes, frames x kept] of what is kept of frames [n]."""
        return self.positions.written(frames)

    def prepare(self, visible: VisibleRange) -> None:
        self._retrieved.clear()

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        if query.purpose == "frames" or not self._count:
            return Selection()
        scores = (self._keys[layer][: self._count] @ query.pooled[0]).cpu()
        frames = torch.arange(self.first, self.first + self._count)
        seen = visible.mask(frames)
        scores = scores.masked_fill(~seen, -torch.inf)
        most = len(frames) if self.settings.budget is None else min(self.settings.budget, len(frames))
        best = frames[scores.topk(most).indices]
        taken = torch.cat((best[visible.mask(best)], frames[seen & (frames >= visible.recent)])).unique()
        if not len(taken):
            return Selection()
        self._retrieved.update(taken.tolist())
        store, device = self.stores[layer], self.adapter.device
        kv = store.rows(store.fetch(taken.numpy().astype(numpy.int64), device))
        own = taken.to(device)
        return Selection(StreamRows(kv, self.written(layer, own), own.repeat_interleave(self.kept)))

    def bytes(self) -> MemoryBytes:
        rows = sum(store.bytes for store in self.stores)
        return MemoryBytes({"index": sum(keys.nbytes for keys in self._keys)}, {"rows": rows})

    def counts(self) -> Mapping[str, float]:
        return self.transfers.counts()

    def retrieved(self) -> Mapping[int, float]:
        return {frame: count / len(self.stores) for frame, count in self._retrieved.items()}

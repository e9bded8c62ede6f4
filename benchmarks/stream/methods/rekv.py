"""ReKV (arXiv 2503.00540): every frame is a block on the host; a question retrieves frames by their mean keys.

Frames are encoded with a sliding window. For each layer the mean position-free key of every frame stays on the device,
heads side by side; a question's pooled query takes the `budget` frames with the largest product, which are copied and
moved to their positions when they are attended.

With `parts` frames have so many mean keys each, compared head by head on the host: by the ranks of all queries, as the
package's default does, or `by_attention`, the most that any query gives to one of their keys.
"""

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

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
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.retrieval import choose_frames


class Rekv(Method):
    """Frame by frame on the host, retrieved by mean keys."""

    name = "rekv"
    parts: ClassVar[int | None] = None
    by_attention = False

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        adapter = self.adapter
        self.transfers = Transfers()
        self.stores = [HostRows(layout, self.kept, adapter.dtype, self.transfers) for layout in adapter.layouts]
        shapes = [key_shape(layout) for layout in adapter.layouts]
        self._keys = [torch.zeros(0, heads * width, device=adapter.device) for heads, width in shapes]
        self._by_head: list[FrameKeys] = []
        if self.parts is not None:
            self._by_head = [FrameKeys(min(self.parts, self.positions.tokens), *shape) for shape in shapes]
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
            layout, tokens = self.adapter.layouts[layer], self.positions.tokens
            if self._by_head:
                keys = self._by_head[layer]
                keys.add(evicted.frames, mean_keys(rows, layout, book, tokens, keys.parts).cpu())
            else:
                self._add_keys(layer, mean_keys(rows, layout, book, tokens).flatten(1))
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
        frames = torch.arange(self.first, self.first + self._count)
        seen = visible.mask(frames)
        best = self._best(layer, query, visible, seen)
        taken = torch.cat((best, frames[seen & (frames >= visible.recent)])).unique()
        if not len(taken):
            return Selection()
        self._retrieved.update(taken.tolist())
        store, device = self.stores[layer], self.adapter.device
        kv = store.rows(store.fetch(taken.numpy().astype(numpy.int64), device))
        own = taken.to(device)
        return Selection(StreamRows(kv, self.written(layer, own), own.repeat_interleave(self.kept)))

    def _best(self, layer: int, query: Query, visible: VisibleRange, seen: Tensor) -> Tensor:
        """Return the frames that are retrieved, of those `seen`, in no order."""
        if self._by_head and not self.by_attention:
            gone, budget = self.context.log.gone, self.settings.budget
            return torch.from_numpy(choose_frames(self._by_head[layer], None, query, visible, budget, gone)[0])
        if self._by_head:
            keys = self._by_head[layer]
            states = query.states[:, query.groups >= 0].reshape(keys.heads, -1, keys.width)
            shares = keys.logits_between(states, 0, self._count).unflatten(2, (-1, keys.parts))
            hidden = ~(seen & (torch.arange(self.first, self.first + self._count) < visible.recent))
            shares = shares.cpu().masked_fill(hidden[:, None], -torch.inf).flatten(2).softmax(2)
            scores = shares.amax((0, 1)).unflatten(0, (-1, keys.parts)).amax(1).masked_fill(hidden, -torch.inf)
        else:
            scores = (self._keys[layer][: self._count] @ query.pooled[0]).cpu().masked_fill(~seen, -torch.inf)
        most = len(scores) if self.settings.budget is None else min(self.settings.budget, len(scores))
        best = scores.topk(most).indices + self.first
        return best[visible.mask(best)]

    def bytes(self) -> MemoryBytes:
        host = {"rows": sum(store.bytes for store in self.stores), "keys": sum(keys.bytes for keys in self._by_head)}
        return MemoryBytes({"index": sum(keys.nbytes for keys in self._keys)}, host)

    def counts(self) -> Mapping[str, float]:
        return self.transfers.counts()

    def retrieved(self) -> Mapping[int, float]:
        return {frame: count / len(self.stores) for frame, count in self._retrieved.items()}


class RekvByRanks(Rekv):
    """Four mean keys a frame, by ranks."""

    name = "rekv-orders"
    parts = 4


class RekvByAttention(RekvByRanks):
    """Four mean keys a frame, by attention."""

    name = "rekv-attention"
    by_attention = True


class RekvOnePart(RekvByRanks):
    """One mean key a frame, by ranks."""

    name = "rekv-one-part"
    parts = 1

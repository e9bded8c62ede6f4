"""ReKV (arXiv 2503.00540): every frame is a block on the host; a question retrieves frames by their mean keys.

Frames are encoded behind a sliding window. For each layer the mean position-free key of every frame stays on the
device, heads side by side; a question's pooled query takes the `budget` frames with the largest product, which are
copied one by one and set in their places when they are attended.
"""

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from emblema.kv.layout import LayerRows
from emblema.stream.baselines.base import Base
from emblema.stream.host import HostRows, Transfers
from emblema.stream.method import NOTHING, Bytes, Departed, Found, Query, Scene, Sight, StreamRows
from emblema.stream.states import frame_vectors, matched_width


class Rekv(Base):
    """Frame by frame on the host, retrieved by mean keys."""

    name = "rekv"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.transfers = Transfers()
        self._hosts = [
            HostRows(layout, self.kept, self.adapter.dtype, self.transfers) for layout in self.adapter.layouts
        ]
        self._keys: list[Tensor] = [
            torch.zeros(0, matched_width(layout), device=self.adapter.device) for layout in self.adapter.layouts
        ]
        self._first, self._count = 0, 0
        self._found: Counter[int] = Counter()

    @property
    def kept(self) -> int:
        """Rows kept of a frame."""
        return self.places.tokens

    def admit(self, departed: Departed) -> None:
        if self._count == 0:
            self._first = departed.frames.start
        book = self.scene.phases.book(departed.positions)
        for layer, (rows, layout, host) in enumerate(
            zip(departed.layers, self.adapter.layouts, self._hosts, strict=True)
        ):
            means = frame_vectors(rows, layout, book, departed.tokens)[:, : self._keys[layer].shape[1]]
            self._note(layer, means)
            for frame, line in zip(departed.frames, host.lines(self._thinned(layer, rows, departed)), strict=True):
                host.store(frame, line[None])
        self._count += len(departed.frames)

    def _note(self, layer: int, means: Tensor) -> None:
        keys, stop = self._keys[layer], self._count + len(means)
        if stop > len(keys):
            more = max(stop, int(1.25 * len(keys))) - len(keys)
            keys = self._keys[layer] = torch.cat((keys, keys.new_zeros(more, keys.shape[1])))
        keys[self._count : stop] = means

    def _thinned(self, layer: int, rows: LayerRows, departed: Departed) -> LayerRows:
        """What is kept of frames' rows: `kept` of each."""
        return rows

    def prepare(self, sight: Sight) -> None:
        self._found.clear()

    def read(self, layer: int, query: Query, sight: Sight) -> Found:
        if query.purpose == "frames" or not self._count:
            return NOTHING
        scores = (self._keys[layer][: self._count] @ query.pooled[0]).cpu()
        frames = torch.arange(self._first, self._first + self._count)
        scores = scores.masked_fill(~sight.of(frames), -torch.inf)
        most = len(frames) if self.settings.budget is None else min(self.settings.budget, len(frames))
        best = frames[scores.topk(most).indices]
        taken = torch.cat((best[sight.of(best)], frames[sight.of(frames) & (frames >= sight.recent)])).unique()
        if not len(taken):
            return NOTHING
        self._found.update(taken.tolist())
        device = self.adapter.device
        lines = torch.cat([self._fetched(layer, int(frame)) for frame in taken])
        return Found(self._placed(layer, self._hosts[layer].rows(lines), taken.to(device)))

    def _fetched(self, layer: int, frame: int) -> Tensor:
        return self.transfers.fetched(lambda: self._hosts[layer].copy(frame, self.adapter.device))

    def _placed(self, layer: int, rows: LayerRows, frames: Tensor) -> StreamRows:
        """Rows of frames with where they were written."""
        return StreamRows(rows, self.places.written(frames), frames.repeat_interleave(self.places.tokens))

    def bytes(self) -> Bytes:
        held = sum(host.bytes for host in self._hosts)
        return Bytes({"index": sum(keys.nbytes for keys in self._keys)}, {"rows": held})

    def counts(self) -> Mapping[str, float]:
        return self.transfers.counts()

    def retrieved(self) -> Mapping[int, float]:
        return {frame: count / len(self._hosts) for frame, count in self._found.items()}

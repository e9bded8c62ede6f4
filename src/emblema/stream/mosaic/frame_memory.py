"""The default memory: frames on the host in the order of time, retrieved one by one in each layer."""

from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import ClassVar

import numpy
import torch
from torch import Tensor

from emblema.stream.features import key_shape, mean_keys
from emblema.stream.host_rows import HostRows, RowFetcher, Transfers
from emblema.stream.lines import FrameNumbers, LineField, join_fields, split_fields
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
from emblema.stream.mosaic.postings import Postings
from emblema.stream.mosaic.retrieval import choose_frames
from emblema.stream.state import StreamState

PARTS = 4
"""Runs of rows of a frame that have a mean key each; at most one for each row."""


class FrameMemory(Method):
    """Single frames, retrieved by the ranks that all queries give their mean keys (after Mosaic, arXiv 2604.10060).

    Attributes:
        prefetches: whether layer l copies frames for layer l + 1 on a thread; None: on devices with their own memory.
        stores: the rows of each layer.
        keys: of the frames of each layer.
        postings: of these.
    """

    name = "mosaic"
    saves = True
    prefetches: ClassVar[bool | None] = None

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        adapter, tokens = self.adapter, self.positions.tokens
        self._transfers, self._gone = Transfers(), context.log.gone
        frame_bytes = tokens * sum(layout.features for layout in adapter.layouts) * adapter.dtype.itemsize
        step = self.settings.lines_together(frame_bytes)
        self.stores = [HostRows(layout, tokens, adapter.dtype, self._transfers, step) for layout in adapter.layouts]
        self.keys = [FrameKeys(min(PARTS, tokens), *key_shape(layout)) for layout in adapter.layouts]
        self.postings = [Postings(keys) for keys in self.keys]
        self._fetcher = RowFetcher(self.stores, self._transfers, adapter.device)
        # Where rows are in one memory anyhow, a thread that copies them only takes time from the model.
        self._prefetching = adapter.device.type != "cpu" if self.prefetches is None else self.prefetches
        # Frames that the last question retrieved, layer by layer.
        self._retrieved: list[list[int]] = []

    @property
    def frames(self) -> range:
        """The frames that have left the window."""
        return self.stores[0].frames

    @property
    def frame_bytes(self) -> int:
        return sum(store.lines.line_bytes for store in self.stores)

    def admit(self, evicted: EvictedFrames) -> None:
        frames, tokens, gone = evicted.frames, self.positions.tokens, self._gone
        live = gone.live(frames.start, frames.stop).tolist()
        book = self.context.phases.book(evicted.positions)
        for layer, rows in enumerate(evicted.layers):
            keys = self.keys[layer]
            self.stores[layer].append(frames, rows)
            means = mean_keys(rows, self.adapter.layouts[layer], book, tokens, keys.parts).cpu()
            if 0 < len(live) < len(frames):
                # Zeros would move the centre.
                means = _filled(means, [frame in gone for frame in frames])
            keys.add(frames, means)
            if live:
                self.postings[layer].add(live)
        if len(live) < len(frames):
            self._clear([frame for frame in frames if frame in gone])
        self._fetcher.clear()

    def forget(self, frames: range) -> None:
        self._fetcher.clear()
        own = range(max(frames.start, self.frames.start), min(frames.stop, self.frames.stop))
        if own:
            for postings in self.postings:
                postings.forget(own)
            self._clear(list(own))

    def _clear(self, frames: list[int]) -> None:
        """Overwrite what frames have each for themselves."""
        until = self._gone.first()
        for keys in self.keys:
            keys.clear(torch.tensor(frames))
            keys.drop(until)
        for store in self.stores:
            store.lines.drop(until)
            store.lines.clear(numpy.array(frames, dtype=numpy.int64))

    def prepare(self, visible: VisibleRange) -> None:
        self._fetcher.clear()
        self._retrieved.clear()

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        chosen = self._choose(layer, query, visible)
        recent = self._gone.live(max(visible.recent, self.frames.start), min(visible.high, self.frames.stop))
        # The frames of one group are in order.
        taken = (
            chosen[0] if len(chosen) == 1 and not len(recent) else numpy.unique(numpy.concatenate((*chosen, recent)))
        )
        if not len(taken):
            return Selection()
        rows = self._rows(layer, query, taken)
        if self._prefetching and layer + 1 < len(self.stores):
            self._prefetch(layer + 1, query, visible)
        if query.count == 1:
            return Selection(rows)
        seen = numpy.stack([numpy.isin(taken, own) for own in chosen]) | (taken >= visible.recent)
        shown = torch.from_numpy(seen).repeat_interleave(self.positions.tokens, dim=1)
        return Selection(rows, shown.to(self.adapter.device))

    def _choose(self, layer: int, query: Query, visible: VisibleRange) -> list[FrameNumbers]:
        """Return for each group the frames that it retrieves, rising."""
        budget = self.settings.budget
        return choose_frames(self.keys[layer], self.postings[layer], query, visible, budget, self._gone)

    def _prefetch(self, layer: int, query: Query, visible: VisibleRange) -> None:
        """Copy the frames that a layer is likely to ask for, by the queries of the layer before it."""
        if self.keys[layer].heads * self.keys[layer].width == query.key_heads * query.states.shape[2]:
            self._fetcher.prefetch(layer, numpy.unique(numpy.concatenate(self._choose(layer, query, visible))))

    def _rows(self, layer: int, query: Query, taken: FrameNumbers) -> StreamRows:
        """Return rows of frames, which rise."""
        kv = self.stores[layer].rows(self._fetcher.fetch(layer, taken))
        if query.purpose == "question":
            self._retrieved.append(taken.tolist())
        frames = torch.from_numpy(taken).to(self.adapter.device)
        return StreamRows(kv, self.positions.written(frames), frames.repeat_interleave(self.positions.tokens))

    def settle(self) -> None:
        self._fetcher.clear()

    def lines_of(self, layer: int, frames: FrameNumbers) -> Tensor:
        """Return lines [frames, features] of frames, which rise, on the host; no transfer is counted."""
        return self.stores[layer].copy(frames, torch.device("cpu"))

    def bytes(self) -> MemoryBytes:
        host = {
            "rows": sum(store.bytes for store in self.stores),
            "keys": sum(keys.bytes for keys in self.keys),
            "postings": sum(postings.bytes for postings in self.postings),
        }
        return MemoryBytes({"fetched": self._fetcher.bytes}, host)

    def counts(self) -> Mapping[str, float]:
        return {**self._transfers.counts(), "codes": float(sum(postings.codes for postings in self.postings))}

    def retrieved(self) -> Mapping[int, float]:
        counts = Counter(chain.from_iterable(self._retrieved))
        return {frame: count / len(self.stores) for frame, count in counts.items()}

    def close(self) -> None:
        self._fetcher.close()

    @property
    def _fields(self) -> list[LineField]:
        return [field for keys in self.keys for field in keys.fields]

    @property
    def index_bytes(self) -> int:
        """Bytes of a line of `index_lines`."""
        return sum(field.bytes for field in self._fields)

    def index_lines(self, frames: range) -> Tensor:
        """Return what frames are retrieved by, as lines [frames, bytes] uint8."""
        return join_fields([part for keys in self.keys for part in keys.index_of(frames)])

    def state(self) -> StreamState:
        """Return the state for a file, without what frames have each for themselves."""
        state = StreamState({}, {"first": self.frames.start, "count": len(self.frames)})
        for layer, (keys, postings) in enumerate(zip(self.keys, self.postings, strict=True)):
            state.put(f"keys{layer}", keys.state())
            state.put(f"postings{layer}", postings.state())
        return state

    def restore(self, state: StreamState, lines: Tensor) -> None:
        """Go on from a saved state and the `index_lines` of its frames; counts begin at 0."""
        if not len(lines):
            return
        parts = split_fields(lines, self._fields)
        for layer, (keys, postings) in enumerate(zip(self.keys, self.postings, strict=True)):
            keys.restore(state.part(f"keys{layer}"), *parts[2 * layer : 2 * layer + 2])
            postings.restore(state.part(f"postings{layer}"))
            keys.drop(self._gone.first())


def _filled(means: Tensor, holes: list[bool]) -> Tensor:
    """Return means [frames, ...] with the mean of the others in the place of some."""
    hidden = torch.tensor(holes)
    filled = means.clone()
    filled[hidden] = means[~hidden].mean(0)
    return filled

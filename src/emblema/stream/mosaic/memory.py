"""Mosaic's memory: frames in visual clusters, inside them in semantic clusters of each layer, rows on the host."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy
import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout
from emblema.stream.features import key_shape, mean_keys, mean_values
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
from emblema.stream.mosaic.level import MaintenanceCounts, SemanticLevel
from emblema.stream.mosaic.postings import Postings
from emblema.stream.mosaic.retrieval import choose_clusters, choose_frames, frames_of, other_centroids
from emblema.stream.mosaic.visual import VisualLevel
from emblema.stream.state import StreamState

SLACK = 8
"""Where clusters are merged, one for so many of the bound goes too: so many blocks pass before it is done again."""


class Mosaic(Method):
    """Frames on the host, in clusters on two levels, retrieved one by one or by cluster (Mosaic, arXiv 2604.10060).

    Attributes:
        visual: the visual level.
        layers: the semantic level of each layer, where clusters are retrieved as a whole or shown; else none.
        keys: of the frames of each layer.
        postings: of these, where single frames are retrieved; else none.
        stores: the rows of each layer.
        since: frames that came to the postings after their state was last taken or restored, block by block; None
            where that state does not lead to what they are.
    """

    name = "mosaic"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        adapter, ablation, tokens = self.adapter, self.settings.ablation, self.positions.tokens
        self._ablation, self._transfers = ablation, Transfers()
        self._semantic_counts, self._visual_counts = MaintenanceCounts(), MaintenanceCounts()
        frame_bytes = tokens * sum(layout.features for layout in adapter.layouts) * adapter.dtype.itemsize
        step = self.settings.lines_together(frame_bytes)
        self.stores = [HostRows(layout, tokens, adapter.dtype, self._transfers, step) for layout in adapter.layouts]
        self.keys = [FrameKeys(min(ablation.parts, tokens), *key_shape(layout)) for layout in adapter.layouts]
        self.postings = [Postings(keys) for keys in self.keys] if ablation.retrieval == "frames" else []
        pairs = zip(self.keys, adapter.layouts, strict=True) if ablation.summarised else ()
        self.layers = [self._level(*pair) for pair in pairs]
        self.visual = VisualLevel(ablation, adapter.hidden_size, self.layers, self._visual_counts)
        self._fetcher = RowFetcher(self.stores, self._transfers, adapter.device)
        # Where rows are in one memory anyhow, a thread that copies them only takes time from the model.
        self._prefetching = adapter.device.type != "cpu" if ablation.prefetch is None else ablation.prefetch
        self.constructed = False
        self.since: list[list[int]] | None = None
        self._gone = context.log.gone
        # Frames that the last question retrieved, layer by layer.
        self._retrieved: list[list[int]] = []
        # Frames that were fetched, layer by layer, since their visual clusters were touched last.
        self._fetched: list[list[int]] = []
        # Frames that questions fetched, whose visual clusters may have to be cut.
        self._due: set[int] = set()

    def _level(self, keys: FrameKeys, layout: LayerLayout) -> SemanticLevel:
        values = (0, 0) if layout.kind == "latent" else layout.values
        return SemanticLevel(self._ablation, keys, values, self._semantic_counts, self.adapter.device)

    @property
    def frames(self) -> range:
        """The frames that have left the window."""
        return self.stores[0].frames

    def admit(self, evicted: EvictedFrames) -> None:
        self._refine()
        frames, tokens, gone = evicted.frames, self.positions.tokens, self._gone
        live = gone.live(frames.start, frames.stop).tolist()
        book = self.context.phases.book(evicted.positions)
        vectors = torch.zeros(len(frames), self.adapter.hidden_size)
        if live:
            embeds = self.context.log.codes(live).embeds.to(self.adapter.device)
            vectors[[frame not in gone for frame in frames]] = embeds.float().mean(1).cpu()
        self.visual.add(frames, vectors, live)
        for layer, rows in enumerate(evicted.layers):
            layout, keys = self.adapter.layouts[layer], self.keys[layer]
            self.stores[layer].append(frames, rows)
            means = mean_keys(rows, layout, book, tokens, keys.parts).cpu()
            values = mean_values(rows, layout, tokens).cpu()
            if 0 < len(live) < len(frames):
                # Zeros would move the centre.
                means, values = (_filled(own, [frame in gone for frame in frames]) for own in (means, values))
            keys.add(frames, means)
            if self.layers:
                self.layers[layer].add(frames, values, live)
            if self.postings and live:
                self.postings[layer].add(live)
        if self.since is not None and live:
            self.since.append(live)
        if len(live) < len(frames):
            self._clear([frame for frame in frames if frame in gone])
        for frame in live:
            self._assign(frame)
        self._release()
        self._reduce()

    @property
    def frame_bytes(self) -> int:
        return sum(store.lines.line_bytes for store in self.stores)

    def forget(self, frames: range) -> None:
        self._refine()
        self._release()
        own = [frame for frame in frames if frame in self.visual.home]
        if not own:
            return
        self.since = None
        left = self._gone.live(self.frames.start, self.frames.stop).tolist()
        for postings in self.postings:
            postings.forget(own)
        for level in (*self.layers, self.visual):
            level.forget(own, left)
        self._clear(own)

    def _clear(self, frames: list[int]) -> None:
        """Overwrite what frames have each for themselves."""
        until = self._gone.first()
        for part in self._indexed:
            part.clear(torch.tensor(frames))
            part.drop(until)
        for store in self.stores:
            store.lines.drop(until)
            store.lines.clear(numpy.array(frames, dtype=numpy.int64))

    def _assign(self, frame: int) -> None:
        """Put a frame in a cluster of each level."""
        if self.constructed:
            group = self.visual.take(frame).id
            for level in self.layers:
                level.take(frame, group)
            return
        # Until the first partition each frame is a cluster of its own.
        group = self.visual.create([frame]).id
        for level in self.layers:
            level.create([frame], group)
        if len(self.visual.clusters) >= self._ablation.first:
            groups = self.visual.construct()
            for level in self.layers:
                level.construct(groups)
            self.constructed = True

    def _reduce(self) -> None:
        """Merge clusters where a level has too many.

        All levels together: a layer has at least one cluster for each visual one.
        """
        most, levels = self._ablation.clusters, (self.visual, *self.layers)
        if most is None or not self.constructed or max(len(level.clusters) for level in levels) <= most:
            return
        for level in levels:
            level.reduce(most - most // SLACK, self.frames.stop)

    def prepare(self, visible: VisibleRange) -> None:
        self._touch()
        self._fetcher.clear()
        self._retrieved.clear()

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        ablation = self._ablation
        if query.purpose == "frames":
            self.catch_up()
        retrieving = query.purpose == "question" or ablation.retrieve_while_encoding
        if not self.visual.home or not (retrieving or ablation.representatives):
            return Selection()
        none = numpy.zeros(0, dtype=numpy.int64)
        chosen = self._choose(layer, query, visible) if retrieving else [none] * query.count
        recent = self._gone.live(max(visible.recent, self.frames.start), min(visible.high, self.frames.stop))
        # The frames of one group are in order.
        taken = (
            chosen[0] if len(chosen) == 1 and not len(recent) else numpy.unique(numpy.concatenate((*chosen, recent)))
        )
        rows = self._rows(layer, query, taken)
        if retrieving and self._prefetching and layer + 1 < len(self.stores):
            self._prefetch(layer + 1, query, visible, taken)
        shown = None
        if query.count > 1 and len(taken):
            seen = numpy.stack([numpy.isin(taken, own) for own in chosen]) | (taken >= visible.recent)
            tokens = self.positions.tokens
            shown = torch.from_numpy(seen).repeat_interleave(tokens, dim=1).to(self.adapter.device)
        if not ablation.representatives:
            return Selection(rows, shown)
        level, weighted = self.layers[layer], self.positions.tokens if ablation.weighted else None
        homes = [{level.home[frame] for frame in (*own.tolist(), *recent.tolist())} for own in chosen]
        return Selection(rows, shown, other_centroids(level, self.adapter.layouts[layer], weighted, visible, homes))

    def _choose(self, layer: int, query: Query, visible: VisibleRange) -> list[FrameNumbers]:
        """Return for each group the frames that it retrieves, rising."""
        if self._ablation.retrieval == "frames":
            return choose_frames(self.keys[layer], self.postings[layer], query, visible, self.settings, self._gone)
        level = self.layers[layer]
        slots = choose_clusters(level, query, visible, self.settings)
        return [frames_of(level, own, visible, self.settings.budget) for own in slots]

    def _prefetch(self, layer: int, query: Query, visible: VisibleRange, taken: FrameNumbers) -> None:
        """Copy the frames that a layer is likely to ask for; `taken` are those of the layer before it."""
        if self._ablation.guess == "frames":
            self._fetcher.prefetch(layer, taken)
        elif self.keys[layer].heads * self.keys[layer].width == query.key_heads * query.states.shape[2]:
            self._fetcher.prefetch(layer, numpy.unique(numpy.concatenate(self._choose(layer, query, visible))))

    def _rows(self, layer: int, query: Query, taken: FrameNumbers) -> StreamRows | None:
        """Return rows of frames, which rise."""
        if not len(taken):
            return None
        device = self.adapter.device
        kv = self.stores[layer].rows(self._fetcher.fetch(layer, taken))
        numbers = taken.tolist()
        for level in self.layers[layer : layer + 1]:
            level.touched.update(map(level.home.__getitem__, numbers))
        self._fetched.append(numbers)
        if query.purpose == "question":
            self._retrieved.append(numbers)
        frames = torch.from_numpy(taken).to(device)
        return StreamRows(kv, self.positions.written(frames), frames.repeat_interleave(self.positions.tokens))

    def settle(self) -> None:
        if self.layers:
            self._refine()
        else:
            # No question depends on visual clusters alone: their cuts can wait until it is answered.
            self._due.update(*self._fetched)
            self._fetched.clear()
        self._release()

    def _touch(self) -> None:
        """Touch the visual clusters of frames that were fetched: most of them by several layers."""
        frames = set[int]().union(*self._fetched)
        self.visual.touched.update(map(self.visual.home.__getitem__, frames))
        self._fetched.clear()

    def catch_up(self) -> None:
        due, self._due = self._due, set()
        for id in sorted(set(map(self.visual.home.__getitem__, due))):
            self.visual.refine(id)

    def _refine(self) -> None:
        """Do the cuts that waited for clusters of which frames were fetched."""
        self.catch_up()
        self._touch()
        for level in (*self.layers, self.visual):
            for id in sorted(level.touched):
                level.refine(id)

    def _release(self) -> None:
        self._fetcher.clear()
        for level in (*self.layers, self.visual):
            level.touched.clear()

    def lines_of(self, layer: int, frames: FrameNumbers) -> Tensor:
        """Return lines [frames, features] of frames, which rise, on the host; no transfer is counted."""
        return self.stores[layer].copy(frames, torch.device("cpu"))

    def bytes(self) -> MemoryBytes:
        summaries = [level.summaries.bytes for level in self.layers]
        host = {
            "rows": sum(store.bytes for store in self.stores),
            "keys": sum(keys.bytes for keys in self.keys),
            "postings": sum(postings.bytes for postings in self.postings),
            "clusters": self.visual.bytes + sum(level.bytes for level in self.layers),
        }
        return MemoryBytes({"index": sum(summaries), "fetched": self._fetcher.bytes}, host)

    def counts(self) -> Mapping[str, float]:
        return {
            **self._transfers.counts(),
            **self._semantic_counts.counts("semantic"),
            **self._visual_counts.counts("visual"),
            "divided": float(self.visual.divided),
            "codes": float(sum(postings.codes for postings in self.postings)),
            "clusters": float(sum(len(level.clusters) for level in self.layers)),
            "visual_clusters": float(len(self.visual.clusters)),
        }

    def retrieved(self) -> Mapping[int, float]:
        counts = Counter(chain.from_iterable(self._retrieved))
        return {frame: count / len(self.stores) for frame, count in counts.items()}

    def close(self) -> None:
        self._fetcher.close()

    @property
    def index_bytes(self) -> int:
        """Bytes of a line of `index_lines`."""
        return sum(field.bytes for field in self._fields)

    @property
    def _indexed(self) -> tuple[VisualLevel | FrameKeys | SemanticLevel, ...]:
        return (self.visual, *self.keys, *self.layers)

    @property
    def _fields(self) -> list[LineField]:
        return [field for part in self._indexed for field in part.fields]

    def index_lines(self, frames: range) -> Tensor:
        """Return what frames are retrieved and clustered by, as lines [frames, bytes] uint8."""
        return join_fields([field for part in self._indexed for field in part.index_of(frames)])

    def state(self) -> StreamState:
        """Return the state for a file, without the postings and what frames have each for themselves."""
        self.catch_up()
        facts = {"constructed": self.constructed, "first": self.frames.start, "count": len(self.frames)}
        state = StreamState({}, facts)
        state.put("visual", self.visual.state())
        by_layer: Mapping[str, Sequence[FrameKeys | SemanticLevel]] = {"keys": self.keys, "layer": self.layers}
        for name, parts in by_layer.items():
            for index, part in enumerate(parts):
                state.put(f"{name}{index}", part.state())
        return state

    def postings_state(self) -> StreamState:
        """Return the state of the postings for a file; `since` begins anew."""
        self.since, state = [], StreamState()
        for index, postings in enumerate(self.postings):
            state.put(str(index), postings.state())
        return state

    def restore(
        self, state: StreamState, lines: Tensor, listed: StreamState | None, since: Sequence[Sequence[int]]
    ) -> None:
        """Go on from a saved state and the `index_lines` of its frames; counts begin at 0.

        Args:
            listed: an earlier state of the postings; None where there are none.
            since: frames that came to them after it, block by block. They are added again, which gives the same lists.
        """
        if listed is not None:
            self.since = [list(frames) for frames in since]
        if not len(lines):
            return
        self.constructed = state.facts["constructed"]
        vectors, *parts = split_fields(lines, self._fields)
        # Clusters of a layer are read before the visual ones, which change no layer then.
        for index, keys in enumerate(self.keys):
            keys.restore(state.part(f"keys{index}"), *parts[2 * index : 2 * index + 2])
        for index, level in enumerate(self.layers):
            level.restore(state.part(f"layer{index}"), parts[2 * len(self.keys) + index])
        for index, postings in enumerate(self.postings):
            if listed is not None:
                postings.restore(listed.part(str(index)))
            for frames in since:
                postings.add(frames)
        self.visual.restore(state.part("visual"), self.frames.start, vectors)
        for part in self._indexed:
            part.drop(self._gone.first())


def _filled(means: Tensor, holes: list[bool]) -> Tensor:
    """Return means [frames, ...] with the mean of the others in the place of some."""
    hidden = torch.tensor(holes)
    filled = means.clone()
    filled[hidden] = means[~hidden].mean(0)
    return filled

"""Mosaic's memory: frames in visual clusters, inside them in semantic clusters of each layer, rows on the host."""

from collections import Counter
from collections.abc import Mapping

import numpy
import torch
from torch import Tensor

from emblema.stream.blocks import BlockFetcher, BlockStore, Transfers
from emblema.stream.features import frame_vectors
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
from emblema.stream.mosaic.level import MaintenanceCounts, SemanticLevel, VisualLevel
from emblema.stream.mosaic.retrieval import choose, other_centroids, recent_clusters, visible_sizes
from emblema.stream.state import StreamState


class Mosaic(Method):
    """Clusters on two levels, retrieved in two stages, with centroids of the rest (Mosaic, arXiv 2604.10060).

    Attributes:
        visual: the visual level.
        layers: the semantic level of each layer.
    """

    name = "mosaic"

    def __init__(self, context: StreamContext) -> None:
        super().__init__(context)
        adapter, ablation, tokens = self.adapter, self.settings.ablation, self.positions.tokens
        self._ablation, self._transfers = ablation, Transfers()
        self._semantic_counts, self._visual_counts = MaintenanceCounts(), MaintenanceCounts()
        stores = [BlockStore(layout, tokens, adapter.dtype, self._transfers) for layout in adapter.layouts]
        self.layers = [
            SemanticLevel(ablation, layout, store, self._semantic_counts, adapter.device)
            for layout, store in zip(adapter.layouts, stores, strict=True)
        ]
        self.visual = VisualLevel(ablation, adapter.hidden_size, self.layers, self._visual_counts)
        self._fetcher = BlockFetcher(stores, self._transfers, adapter.device)
        # Where rows are in one memory anyhow, a thread that copies them only takes time from the model.
        self._prefetching = adapter.device.type != "cpu" if ablation.prefetch is None else ablation.prefetch
        self.constructed = False
        self._retrieved: Counter[int] = Counter()

    def admit(self, evicted: EvictedFrames) -> None:
        self._refine()
        book = self.context.phases.book(evicted.positions)
        embeds = self.context.log.codes(evicted.frames).embeds.to(self.adapter.device)
        embeddings = embeds.float().mean(1).to("cpu")
        vectors, lines = [], []
        for rows, layout, level in zip(evicted.layers, self.adapter.layouts, self.layers, strict=True):
            vectors.append(frame_vectors(rows, layout, book, self.positions.tokens, level.parts).to("cpu"))
            lines.append(level.store.lines(rows))
        for row, frame in enumerate(evicted.frames):
            self.visual.add_vector(frame, embeddings[row])
            for level, own_lines, own_vectors in zip(self.layers, lines, vectors, strict=True):
                level.hold(frame, own_lines[row], own_vectors[row])
            self._admit(frame, embeddings[row], [own[row] for own in vectors])
        self._release()

    def _admit(self, frame: int, embedding: Tensor, vectors: list[Tensor]) -> None:
        if self.constructed:
            group = self.visual.take(frame, embedding).id
            for level, vector in zip(self.layers, vectors, strict=True):
                level.take(frame, vector, group)
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

    def prepare(self, visible: VisibleRange) -> None:
        self._fetcher.clear()
        self._retrieved.clear()

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        ablation, level = self._ablation, self.layers[layer]
        retrieving = query.purpose == "question" or ablation.retrieve_while_encoding
        if not level.clusters or not (retrieving or ablation.representatives):
            return Selection()
        chosen = self._choose(layer, query, visible) if retrieving else [set[int]() for _ in range(query.count)]
        recent = recent_clusters(level, visible)
        taken = sorted(recent.union(*chosen))
        rows, shown = self._rows(layer, query, taken, chosen, visible)
        if retrieving and self._prefetching and layer + 1 < len(self.layers):
            self._prefetch(layer + 1, query, visible, taken)
        if not ablation.representatives:
            return Selection(rows, shown)
        weighted = self.positions.tokens if ablation.weighted else None
        seen = [own | recent for own in chosen]
        return Selection(rows, shown, other_centroids(level, self.adapter.layouts[layer], weighted, visible, seen))

    def _choose(self, layer: int, query: Query, visible: VisibleRange) -> list[set[int]]:
        """Return for each group the clusters that it retrieves."""
        level, ablation = self.layers[layer], self._ablation
        index, sizes = level.index, visible_sizes(level, visible)
        groups = index.facts[:, 4].long().numpy()
        if ablation.scoring == "pooled":
            scores = query.score_pooled(level.quantized.keys(len(index))).cpu()
        else:
            logits = level.quantized.logits(query.states, len(index))
            scores = query.score_by_attention(logits, torch.from_numpy(sizes).to(logits.device)).cpu()
        return [
            {index.ids[slot] for slot in choose(own, sizes, groups, self.settings.budget, ablation.breadth)}
            for own in scores
        ]

    def _prefetch(self, layer: int, query: Query, visible: VisibleRange, taken: list[int]) -> None:
        """Copy the clusters that a layer is likely to ask for; `taken` are those of the layer before it."""
        level = self.layers[layer]
        if self._ablation.guess == "frames":
            own = self.layers[layer - 1].clusters
            shared = Counter(level.home[frame] for id in taken for frame in own[id].frames)
            ids = {id for id, frames in shared.items() if 2 * frames > level.clusters[id].size}
        elif level.quantized.heads * level.quantized.width == query.pooled.shape[1]:
            ids = recent_clusters(level, visible).union(*self._choose(layer, query, visible))
        else:
            return
        self._fetcher.prefetch(layer, [id for id in sorted(ids) if id in level.store])

    def _rows(
        self, layer: int, query: Query, taken: list[int], chosen: list[set[int]], visible: VisibleRange
    ) -> tuple[StreamRows | None, Tensor | None]:
        """Return rows of clusters in the order of their frames, and which group sees which."""
        if not taken:
            return None, None
        level, device = self.layers[layer], self.adapter.device
        stored = [id for id in taken if id in level.store]
        lines = dict(zip(stored, self._fetcher.fetch(layer, stored), strict=True))
        level.fetched.update(stored)
        clusters = [level.clusters[id] for id in taken]
        blocks = [
            lines[cluster.id] if cluster.id in lines else level.waiting[cluster.frames[0]][None] for cluster in clusters
        ]
        numbers = numpy.array([frame for cluster in clusters for frame in cluster.frames])
        order = numbers.argsort()
        numbers = numbers[order]
        inside = (numbers >= visible.low) & (numbers < visible.high)
        own = numpy.array([[id in mine for id in taken] for mine in chosen])
        shown = own.repeat([cluster.size for cluster in clusters], axis=1)[:, order]
        shown = (shown | (numbers >= visible.recent)) & inside
        if query.count == 1:
            # A group that is alone sees no more than its own.
            numbers, order, shown = numbers[shown[0]], order[shown[0]], shown[:, shown[0]]
        if query.purpose == "question":
            self._retrieved.update(numbers.tolist())
        kv = level.store.rows(torch.cat(blocks)[torch.from_numpy(order).to(device)])
        frames = torch.from_numpy(numbers).to(device)
        rows = StreamRows(kv, self.positions.written(frames), frames.repeat_interleave(self.positions.tokens))
        if shown.all():
            return rows, None
        return rows, torch.from_numpy(shown).repeat_interleave(self.positions.tokens, dim=1).to(device)

    def settle(self) -> None:
        self._refine()
        self._release()

    def _refine(self) -> None:
        """Do the cuts that waited for clusters that were fetched."""
        self._fetcher.wait()
        groups = self.visual.fetched()
        for level in self.layers:
            for id in sorted(level.fetched):
                level.refine(id)
        for group in sorted(groups):
            self.visual.refine(group)

    def _release(self) -> None:
        self._fetcher.clear()
        for level in self.layers:
            level.fetched.clear()

    def bytes(self) -> MemoryBytes:
        device: Counter[str] = Counter()
        for level in self.layers:
            device.update(level.device_bytes)
        device["fetched"] = self._fetcher.bytes
        levels = (self.visual, *self.layers)
        host = {
            "rows": sum(level.store.bytes for level in self.layers),
            "vectors": sum(level.vectors.bytes for level in levels),
            "index": sum(level.index.bytes for level in levels),
        }
        return MemoryBytes(dict(device), host)

    def counts(self) -> Mapping[str, float]:
        return {
            **self._transfers.counts(),
            **self._semantic_counts.counts("semantic"),
            **self._visual_counts.counts("visual"),
            "divided": float(self.visual.divided),
            "clusters": float(sum(len(level.clusters) for level in self.layers)),
            "visual_clusters": float(len(self.visual.clusters)),
        }

    def retrieved(self) -> Mapping[int, float]:
        return {frame: count / len(self.layers) for frame, count in self._retrieved.items()}

    def close(self) -> None:
        self._fetcher.close()

    def state(self) -> StreamState:
        state = StreamState({}, {"constructed": self.constructed})
        state.put("visual", self.visual.state())
        for index, level in enumerate(self.layers):
            state.put(f"layer{index}", level.state())
        return state

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; counts begin at 0."""
        self.constructed = state.facts["constructed"]
        self.visual.restore(state.part("visual"))
        for index, level in enumerate(self.layers):
            level.restore(state.part(f"layer{index}"))

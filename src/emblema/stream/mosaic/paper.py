"""Mosaic as its paper has it (arXiv 2604.10060): frames in visual clusters, inside them in clusters of each layer."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.kv.layout import LayerLayout, LayerRows
from emblema.stream.features import key_shape, mean_keys, mean_values
from emblema.stream.host_rows import HostRows, RowFetcher, Transfers
from emblema.stream.method import (
    Centroids,
    EvictedFrames,
    MemoryBytes,
    Method,
    Query,
    Selection,
    StreamContext,
    StreamRows,
    VisibleRange,
)
from emblema.stream.mosaic.clusters import Cluster, ClusterLevel

Levels = Literal["both", "visual", "semantic"]
Numbers = NDArray[numpy.int64]
LARGEST = 8
"""Frames of a semantic cluster at most: it is retrieved as a whole, and has to fit into a budget."""
FIRST = 16
"""Frames of the first partition; until then each is a cluster of its own."""
BREADTH = 3.0
"""Visual clusters are chosen until they hold this many times the budget."""


class LayerClusters:
    """The clusters of one layer, by mean keys, and what represents them.

    Attributes:
        level: the clusters.
    """

    def __init__(self, layout: LayerLayout, watched: bool) -> None:
        self.level, self._layout, self._shape = ClusterLevel(LARGEST, watched), layout, key_shape(layout)
        # Of all frames; those of the first ones are taken from all keys before they are compared.
        self._centre: Tensor | None = None
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    @property
    def bytes(self) -> int:
        """Bytes of the representatives of all clusters."""
        heads, width = self._shape
        features = heads * width + (
            0 if self._layout.kind == "latent" else self._layout.values[0] * self._layout.values[1]
        )
        return 4 * features * len(self.level.clusters)

    def add(self, frames: range, rows: LayerRows, keys: Tensor) -> None:
        """Take rows of frames, and their mean keys [frames, 1, heads, width]."""
        values = mean_values(rows, self._layout, rows.tokens // len(frames)).cpu()
        keys = keys.flatten(1).cpu()
        self._centre = keys.mean(0) if self._centre is None else self._centre
        for frame, key, value in zip(frames, keys, values, strict=True):
            self._keys[frame], self._values[frame] = key, value
            self.level.add(frame, key - self._centre)

    def representatives(self, clusters: Sequence[Cluster], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return mean keys of clusters [heads, clusters, width] and mean values [clusters, features], V-B."""
        keys, values = (
            torch.stack([torch.stack([held[frame] for frame in own.frames]).mean(0) for own in clusters]).to(device)
            for held in (self._keys, self._values)
        )
        return keys.unflatten(1, self._shape).transpose(0, 1), values

    def centroids(
        self, clusters: Sequence[Cluster], means: tuple[Tensor, Tensor], rows: int, shown: NDArray[numpy.bool]
    ) -> Centroids:
        """Return clusters as rows that are attended like as many rows as they stand for.

        Args:
            means: their representatives.
            rows: of a frame.
            shown: [groups, clusters].
        """
        keys, values = means
        if self._layout.kind == "latent":
            keys, values = keys.split((self._layout.keys[1], self._layout.values[1]), dim=2)
        else:
            values = values.unflatten(1, self._layout.values).transpose(0, 1)
        times = torch.tensor([sum(own.frames) / len(own.frames) for own in clusters], device=keys.device)
        sizes = torch.tensor([float(len(own.frames) * rows) for own in clusters], device=keys.device)
        return Centroids(keys, values, times, sizes.log(), torch.from_numpy(shown).to(keys.device))


class PaperMosaic(Method):
    """Whole clusters, chosen by a pooled query in two stages; the others are seen as one row each.

    Args:
        levels: where clusters may grow too wide: on `both` levels, on the `visual` level (layers follow it), or on the
            `semantic` level (all frames are one visual cluster); the paper's table IV.

    Attributes:
        visual: the clusters that all layers share, by what the vision tower gave.
        layers: the clusters of each layer.
    """

    name = "mosaic-paper"

    def __init__(self, context: StreamContext, levels: Levels = "both") -> None:
        super().__init__(context)
        adapter, tokens = self.adapter, self.positions.tokens
        self._transfers = Transfers()
        self.stores = [HostRows(layout, tokens, adapter.dtype, self._transfers) for layout in adapter.layouts]
        self.layers = [LayerClusters(layout, levels != "visual") for layout in adapter.layouts]
        self.visual = ClusterLevel(None, levels != "semantic", [own.level for own in self.layers])
        self._fetcher = RowFetcher(self.stores, self._transfers, adapter.device)
        self._constructed = False
        # Frames that were fetched by the last reading, layer by layer.
        self._fetched: list[list[int]] = []

    @property
    def _levels(self) -> list[ClusterLevel]:
        return [*(own.level for own in self.layers), self.visual]

    def admit(self, evicted: EvictedFrames) -> None:
        self._touch()
        frames = evicted.frames
        book = self.context.phases.book(evicted.positions)
        embeds = self.context.log.codes(frames).embeds.float().mean(1)
        for frame, vector in zip(frames, embeds, strict=True):
            self.visual.add(frame, vector)
        for own, store, layout, rows in zip(
            self.layers, self.stores, self.adapter.layouts, evicted.layers, strict=True
        ):
            store.append(frames, rows)
            own.add(frames, rows, mean_keys(rows, layout, book, self.positions.tokens))
        for frame in frames:
            self._assign(frame)
        self._release()

    def _assign(self, frame: int) -> None:
        """Put a frame in a cluster of each level."""
        if self._constructed:
            group = self.visual.take(frame).id
            for own in self.layers:
                own.level.take(frame, group)
            return
        self.visual.create([frame])
        for own in self.layers:
            own.level.create([frame], self.visual.home[frame])
        if len(self.visual.clusters) >= FIRST:
            made = self.visual.partition([(None, sorted(self.visual.home))])
            for own in self.layers:
                own.level.partition([(cluster.id, cluster.frames) for cluster in made])
            self._constructed = True

    def prepare(self, visible: VisibleRange) -> None:
        self._touch_visual()
        self._fetcher.clear()

    def read(self, layer: int, query: Query, visible: VisibleRange) -> Selection:
        own, level, budget = self.layers[layer], self.layers[layer].level, self.settings.budget
        clusters, here = list(level.clusters.values()), self.stores[layer].frames
        if not clusters:
            return Selection()
        means = own.representatives(clusters, self.adapter.device)
        recent = range(max(visible.recent, here.start), min(visible.high, here.stop))
        seen = []
        for scores in query.score_pooled(means[0]).double().cpu().tolist():
            chosen = choose_clusters(clusters, scores, visible, budget)
            seen.append({frame for each in chosen for frame in each.frames if visible.low <= frame < visible.high})
        taken = numpy.array(sorted(set().union(*seen, recent)), dtype=numpy.int64)
        rows = self._rows(layer, taken) if len(taken) else None
        homes = [{level.home[frame] for frame in (*group, *recent)} for group in seen]
        whole = [visible.low <= min(each.frames) and max(each.frames) < visible.high for each in clusters]
        others = [
            [fits and each.id not in group for each, fits in zip(clusters, whole, strict=True)] for group in homes
        ]
        centroids = own.centroids(clusters, means, self.positions.tokens, numpy.array(others))
        if query.count == 1 or rows is None:
            return Selection(rows, None, centroids)
        near = numpy.stack([numpy.isin(taken, [*group, *recent]) for group in seen])
        shown = torch.from_numpy(near).repeat_interleave(self.positions.tokens, dim=1)
        return Selection(rows, shown.to(self.adapter.device), centroids)

    def _rows(self, layer: int, taken: Numbers) -> StreamRows:
        """Return rows of frames, which rise; on a device the next layer's are copied meanwhile (VII)."""
        kv = self.stores[layer].rows(self._fetcher.fetch(layer, taken))
        if layer + 1 < len(self.stores) and self.adapter.device.type != "cpu":
            self._fetcher.prefetch(layer + 1, taken)
        numbers, level = taken.tolist(), self.layers[layer].level
        level.touched.update(map(level.home.__getitem__, numbers))
        self._fetched.append(numbers)
        frames = torch.from_numpy(taken).to(self.adapter.device)
        return StreamRows(kv, self.positions.written(frames), frames.repeat_interleave(self.positions.tokens))

    def settle(self) -> None:
        self._touch()
        self._release()

    def _touch_visual(self) -> None:
        for numbers in self._fetched:
            self.visual.touched.update(map(self.visual.home.__getitem__, numbers))
        self._fetched.clear()

    def _touch(self) -> None:
        """Do the cuts that waited for clusters of which frames were fetched (VI-B)."""
        self._touch_visual()
        for level in self._levels:
            level.refine()

    def _release(self) -> None:
        self._fetcher.clear()
        for level in self._levels:
            level.touched.clear()

    def bytes(self) -> MemoryBytes:
        device = {"index": sum(own.bytes for own in self.layers), "fetched": self._fetcher.bytes}
        return MemoryBytes(device, {"rows": sum(store.bytes for store in self.stores)})

    def counts(self) -> Mapping[str, float]:
        counts = {**self._transfers.counts(), "visual_clusters": float(len(self.visual.clusters))}
        counts["clusters"] = float(sum(len(own.level.clusters) for own in self.layers))
        for name in self.visual.counts:
            counts[name] = float(sum(level.counts[name] for level in self._levels))
        return counts

    def retrieved(self) -> Mapping[int, float]:
        counts = Counter(chain.from_iterable(self._fetched))
        return {frame: count / len(self.stores) for frame, count in counts.items()}

    def close(self) -> None:
        self._fetcher.close()


def choose_clusters(
    clusters: Sequence[Cluster], scores: Sequence[float], visible: VisibleRange, budget: int | None
) -> list[Cluster]:
    """Return the clusters that one query retrieves in one layer (V-C).

    A visual cluster has the mean score of the frames in it. Visual clusters are chosen, best first, until they hold
    `BREADTH` times the budget. Clusters inside them are taken, best first, each whole and only where it fits. What is
    left of the budget goes to the others likewise.

    Args:
        scores: of the clusters.
        budget: frames; None for all.
    """
    sizes = [sum(visible.low <= frame < visible.high for frame in own.frames) for own in clusters]
    if budget is None or sum(sizes) <= budget:
        return [own for own, size in zip(clusters, sizes, strict=True) if size]
    totals, sums = Counter[int](), defaultdict[int, float](float)
    for own, size, score in zip(clusters, sizes, scores, strict=True):
        totals[own.group] += size
        sums[own.group] += size * score
    inside, held = set(), 0
    for group in sorted(+totals, key=lambda group: -sums[group] / totals[group]):
        if held < BREADTH * budget:
            inside.add(group)
            held += totals[group]
    order = sorted(range(len(clusters)), key=lambda place: (clusters[place].group not in inside, -scores[place]))
    chosen, left = [], budget
    for place in order:
        if 0 < sizes[place] <= left:
            chosen.append(clusters[place])
            left -= sizes[place]
    return chosen

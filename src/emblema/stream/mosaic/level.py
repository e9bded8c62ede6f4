"""One level of a memory: the clusters of one space, their representatives, and the vectors of their members."""

import math
from collections.abc import Sequence
from dataclasses import asdict

import torch
from torch import Tensor

from emblema.stream.mosaic.clusters import Cluster, Grown, Spread, spread_of
from emblema.stream.mosaic.index import Index
from emblema.stream.mosaic.short import Short
from emblema.stream.mosaic.vectors import Vectors
from emblema.stream.saved import Saved
from emblema.stream.settings import StreamSettings


class Level:
    """Clusters of frames by vectors [width + extra]: the first `width` are matched, the rest are averaged beside them.

    Vectors, and what clusters are made by, are on the host; representatives go to the device.

    Attributes:
        nested: whether its clusters lie in visual ones; else each is a group of its own.
        largest: frames that a cluster may have; None for any number.
        clusters: by id.
        home: the cluster of each frame.
    """

    def __init__(
        self, settings: StreamSettings, width: int, extra: int, nested: bool, short: Short | None = None
    ) -> None:
        self.settings, self.width, self.nested = settings, width, nested
        self.largest = settings.largest if nested else None
        self._watched = settings.levels in ("both", "semantic" if nested else "visual")
        self.clusters: dict[int, Cluster] = {}
        self.home: dict[int, int] = {}
        self.index = Index(width, extra, short)
        self.vectors, self.spread = Vectors(), Spread()
        self.centre: Tensor | None = None
        self._next = 0

    def note(self, frame: int, vector: Tensor) -> None:
        """A new state: its vector is kept, and counts for the variance of all."""
        self.vectors.add(frame, vector)
        self.spread.add(vector[: self.width])

    def settle(self, frames: Sequence[int]) -> None:
        """Take the mean of some frames for the centre of what the device has; there is no cluster yet."""
        self.centre = self.vectors.of(list(frames)).mean(0)
        if self.index.short is not None:
            self.index.short.centre(self.centre)

    def nearest(self, vector: Tensor, group: int | None) -> tuple[Cluster | None, Cluster | None]:
        """Of a group's clusters (None: of all), the most similar one, and the most similar one with room."""
        if not len(self.index):
            return None, None
        cosines = self.index.likeness(vector)
        facts = self.index.facts
        if group is not None:
            cosines = cosines.masked_fill(facts[:, 4] != group, -torch.inf)
        first = self._at(cosines)
        if first is None or self.largest is None or first.size < self.largest:
            return first, first
        return first, self._at(cosines.masked_fill(facts[:, 0] >= self.largest, -torch.inf))

    def _at(self, cosines: Tensor) -> Cluster | None:
        slot = int(cosines.argmax())
        return None if cosines[slot] == -torch.inf else self.clusters[self.index.ids[slot]]

    def grown(self, cluster: Cluster, vector: Tensor) -> Grown | None:
        """The cluster's statistics with one more state; None if it would be too wide (Mosaic, VI-A)."""
        mean = self.index.mean(cluster.id)
        grown = Grown.by(vector[: self.width], mean[: self.width], cluster.variance, cluster.size)
        return grown if grown.variance <= self._bound(cluster.size) else None

    def fits(self, vectors: Tensor) -> bool:
        """Whether states [n, width + extra] may be one cluster."""
        if self.largest is not None and len(vectors) > self.largest:
            return False
        return spread_of(vectors[:, : self.width]) <= self._bound(len(vectors) - 1)

    def _bound(self, size: int) -> float:
        return self.settings.threshold(size) * self.spread.variance if self._watched else math.inf

    def absorb(self, cluster: Cluster, frame: int, vector: Tensor, variance: float) -> None:
        """A state joins a cluster."""
        mean = self.index.mean(cluster.id)
        moved = mean + (vector - mean) / (cluster.size + 1)
        cluster.frames.append(frame)
        self.home[frame] = cluster.id
        cluster.variance = variance
        self.index.grow(cluster.id, moved, frame)

    def found(self, frames: Sequence[int], group: int | None = None, parent: int | None = None) -> Cluster:
        """A new cluster of states that are known; without a group it is its own."""
        id, self._next = self._next, self._next + 1
        vectors = self.vectors.of(list(frames))
        variance = spread_of(vectors[:, : self.width]) if len(frames) > 1 else 0.0
        cluster = Cluster(id, id if group is None else group, list(frames), variance, parent=parent)
        self.clusters[id] = cluster
        self.home.update(dict.fromkeys(frames, id))
        self.index.put(id, vectors.mean(0), cluster.frames, cluster.group)
        return cluster

    def join(self, cluster: Cluster, other: Cluster) -> None:
        """Another cluster's states become this one's; the other is gone."""
        cluster.frames += other.frames
        self.home.update(dict.fromkeys(other.frames, cluster.id))
        self.remove(other.id)
        vectors = self.vectors.of(cluster.frames)
        cluster.variance = spread_of(vectors[:, : self.width])
        self.index.put(cluster.id, vectors.mean(0), cluster.frames, cluster.group)

    def remove(self, id: int) -> None:
        """A cluster is gone."""
        del self.clusters[id]
        self.index.remove(id)

    def regroup(self, cluster: Cluster, group: int) -> None:
        """A cluster lies in another visual cluster now."""
        cluster.group = group
        self.index.regroup(cluster.id, group)

    def of_group(self, group: int) -> list[Cluster]:
        """The clusters of a visual cluster."""
        return [cluster for cluster in self.clusters.values() if cluster.group == group]

    def saved(self) -> Saved:
        """For a file: clusters in the order of their rows in the index, so that they lie there as they did."""
        clusters = [asdict(self.clusters[id]) for id in self.index.ids]
        means = torch.stack([self.index.mean(id) for id in self.index.ids]) if clusters else torch.zeros(0)
        held = {"means": means} if self.centre is None else {"means": means, "centre": self.centre}
        state = Saved(held, {"clusters": clusters, "next": self._next})
        state.put("vectors", self.vectors.saved())
        state.put("spread", self.spread.saved())
        return state

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved; nothing has come yet."""
        self.vectors.resume(saved.part("vectors"))
        self.spread.resume(saved.part("spread"))
        self._next = saved.facts["next"]
        self.centre = saved.tensors.get("centre")
        if self.index.short is not None and self.centre is not None:
            self.index.short.centre(self.centre)
        for facts, mean in zip(saved.facts["clusters"], saved.tensors["means"], strict=True):
            cluster = Cluster(**facts)
            self.clusters[cluster.id] = cluster
            self.home.update(dict.fromkeys(cluster.frames, cluster.id))
            self.index.put(cluster.id, mean, cluster.frames, cluster.group)

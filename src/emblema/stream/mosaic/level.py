"""Levels of clusters, and those of one layer inside the visual ones that all layers share.

A new state joins its nearest cluster where that stays narrow enough (Mosaic, VI). Else the cluster's statistics do not
change: the state waits as a cluster of its own, and the wide cluster is flagged. When a frame of that one is fetched
for a query, the states that wait are merged into it and it is cut in two. A cluster that waits and takes in a second
state waits no longer.

A level has a bound: near clusters of about the same age are merged where there are more. One that is wider then than
is allowed is done with: it takes in no state, none waits for it, and it is not cut.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from torch import Tensor

from emblema.stream.lines import LineField
from emblema.stream.mosaic.centroids import VECTORS, CentroidIndex, FrameVectors, Summaries
from emblema.stream.mosaic.clusters import (
    Cluster,
    RunningVariance,
    add_to_statistics,
    cut_in_two,
    joined_statistics,
    partition,
    variance_of,
)
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.merging import surplus_pairs
from emblema.stream.settings import AblationSettings
from emblema.stream.state import StreamState

EQUAL = 4e-4
"""Variance, as a share of the squared length of a level's mean state, that is none: such states are nearly equal."""
SUMMARISED = 512
"""Frames that a cluster's summary is made of, at most."""


@dataclass(slots=True)
class MaintenanceCounts:
    """Counts of one level, or of several together.

    Attributes:
        absorbed: states that joined a cluster.
        founded: states that began one at once.
        cuts: clusters cut in two.
        put_off: states that waited because a cut was put off.
        settled: of those, states that no longer wait as they became a cluster of their own.
        merged: clusters merged into others because there were too many.
    """

    absorbed: int = 0
    founded: int = 0
    cuts: int = 0
    put_off: int = 0
    settled: int = 0
    merged: int = 0

    def counts(self, prefix: str) -> dict[str, float]:
        """Return all counts by name."""
        return {f"{prefix}_{name}": float(getattr(self, name)) for name in self.__slots__}


class ClusterLevel(ABC):
    """Clusters of frames by vectors [width].

    Vectors are compared by Euclidean distance, and a cluster's variance is that of the same vectors. With the geometry
    `cosine` vectors have length one.

    Args:
        largest: frames that a cluster may have; None for any number.
        watched: whether clusters may grow too wide.

    Attributes:
        grouped: whether clusters are compared inside their group alone.
        clusters: by id.
        home: the cluster of each frame.
        touched: clusters of which a frame was fetched since a block ended or a question was answered.
    """

    grouped = True

    def __init__(
        self,
        settings: AblationSettings,
        counts: MaintenanceCounts,
        index: CentroidIndex,
        largest: int | None,
        watched: bool,
    ) -> None:
        self.settings, self.index = settings, index
        self._counts, self._largest, self._watched = counts, largest, watched
        self.clusters: dict[int, Cluster] = {}
        self.home: dict[int, int] = {}
        self.touched: set[int] = set()
        self.spread = RunningVariance()
        self._next = 0

    @abstractmethod
    def vectors_of(self, frames: Sequence[int]) -> Tensor:
        """Return the vectors of frames, [n, width]."""

    @property
    @abstractmethod
    def fields(self) -> list[LineField]:
        """What `index_of` returns of a frame."""

    @abstractmethod
    def clear(self, frames: Tensor) -> None:
        """Overwrite what frames [n] are known by."""

    @abstractmethod
    def drop(self, until: int) -> None:
        """Give back the memory of what frames before `until` were known by, which was overwritten."""

    @abstractmethod
    def index_of(self, frames: range) -> list[Tensor]:
        """Return what frames are known by, as views."""

    def _own_group(self, cluster: Cluster) -> int | None:
        """Return the group of clusters cut from this one; None for groups of their own."""
        return cluster.group

    def _changed(self, cluster: Cluster) -> None:  # noqa: B027
        """Follow a change of a cluster's members."""

    def _merging(self, cluster: Cluster, other: Cluster) -> None:  # noqa: B027
        """Follow that a cluster is merged into another one; both are there still."""

    def _divided(self, cluster: Cluster, parts: list[Cluster]) -> None:
        """Follow that other clusters took the place of one."""
        self.touched.discard(cluster.id)

    def _normed(self, vectors: Tensor) -> Tensor:
        if self.settings.geometry == "euclidean":
            return vectors
        return torch.nn.functional.normalize(vectors, dim=-1)

    def create(self, frames: Sequence[int], group: int | None = None, parent: int | None = None) -> Cluster:
        """Return a new cluster of frames whose vectors are known; without a group it is its own."""
        id, self._next = self._next, self._next + 1
        vectors = self.vectors_of(frames)
        variance = variance_of(vectors) if len(frames) > 1 else 0.0
        cluster = Cluster(id, id if group is None else group, list(frames), variance, parent=parent)
        self.clusters[id] = cluster
        self.home.update(dict.fromkeys(frames, id))
        self.index.put(id, vectors.mean(0), cluster.frames, cluster.group)
        self._changed(cluster)
        return cluster

    def remove(self, id: int) -> None:
        """Remove a cluster; its frames are in others, or will be."""
        del self.clusters[id]
        self.index.remove(id)

    def partition(self, groups: Sequence[tuple[int | None, list[int]]]) -> list[Cluster]:
        """Make the first partition in place of all clusters, inside each group: its number (None: its own), frames."""
        for id in list(self.clusters):
            self.remove(id)
        return [
            self.create([frames[index] for index in part], group)
            for group, frames in groups
            for part in partition(self.vectors_of(frames), self._fits)
        ]

    def take(self, frame: int, group: int | None = None) -> Cluster:
        """Put a new frame, whose vector is known, in one of a group's clusters; return the one that it is in."""
        vector = self.vectors_of([frame])[0]
        nearest, free = self._nearest(vector, group)
        if free is not None and (variance := self._variance_with(free, vector)) is not None:
            self._absorb(free, frame, vector, variance)
            return free
        # A full cluster is not cut, nor is a wide one, and two states that do not fit are two clusters as they are.
        if nearest is None or nearest is not free or nearest.size == 1:
            return self._found(frame, group, None if nearest is None else nearest.parent)
        if self.settings.splitting == "eager" or nearest.id in self.touched:
            new = self.create([frame], self._own_group(nearest))
            self._merge(nearest, [new, *(self.clusters[id] for id in nearest.waiting)])
            return next(part for part in self._cut(nearest) if frame in part.frames)
        self._counts.put_off += 1
        waiting = self.create([frame], self._own_group(nearest), nearest.id)
        nearest.lazy = True
        nearest.waiting.append(waiting.id)
        return waiting

    def _nearest(self, vector: Tensor, group: int | None) -> tuple[Cluster | None, Cluster | None]:
        """Return the nearest cluster of a group (None: of all), and the nearest one that takes in states."""
        ids = self.index.ids if group is None else self.index.group(group)
        if not ids:
            return None, None
        distances = self.index.distances(vector, None if group is None else ids)
        nearest = self.clusters[ids[int(distances.argmin())]]
        if not nearest.wide and (self._largest is None or nearest.size < self._largest):
            return nearest, nearest
        closed = self.index.closed(None if group is None else ids, self._largest)
        place = int(distances.masked_fill(closed, torch.inf).argmin())
        return nearest, None if bool(closed[place]) else self.clusters[ids[place]]

    def _variance_with(self, cluster: Cluster, vector: Tensor) -> float | None:
        """Return a cluster's variance with one more state; None if it would be too wide (Mosaic, VI-A)."""
        _, variance = add_to_statistics(vector, self.index.mean(cluster.id), cluster.variance, cluster.size)
        return variance if variance <= self._bound(cluster.size) else None

    def _fits(self, vectors: Tensor) -> bool:
        """Return whether states [n, width] may be one cluster."""
        if self._largest is not None and len(vectors) > self._largest:
            return False
        return variance_of(vectors) <= self._bound(len(vectors) - 1)

    def _bound(self, size: int) -> float:
        if not self._watched:
            return math.inf
        least = 0.0 if self.spread.mean is None else EQUAL * float(self._placed(self.spread.mean).square().sum())
        return max(least, self.settings.threshold(size) * self.spread.variance)

    def _placed(self, mean: Tensor) -> Tensor:
        """Return a mean vector with what all vectors leave out."""
        return mean

    def _absorb(self, cluster: Cluster, frame: int, vector: Tensor, variance: float) -> None:
        mean = self.index.mean(cluster.id)
        moved = mean + (vector - mean) / (cluster.size + 1)
        cluster.frames.append(frame)
        self.home[frame] = cluster.id
        cluster.variance = variance
        self.index.add_frame(cluster.id, moved, frame)
        self._counts.absorbed += 1
        self.release(cluster)
        self._changed(cluster)

    def _found(self, frame: int, group: int | None, parent: int | None) -> Cluster:
        """Begin a cluster of one frame; next to one that waits it waits for the same."""
        new = self.create([frame], group, parent)
        if parent is None:
            self._counts.founded += 1
        else:
            self._counts.put_off += 1
            self.clusters[parent].waiting.append(new.id)
        return new

    def release(self, cluster: Cluster) -> None:
        """Let a cluster wait no longer for another one."""
        if cluster.parent is None:
            return
        parent = self.clusters[cluster.parent]
        parent.waiting.remove(cluster.id)
        parent.lazy = bool(parent.waiting)
        cluster.parent = None
        self._counts.settled += 1

    def forget(self, frames: Sequence[int], live: Sequence[int]) -> None:
        """Take frames out of their clusters; a cluster without any is removed.

        Args:
            live: the frames that are left.
        """
        touched = {self.home.pop(frame) for frame in frames if frame in self.home}
        for id in sorted(touched):
            cluster = self.clusters[id]
            cluster.frames = [frame for frame in cluster.frames if frame in self.home]
            if cluster.frames:
                vectors = self.vectors_of(cluster.frames)
                cluster.variance = variance_of(vectors) if cluster.size > 1 else 0.0
                self.index.put(id, vectors.mean(0), cluster.frames, cluster.group)
                if cluster.wide:
                    self._compare_width(cluster)
                self._changed(cluster)
                continue
            self._part_from_others(cluster)
            self.remove(id)
        self.spread.begin(self.vectors_of(live))

    def _part_from_others(self, cluster: Cluster) -> None:
        """Let a cluster wait for none, and none wait for it."""
        self.release(cluster)
        for waiting in list(cluster.waiting):
            self.release(self.clusters[waiting])

    def _compare_width(self, cluster: Cluster) -> None:
        """Set whether a cluster that was merged is wider than is allowed."""
        cluster.wide = cluster.variance > self._bound(cluster.size - 1)
        self.index.set_wide(cluster.id, cluster.wide)

    def reduce(self, most: int, now: int) -> None:
        """Merge near clusters of about the same age until there are at most `most`, or one for each group.

        Args:
            now: the next frame.
        """
        for by_age in (True, False):
            while pairs := surplus_pairs(self.index, most, now if by_age else None, self.grouped):
                for first, second in pairs:
                    self._join(self.clusters[first], self.clusters[second])

    def _join(self, cluster: Cluster, other: Cluster) -> None:
        """Merge two clusters into the one that has more frames, or else came first."""
        if (other.size, -other.frames[0]) > (cluster.size, -cluster.frames[0]):
            cluster, other = other, cluster
        for each in (cluster, other):
            self._part_from_others(each)
        means, sizes = (self.index.mean(cluster.id), self.index.mean(other.id)), (cluster.size, other.size)
        mean, cluster.variance = joined_statistics(means, (cluster.variance, other.variance), sizes)
        self._merging(cluster, other)
        cluster.frames += other.frames
        self.home.update(dict.fromkeys(other.frames, cluster.id))
        self.index.join(cluster.id, other.id, mean)
        self.remove(other.id)
        self._compare_width(cluster)
        self._counts.merged += 1
        self._changed(cluster)

    def refine(self, id: int) -> None:
        """Cut a cluster of which a frame was fetched, if its cut was put off."""
        cluster = self.clusters.get(id)
        if cluster is not None and cluster.lazy:
            self._merge(cluster, [self.clusters[waiting] for waiting in cluster.waiting])
            self._cut(cluster)

    def _merge(self, cluster: Cluster, others: list[Cluster]) -> None:
        for other in others:
            self._merging(cluster, other)
            cluster.frames += other.frames
            self.home.update(dict.fromkeys(other.frames, cluster.id))
            self.remove(other.id)
        vectors = self.vectors_of(cluster.frames)
        cluster.variance = variance_of(vectors)
        self.index.put(cluster.id, vectors.mean(0), cluster.frames, cluster.group)
        cluster.waiting, cluster.lazy = [], False
        self._changed(cluster)

    def _cut(self, cluster: Cluster) -> list[Cluster]:
        sides = cut_in_two(self.vectors_of(cluster.frames))
        self._counts.cuts += 1
        group = self._own_group(cluster)
        return self.divide(cluster, [([cluster.frames[index] for index in side], group) for side in sides])

    def divide(self, cluster: Cluster, parts: Sequence[tuple[list[int], int | None]]) -> list[Cluster]:
        """Put clusters of some frames and groups in a cluster's place; what waits for it waits no longer."""
        for id in list(cluster.waiting):
            self.release(self.clusters[id])
        self.remove(cluster.id)
        made = [self.create(frames, group) for frames, group in parts]
        if cluster.wide:
            for part in made:
                self._compare_width(part)
        self._divided(cluster, made)
        return made

    def state(self) -> StreamState:
        """Return the state for a file: clusters in the order of their rows in the index."""
        clusters = [self.clusters[id] for id in self.index.ids]
        members = numpy.fromiter((frame for cluster in clusters for frame in cluster.frames), dtype=numpy.int64)
        sizes = self.index.facts[:, 0].long()
        tensors = {"means": self.index.means, "sizes": sizes, "members": torch.from_numpy(members)}
        facts = {"clusters": [cluster.facts() for cluster in clusters], "next": self._next}
        state = StreamState(tensors if clusters else {}, facts)
        state.put("spread", self.spread.state())
        return state

    def restore_clusters(self, state: StreamState) -> None:
        """Go on from a saved state; vectors were restored before, and no cluster is there yet."""
        self.spread.restore(state.part("spread"))
        self._next = state.facts["next"]
        if not (clusters := state.facts["clusters"]):
            return
        members = state.tensors["members"].split(state.tensors["sizes"].tolist())
        for facts, frames, mean in zip(clusters, members, state.tensors["means"], strict=True):
            cluster = Cluster(frames=frames.tolist(), **facts)
            self.clusters[cluster.id] = cluster
            self.home.update(dict.fromkeys(cluster.frames, cluster.id))
            self.index.put(cluster.id, mean, cluster.frames, cluster.group)
            self.index.set_wide(cluster.id, cluster.wide)
            self._changed(cluster)


class SemanticLevel(ClusterLevel):
    """Clusters of one layer, inside the visual ones.

    Args:
        keys: of the layer's frames.
        values: heads and width of the values that summaries have; (0, 0) for none.

    Attributes:
        keys: as given.
        summaries: of the clusters.
    """

    def __init__(
        self,
        settings: AblationSettings,
        keys: FrameKeys,
        values: tuple[int, int],
        counts: MaintenanceCounts,
        device: torch.device,
    ) -> None:
        self.keys, self._values, self._value_width = keys, FrameVectors(), values[0] * values[1]
        # Of the values in summaries.
        self._centre: Tensor | None = None
        self.summaries = Summaries(keys.parts, (keys.heads, keys.width), values, device)
        index = CentroidIndex(keys.parts * keys.heads * keys.width, self.summaries)
        super().__init__(settings, counts, index, settings.most, settings.levels in ("both", "semantic"))

    @property
    def bytes(self) -> int:
        """Bytes on the host of what clusters are known by."""
        return self.index.bytes + self._values.bytes

    def add(self, frames: range, values: Tensor, live: Sequence[int]) -> None:
        """Add frames whose keys were added.

        Args:
            values: [frames, features], mean values.
            live: those of them that were not forgotten.
        """
        if self._centre is None:
            self._set_centre(values.mean(0))
        for frame, value in zip(frames, values, strict=True):
            self._values.add(frame, value)
        for vector in self.vectors_of(live):
            self.spread.add(vector)

    def clear(self, frames: Tensor) -> None:
        self._values.clear(frames)

    def drop(self, until: int) -> None:
        self._values.drop(until)

    def _set_centre(self, values: Tensor) -> None:
        self._centre = values
        self.summaries.set_centre(self.keys.centre, values)

    def vectors_of(self, frames: Sequence[int]) -> Tensor:
        return self._normed(self.keys.of(torch.tensor(frames, dtype=torch.int64)).flatten(1))

    def _placed(self, mean: Tensor) -> Tensor:
        if self.settings.geometry == "cosine":
            return mean
        return mean + self.keys.centre.expand(self.keys.parts, -1, -1).flatten()

    def _changed(self, cluster: Cluster) -> None:
        frames, size = cluster.frames, cluster.size
        if size > SUMMARISED:
            frames = [frames[place * size // SUMMARISED] for place in range(SUMMARISED)]
        keys = self.keys.of(torch.tensor(frames)).flatten(1)
        means = torch.cat((keys, self._values.of(frames)), dim=1).mean(0)
        self.summaries.put(self.index.slot(cluster.id), means)

    def construct(self, groups: Sequence[tuple[int, list[int]]]) -> None:
        """Make the first partition, inside each visual cluster: its number and its frames."""
        self.partition(groups)

    def move(self, group: int, homes: dict[int, int]) -> int:
        """Follow the end of a visual cluster: `homes` has the visual cluster that each of its frames is in.

        Returns:
            How many clusters were divided for it.
        """
        clusters = [self.clusters[id] for id in self.index.group(group)]
        new = {cluster.id: {homes[frame] for frame in cluster.frames} for cluster in clusters}
        for cluster in clusters:
            if cluster.parent is not None and new[cluster.id] != new[cluster.parent]:
                self.release(cluster)
        for cluster in clusters:
            if len(new[cluster.id]) == 1:
                cluster.group = next(iter(new[cluster.id]))
                self.index.set_group(cluster.id, cluster.group)
                continue
            parts: dict[int, list[int]] = {}
            for frame in cluster.frames:
                parts.setdefault(homes[frame], []).append(frame)
            self.divide(cluster, [(frames, home) for home, frames in parts.items()])
        return sum(len(homes) > 1 for homes in new.values())

    @property
    def fields(self) -> list[LineField]:
        return [LineField((self._value_width,), VECTORS)]

    def index_of(self, frames: range) -> list[Tensor]:
        return [self._values.index_of(frames)]

    def state(self) -> StreamState:
        state = StreamState({} if self._centre is None else {"centre": self._centre}, {})
        state.put("level", super().state())
        return state

    def restore(self, state: StreamState, values: Tensor) -> None:
        """Go on from a saved state, and the values of its frames; keys were restored before."""
        self._values.restore(self.keys.first, values)
        if "centre" in state.tensors:
            self._set_centre(state.tensors["centre"])
        self.restore_clusters(state.part("level"))

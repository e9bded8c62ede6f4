"""The two levels of clusters: visual ones that all layers share, and semantic ones of each layer inside them.

A new state joins its nearest cluster where that stays narrow enough (Mosaic, VI). Else the cluster's statistics do not
change: the state waits as a cluster of its own, which retrieval sees, and the wide cluster is flagged. When that one is
fetched for a query, the states that wait are merged into it and it is cut in two. A cluster that waits and takes in a
second state waits no longer.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout
from emblema.stream.blocks import BlockStore
from emblema.stream.features import matched_width
from emblema.stream.mosaic.centroids import CentroidIndex, FrameVectors, QuantizedCentroids
from emblema.stream.mosaic.clusters import (
    Cluster,
    RunningVariance,
    add_to_statistics,
    cut_in_two,
    partition,
    variance_of,
)
from emblema.stream.settings import AblationSettings
from emblema.stream.state import StreamState


@dataclass(slots=True)
class MaintenanceCounts:
    """Counts of one level, or of several together.

    Attributes:
        absorbed: states that joined a cluster.
        founded: states that began one at once.
        cuts: clusters cut in two.
        put_off: states that waited because a cut was put off.
        settled: of those, states that no longer wait as they became a cluster of their own.
    """

    absorbed: int = 0
    founded: int = 0
    cuts: int = 0
    put_off: int = 0
    settled: int = 0

    def counts(self, prefix: str) -> dict[str, float]:
        """Return all counts by name."""
        return {f"{prefix}_{field.name}": float(getattr(self, field.name)) for field in fields(self)}


class ClusterLevel(ABC):
    """Clusters of frames by vectors [width + extra]: the first `width` are matched, the rest only averaged.

    Args:
        largest: frames that a cluster may have; None for any number.
        watched: whether clusters may grow too wide.

    Attributes:
        clusters: by id.
        home: the cluster of each frame.
    """

    def __init__(
        self,
        settings: AblationSettings,
        counts: MaintenanceCounts,
        index: CentroidIndex,
        width: int,
        largest: int | None,
        watched: bool,
    ) -> None:
        self.settings, self.index, self.width = settings, index, width
        self._counts, self._largest, self._watched = counts, largest, watched
        self.clusters: dict[int, Cluster] = {}
        self.home: dict[int, int] = {}
        self.vectors, self.spread = FrameVectors(), RunningVariance()
        self._centre: Tensor | None = None
        self._next = 0

    @abstractmethod
    def resident(self, cluster: Cluster) -> bool:
        """Return whether all members are on the device anyhow."""

    @abstractmethod
    def store_member(self, cluster: Cluster, frame: int) -> None:
        """Store a frame that has joined a cluster for good, perhaps as its first member."""

    @abstractmethod
    def merge_members(self, cluster: Cluster, other: Cluster) -> None:
        """Store the members of a cluster that is merged into the one that it waited for; both are there still."""

    @abstractmethod
    def divide_members(self, cluster: Cluster, parts: list[Cluster]) -> None:
        """Divide what is stored of a cluster among its parts."""

    def _own_group(self, cluster: Cluster) -> int | None:
        """Return the group of clusters cut from this one; None for groups of their own."""
        return cluster.group

    def add_vector(self, frame: int, vector: Tensor) -> None:
        """Keep the vector of a new frame; it counts for the level's variance."""
        self.vectors.add(frame, vector)
        self.spread.add(vector[: self.width])

    def create(self, frames: Sequence[int], group: int | None = None, parent: int | None = None) -> Cluster:
        """Return a new cluster of frames whose vectors are known; without a group it is its own."""
        id, self._next = self._next, self._next + 1
        vectors = self.vectors.of(list(frames))
        variance = variance_of(vectors[:, : self.width]) if len(frames) > 1 else 0.0
        cluster = Cluster(id, id if group is None else group, list(frames), variance, parent=parent)
        self.clusters[id] = cluster
        self.home.update(dict.fromkeys(frames, id))
        self.index.put(id, vectors.mean(0), cluster.frames, cluster.group)
        return cluster

    def remove(self, id: int) -> None:
        """Remove a cluster; its frames are in others, or will be."""
        del self.clusters[id]
        self.index.remove(id)

    def partition(self, groups: Sequence[tuple[int | None, list[int]]]) -> list[Cluster]:
        """Make the first partition in place of all clusters, inside each group: its number (None: its own), frames."""
        for id in list(self.clusters):
            self.remove(id)
        if self.index.quantized is not None:
            self._set_centre(self.vectors.of([frame for _, frames in groups for frame in frames]).mean(0))
        return [
            self.create([frames[index] for index in part], group)
            for group, frames in groups
            for part in partition(self.vectors.of(frames), self._fits)
        ]

    def _set_centre(self, centre: Tensor) -> None:
        self._centre = centre
        if self.index.quantized is not None:
            self.index.quantized.set_centre(centre)

    def take(self, frame: int, vector: Tensor, group: int | None = None) -> Cluster:
        """Put a new frame, whose vector was added, in one of a group's clusters; return the one that it is in."""
        nearest, free = self._nearest(vector, group)
        if free is not None and (variance := self._variance_with(free, vector)) is not None:
            self._absorb(free, frame, vector, variance)
            return free
        # A full cluster is no wide one, and two states that do not fit are two clusters as they are.
        if nearest is None or nearest is not free or nearest.size == 1:
            return self._found(frame, group, None if nearest is None else nearest.parent)
        if self.settings.splitting == "eager" or self.resident(nearest):
            new = self.create([frame], self._own_group(nearest))
            self._merge(nearest, [new, *(self.clusters[id] for id in nearest.waiting)])
            return next(part for part in self._cut(nearest) if frame in part.frames)
        self._counts.put_off += 1
        waiting = self.create([frame], self._own_group(nearest), nearest.id)
        nearest.lazy = True
        nearest.waiting.append(waiting.id)
        return waiting

    def _nearest(self, vector: Tensor, group: int | None) -> tuple[Cluster | None, Cluster | None]:
        """Return the most similar cluster of a group (None: of all), and the most similar one that is not full."""
        if not len(self.index):
            return None, None
        cosines, facts = self.index.cosines(vector), self.index.facts
        if group is not None:
            cosines = cosines.masked_fill(facts[:, 4] != group, -torch.inf)
        nearest = self._best(cosines)
        if nearest is None or self._largest is None or nearest.size < self._largest:
            return nearest, nearest
        return nearest, self._best(cosines.masked_fill(facts[:, 0] >= self._largest, -torch.inf))

    def _best(self, cosines: Tensor) -> Cluster | None:
        slot = int(cosines.argmax())
        return None if cosines[slot] == -torch.inf else self.clusters[self.index.ids[slot]]

    def _variance_with(self, cluster: Cluster, vector: Tensor) -> float | None:
        """Return a cluster's variance with one more state; None if it would be too wide (Mosaic, VI-A)."""
        mean = self.index.mean(cluster.id)[: self.width]
        _, variance = add_to_statistics(vector[: self.width], mean, cluster.variance, cluster.size)
        return variance if variance <= self._bound(cluster.size) else None

    def _fits(self, vectors: Tensor) -> bool:
        """Return whether states [n, width + extra] may be one cluster."""
        if self._largest is not None and len(vectors) > self._largest:
            return False
        return variance_of(vectors[:, : self.width]) <= self._bound(len(vectors) - 1)

    def _bound(self, size: int) -> float:
        return self.settings.threshold(size) * self.spread.variance if self._watched else math.inf

    def _absorb(self, cluster: Cluster, frame: int, vector: Tensor, variance: float) -> None:
        mean = self.index.mean(cluster.id)
        moved = mean + (vector - mean) / (cluster.size + 1)
        cluster.frames.append(frame)
        self.home[frame] = cluster.id
        cluster.variance = variance
        self.index.add_frame(cluster.id, moved, frame)
        self._counts.absorbed += 1
        self.release(cluster)
        self.store_member(cluster, frame)

    def _found(self, frame: int, group: int | None, parent: int | None) -> Cluster:
        """Begin a cluster of one frame; next to one that waits it waits for the same."""
        new = self.create([frame], group, parent)
        if parent is None:
            self._counts.founded += 1
            self.store_member(new, frame)
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
        self.store_member(cluster, cluster.frames[0])

    def refine(self, id: int) -> None:
        """Cut a cluster that is on the device now, if its cut was put off."""
        cluster = self.clusters.get(id)
        if cluster is not None and cluster.lazy:
            self._merge(cluster, [self.clusters[waiting] for waiting in cluster.waiting])
            self._cut(cluster)

    def _merge(self, cluster: Cluster, others: list[Cluster]) -> None:
        for other in others:
            self.merge_members(cluster, other)
            cluster.frames += other.frames
            self.home.update(dict.fromkeys(other.frames, cluster.id))
            self.remove(other.id)
            vectors = self.vectors.of(cluster.frames)
            cluster.variance = variance_of(vectors[:, : self.width])
            self.index.put(cluster.id, vectors.mean(0), cluster.frames, cluster.group)
        cluster.waiting, cluster.lazy = [], False

    def _cut(self, cluster: Cluster) -> list[Cluster]:
        sides = cut_in_two(self.vectors.of(cluster.frames)[:, : self.width])
        self._counts.cuts += 1
        group = self._own_group(cluster)
        return self.divide(cluster, [([cluster.frames[index] for index in side], group) for side in sides])

    def divide(self, cluster: Cluster, parts: Sequence[tuple[list[int], int | None]]) -> list[Cluster]:
        """Put clusters of some frames and groups in a cluster's place; what waits for it waits no longer."""
        for id in list(cluster.waiting):
            self.release(self.clusters[id])
        self.remove(cluster.id)
        made = [self.create(frames, group) for frames, group in parts]
        self.divide_members(cluster, made)
        return made

    def state(self) -> StreamState:
        """Return the state for a file: clusters in the order of their rows in the index."""
        clusters = [asdict(self.clusters[id]) for id in self.index.ids]
        tensors = {"means": self.index.means if clusters else torch.zeros(0)}
        if self._centre is not None:
            tensors["centre"] = self._centre
        state = StreamState(tensors, {"clusters": clusters, "next": self._next})
        state.put("vectors", self.vectors.state())
        state.put("spread", self.spread.state())
        return state

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state; no frame has come yet."""
        self.vectors.restore(state.part("vectors"))
        self.spread.restore(state.part("spread"))
        self._next = state.facts["next"]
        if "centre" in state.tensors:
            self._set_centre(state.tensors["centre"])
        for facts, mean in zip(state.facts["clusters"], state.tensors["means"], strict=True):
            cluster = Cluster(**facts)
            self.clusters[cluster.id] = cluster
            self.home.update(dict.fromkeys(cluster.frames, cluster.id))
            self.index.put(cluster.id, mean, cluster.frames, cluster.group)


class SemanticLevel(ClusterLevel):
    """Clusters of one layer, inside the visual ones; their members' rows are on the host, or wait on the device.

    Attributes:
        store: the members' blocks.
        parts: of a frame, each with a mean key of its own.
        quantized: centroids on the device.
        waiting: frame to its line on the device: frames that wait, and those before the first partition.
        fetched: clusters whose rows were copied to the device since a block ended or a question was answered.
    """

    def __init__(
        self,
        settings: AblationSettings,
        layout: LayerLayout,
        store: BlockStore,
        counts: MaintenanceCounts,
        device: torch.device,
    ) -> None:
        width, self.parts = matched_width(layout), min(settings.parts, store.tokens)
        values = (0, 0) if layout.kind == "latent" else layout.values
        self.quantized = QuantizedCentroids(self.parts, (layout.keys[0], width // layout.keys[0]), values, device)
        index = CentroidIndex(self.parts * width, layout.features - width, self.quantized)
        watched = settings.levels in ("both", "semantic")
        super().__init__(settings, counts, index, self.parts * width, settings.largest, watched)
        self.store, self._device = store, device
        self.waiting: dict[int, Tensor] = {}
        self.fetched: set[int] = set()

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on the device by what they are for."""
        return {"index": self.quantized.bytes, "waiting": sum(line.nbytes for line in self.waiting.values())}

    def hold(self, frame: int, line: Tensor, vector: Tensor) -> None:
        """Take a frame's line [features] and vector, before it is taken into a cluster."""
        self.add_vector(frame, vector)
        # A view would keep the rows of all frames that left together.
        self.waiting[frame] = line.clone()

    def take(self, frame: int, vector: Tensor, group: int | None = None) -> Cluster:
        cluster = super().take(frame, vector, group)
        while len(self.waiting) > self.settings.waiting:
            oldest = next(iter(self.waiting))
            self.release(self.clusters[self.home[oldest]])
        return cluster

    def construct(self, groups: Sequence[tuple[int, list[int]]]) -> None:
        """Make the first partition, inside each visual cluster: its number and its frames."""
        for cluster in self.partition(groups):
            self.store.append(cluster.id, torch.stack([self.waiting.pop(frame) for frame in cluster.frames]))

    def move(self, group: int, homes: dict[int, int]) -> int:
        """Follow the end of a visual cluster: `homes` has the visual cluster of each of its frames now.

        Returns:
            How many clusters were divided for it.
        """
        clusters = [cluster for cluster in self.clusters.values() if cluster.group == group]
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

    def resident(self, cluster: Cluster) -> bool:
        return cluster.id in self.fetched

    def store_member(self, cluster: Cluster, frame: int) -> None:
        self.store.append(cluster.id, self.waiting.pop(frame)[None])

    def merge_members(self, cluster: Cluster, other: Cluster) -> None:
        self.store_member(cluster, other.frames[0])

    def divide_members(self, cluster: Cluster, parts: list[Cluster]) -> None:
        lines = {frame: index for index, frame in enumerate(cluster.frames)}
        self.store.divide(cluster.id, {part.id: [lines[frame] for frame in part.frames] for part in parts})
        self.fetched.discard(cluster.id)

    def lines_of(self, frames: Sequence[int]) -> Tensor:
        """Return lines [frames, features] of frames on the host, wherever they are; no transfer is counted."""
        cpu = torch.device("cpu")
        blocks = {id: self.store.copy(id, cpu) for id in {self.home[frame] for frame in frames} if id in self.store}
        lines = []
        for frame in frames:
            cluster = self.clusters[self.home[frame]]
            waits = frame in self.waiting
            lines.append(self.waiting[frame].to(cpu) if waits else blocks[cluster.id][cluster.frames.index(frame)])
        return torch.stack(lines)

    def state(self) -> StreamState:
        lines = {str(frame): line for frame, line in self.waiting.items()}
        state = StreamState(lines, {"waiting": list(self.waiting)})
        state.put("level", super().state())
        state.put("host", self.store.state())
        return state

    def restore(self, state: StreamState) -> None:
        super().restore(state.part("level"))
        self.store.restore(state.part("host"))
        self.waiting = {frame: state.tensors[str(frame)].to(self._device) for frame in state.facts["waiting"]}


class VisualLevel(ClusterLevel):
    """Clusters by what the vision tower saw, shared by all layers; what is cut here is divided in every layer.

    Attributes:
        divided: semantic clusters that were divided because their visual one was cut.
    """

    def __init__(
        self, settings: AblationSettings, width: int, layers: Sequence[SemanticLevel], counts: MaintenanceCounts
    ) -> None:
        watched = settings.levels in ("both", "visual")
        super().__init__(settings, counts, CentroidIndex(width, 0, None), width, None, watched)
        self.divided = 0
        self._layers = layers

    def construct(self) -> list[tuple[int, list[int]]]:
        """Make the first partition; return number and frames of every cluster."""
        return [(cluster.id, cluster.frames) for cluster in self.partition([(None, sorted(self.home))])]

    def fetched(self) -> set[int]:
        """Return the clusters of which a layer's last reading copied rows to the device."""
        groups: set[int] = set()
        for layer in self._layers:
            groups |= {layer.clusters[id].group for id in layer.fetched if id in layer.clusters}
        return groups

    def resident(self, cluster: Cluster) -> bool:
        return cluster.id in self.fetched()

    def _own_group(self, cluster: Cluster) -> None:
        return None

    def store_member(self, cluster: Cluster, frame: int) -> None:
        """Store nothing: embeddings are the level's vectors."""

    def merge_members(self, cluster: Cluster, other: Cluster) -> None:
        self._move(other.id, dict.fromkeys(other.frames, cluster.id))

    def divide_members(self, cluster: Cluster, parts: list[Cluster]) -> None:
        self._move(cluster.id, {frame: part.id for part in parts for frame in part.frames})

    def _move(self, group: int, homes: dict[int, int]) -> None:
        self.divided += sum(layer.move(group, homes) for layer in self._layers)

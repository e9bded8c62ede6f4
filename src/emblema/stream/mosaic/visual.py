"""The visual level: clusters of frames by what the vision tower saw, shared by all layers."""

from collections.abc import Sequence

from torch import Tensor

from emblema.stream.mosaic.clusters import Cluster
from emblema.stream.mosaic.constructor import partition
from emblema.stream.mosaic.layer import LayerMemory
from emblema.stream.mosaic.level import Level
from emblema.stream.mosaic.maintainer import Maintainer, Upkeep
from emblema.stream.settings import StreamSettings


class VisualMemory:
    """Visual clusters; what is cut here is divided in every layer.

    Attributes:
        level: the clusters.
        divided: semantic clusters that were divided because their visual one was cut.
    """

    def __init__(self, settings: StreamSettings, width: int, layers: Sequence[LayerMemory], upkeep: Upkeep) -> None:
        self.level = Level(settings, width, 0, False)
        self.maintainer = Maintainer(self.level, settings, self, upkeep)
        self.divided = 0
        self._layers = layers

    def construct(self) -> list[tuple[int, list[int]]]:
        """The first partition: number and frames of every cluster."""
        level = self.level
        frames = sorted(frame for cluster in level.clusters.values() for frame in cluster.frames)
        for id in list(level.clusters):
            level.remove(id)
        parts = partition(level.vectors.of(frames), level.fits)
        made = [level.found([frames[index] for index in part]) for part in parts]
        return [(cluster.id, cluster.frames) for cluster in made]

    def wait(self, frame: int, vector: Tensor) -> int:
        """A frame is a cluster of its own until the first partition; its number."""
        self.level.note(frame, vector)
        return self.level.found([frame]).id

    def take(self, frame: int, vector: Tensor) -> int:
        """A frame goes into a cluster; the number of the one that it lies in."""
        self.level.note(frame, vector)
        return self.maintainer.take(frame, vector).id

    def fetched(self) -> set[int]:
        """Clusters of which a layer's last reading brought rows to the device."""
        found: set[int] = set()
        for layer in self._layers:
            clusters = layer.level.clusters
            found |= {clusters[id].group for id in layer.fetched if id in clusters}
        return found

    def resident(self, cluster: Cluster) -> bool:
        return cluster.id in self.fetched()

    def kept(self, cluster: Cluster, frame: int) -> None:
        """Embeddings lie with the level's vectors already."""

    def joined(self, cluster: Cluster, other: Cluster) -> None:
        self._move(other.id, dict.fromkeys(other.frames, cluster.id))

    def cut(self, cluster: Cluster, parts: list[Cluster]) -> None:
        self._move(cluster.id, {frame: part.id for part in parts for frame in part.frames})

    def _move(self, group: int, homes: dict[int, int]) -> None:
        self.divided += sum(layer.move(group, homes) for layer in self._layers)

"""The level of clusters that all layers share."""

from collections.abc import Sequence

from torch import Tensor

from emblema.stream.lines import LineField
from emblema.stream.mosaic.centroids import VECTORS, CentroidIndex, FrameVectors
from emblema.stream.mosaic.clusters import Cluster
from emblema.stream.mosaic.level import ClusterLevel, MaintenanceCounts, SemanticLevel
from emblema.stream.settings import AblationSettings
from emblema.stream.state import StreamState


class VisualLevel(ClusterLevel):
    """Clusters by what the vision tower saw, shared by all layers; what is cut here is divided in every layer.

    Attributes:
        divided: semantic clusters that were divided because their visual one was cut.
    """

    grouped = False

    def __init__(
        self, settings: AblationSettings, width: int, layers: Sequence[SemanticLevel], counts: MaintenanceCounts
    ) -> None:
        watched = settings.levels in ("both", "visual")
        super().__init__(settings, counts, CentroidIndex(width, None), None, watched)
        self.divided = 0
        self._layers, self._width, self._vectors = layers, width, FrameVectors()

    @property
    def bytes(self) -> int:
        """Bytes on the host."""
        return self.index.bytes + self._vectors.bytes

    def add(self, frames: range, embeddings: Tensor, live: Sequence[int]) -> None:
        """Add frames: mean embeddings [frames, width]; `live` are those that were not forgotten."""
        for frame, vector in zip(frames, self._normed(embeddings), strict=True):
            self._vectors.add(frame, vector)
        for vector in self.vectors_of(live):
            self.spread.add(vector)

    def clear(self, frames: Tensor) -> None:
        self._vectors.clear(frames)

    def drop(self, until: int) -> None:
        self._vectors.drop(until)

    def vectors_of(self, frames: Sequence[int]) -> Tensor:
        return self._vectors.of(list(frames))

    def construct(self) -> list[tuple[int, list[int]]]:
        """Make the first partition; return number and frames of every cluster."""
        return [(cluster.id, cluster.frames) for cluster in self.partition([(None, sorted(self.home))])]

    def _own_group(self, cluster: Cluster) -> None:
        return None

    def _merging(self, cluster: Cluster, other: Cluster) -> None:
        self._move(other.id, dict.fromkeys(other.frames, cluster.id))

    def _divided(self, cluster: Cluster, parts: list[Cluster]) -> None:
        super()._divided(cluster, parts)
        self._move(cluster.id, {frame: part.id for part in parts for frame in part.frames})

    def _move(self, group: int, homes: dict[int, int]) -> None:
        self.divided += sum(layer.move(group, homes) for layer in self._layers)

    @property
    def fields(self) -> list[LineField]:
        return [LineField((self._width,), VECTORS)]

    def index_of(self, frames: range) -> list[Tensor]:
        return [self._vectors.index_of(frames)]

    def restore(self, state: StreamState, first: int, vectors: Tensor) -> None:
        """Go on from a saved state, and the vectors of frames from `first` on."""
        self._vectors.restore(first, vectors)
        self.restore_clusters(state)

"""One layer of the memory: semantic clusters, their members' rows on the host, and those that wait on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout
from emblema.stream.host import HostRows
from emblema.stream.mosaic.clusters import Cluster
from emblema.stream.mosaic.constructor import partition
from emblema.stream.mosaic.level import Level
from emblema.stream.mosaic.maintainer import Maintainer, Upkeep
from emblema.stream.mosaic.short import Short
from emblema.stream.saved import Saved
from emblema.stream.settings import StreamSettings
from emblema.stream.states import matched_width


class LayerMemory:
    """Semantic clusters of one layer, inside the visual ones.

    Attributes:
        level: the clusters.
        host: their blocks.
        parts: of a frame, each with a mean key of its own.
        short: representatives on the device.
        waiting: frame to its line on the device: those that wait, and those before the first partition.
        fetched: clusters whose rows were brought to the device since a block ended or a question was answered.
    """

    def __init__(
        self, settings: StreamSettings, layout: LayerLayout, host: HostRows, upkeep: Upkeep, device: torch.device
    ) -> None:
        width, self.parts = matched_width(layout), min(settings.parts, host.tokens)
        beside = (0, 0) if layout.kind == "latent" else layout.values
        self.short = Short(self.parts, (layout.keys[0], width // layout.keys[0]), beside, device)
        self.settings, self.host, self._device = settings, host, device
        self.waiting: dict[int, Tensor] = {}
        self.fetched: set[int] = set()
        self.level = Level(settings, self.parts * width, layout.features - width, True, self.short)
        self.maintainer = Maintainer(self.level, settings, self, upkeep)

    @property
    def device_bytes(self) -> dict[str, int]:
        """What it holds on the device."""
        waiting = sum(line.nbytes for line in self.waiting.values())
        return {"index": self.level.index.bytes, "waiting": waiting}

    def hold(self, frame: int, line: Tensor, vector: Tensor) -> None:
        """A frame's rows, as one line, and its vector; before it is taken into a cluster."""
        self.level.note(frame, vector)
        # A view would keep the rows of all frames that left together.
        self.waiting[frame] = line.clone()

    def wait(self, frame: int, group: int) -> None:
        """A frame is a cluster of its own until the first partition."""
        self.level.found([frame], group)

    def take(self, frame: int, vector: Tensor, group: int) -> None:
        """A frame goes into a cluster of its visual cluster."""
        self.maintainer.take(frame, vector, group)
        while len(self.waiting) > self.settings.waiting:
            oldest = next(iter(self.waiting))
            self.maintainer.release(next(one for one in self.level.clusters.values() if one.frames == [oldest]))

    def construct(self, groups: Sequence[tuple[int, list[int]]]) -> None:
        """The first partition, inside each visual cluster: its number and its frames."""
        for id in list(self.level.clusters):
            self.level.remove(id)
        self.level.settle([frame for _, frames in groups for frame in frames])
        for group, frames in groups:
            for part in partition(self.level.vectors.of(frames), self.level.fits):
                cluster = self.level.found([frames[index] for index in part], group)
                lines = torch.stack([self.waiting.pop(frame) for frame in cluster.frames])
                self.host.store(cluster.id, lines)

    def move(self, group: int, homes: dict[int, int]) -> int:
        """A visual cluster is gone: `homes` says in which one each of its frames lies now.

        Returns:
            How many clusters were divided for it.
        """
        clusters = self.level.of_group(group)
        new = {cluster.id: {homes[frame] for frame in cluster.frames} for cluster in clusters}
        for cluster in clusters:
            if cluster.parent is not None and new[cluster.id] != new[cluster.parent]:
                self.maintainer.release(cluster)
        for cluster in clusters:
            if len(new[cluster.id]) == 1:
                self.level.regroup(cluster, next(iter(new[cluster.id])))
                continue
            parts: dict[int, list[int]] = {}
            for frame in cluster.frames:
                parts.setdefault(homes[frame], []).append(frame)
            self.maintainer.divide(cluster, [(frames, home) for home, frames in parts.items()])
        return sum(len(homes) > 1 for homes in new.values())

    def resident(self, cluster: Cluster) -> bool:
        return cluster.id in self.fetched

    def kept(self, cluster: Cluster, frame: int) -> None:
        self.host.store(cluster.id, self.waiting.pop(frame)[None])

    def joined(self, cluster: Cluster, other: Cluster) -> None:
        self.kept(cluster, other.frames[0])

    def cut(self, cluster: Cluster, parts: list[Cluster]) -> None:
        place = {frame: index for index, frame in enumerate(cluster.frames)}
        self.host.cut(cluster.id, {part.id: [place[frame] for frame in part.frames] for part in parts})
        self.fetched.discard(cluster.id)

    def lines_of(self, frames: Sequence[int]) -> Tensor:
        """Lines [frames, features] of frames wherever they are, read where they lie; no transfer is counted."""
        cpu, level = torch.device("cpu"), self.level
        blocks = {id: self.host.copy(id, cpu) for id in {level.home[frame] for frame in frames} if id in self.host}
        lines = []
        for frame in frames:
            cluster = level.clusters[level.home[frame]]
            waits = frame in self.waiting
            lines.append(self.waiting[frame].to(cpu) if waits else blocks[cluster.id][cluster.frames.index(frame)])
        return torch.stack(lines)

    def saved(self) -> Saved:
        """For a file."""
        state = Saved({str(frame): line for frame, line in self.waiting.items()}, {"waiting": list(self.waiting)})
        state.put("level", self.level.saved())
        state.put("host", self.host.saved())
        return state

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved."""
        self.level.resume(saved.part("level"))
        self.host.resume(saved.part("host"))
        self.waiting = {frame: saved.tensors[str(frame)].to(self._device) for frame in saved.facts["waiting"]}

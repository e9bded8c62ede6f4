"""Where a new state goes, and when a cluster is cut (Mosaic, VI): absorb, cut now, or put off until it is fetched.

A state that makes its nearest cluster too wide leaves that cluster's statistics as they were. It waits as a cluster of
its own, which retrieval sees, and the wide one is flagged. When that one is fetched for a query, those that wait for it
are merged into it and it is cut in two. One that waits and takes a second state in has become a cluster in its own
right and waits no longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from torch import Tensor

from emblema.stream.mosaic.clusters import Cluster
from emblema.stream.mosaic.constructor import cut_in_two
from emblema.stream.mosaic.level import Level
from emblema.stream.settings import StreamSettings


@dataclass(slots=True)
class Upkeep:
    """Counts of one level, or of several together.

    Attributes:
        absorbed: states that joined a cluster.
        founded: states that began one, those that waited first not among them.
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
        """By name."""
        return {f"{prefix}_{field.name}": float(getattr(self, field.name)) for field in fields(self)}


class Keeper(Protocol):
    """Who keeps the members of a level's clusters."""

    def resident(self, cluster: Cluster) -> bool:
        """Whether all members are on the device anyhow."""

    def kept(self, cluster: Cluster, frame: int) -> None:
        """A frame has joined a cluster for good, perhaps as its first member."""

    def joined(self, cluster: Cluster, other: Cluster) -> None:
        """What waited joins the cluster that it waited for; called before the level knows."""

    def cut(self, cluster: Cluster, parts: list[Cluster]) -> None:
        """A cluster was cut; its parts have its frames."""


class Maintainer:
    """Keeps one level in order.

    Attributes:
        upkeep: counts.
    """

    def __init__(self, level: Level, settings: StreamSettings, keeper: Keeper, upkeep: Upkeep) -> None:
        self.level, self.settings, self.keeper, self.upkeep = level, settings, keeper, upkeep

    def take(self, frame: int, vector: Tensor, group: int | None = None) -> Cluster:
        """A new state, which the level has noted, goes into one of a group's clusters; the one that it lies in now."""
        level = self.level
        nearest, open_one = level.nearest(vector, group)
        grown = None if open_one is None else level.grown(open_one, vector)
        if open_one is not None and grown is not None:
            level.absorb(open_one, frame, vector, grown.variance)
            self.upkeep.absorbed += 1
            self.release(open_one)
            self.keeper.kept(open_one, frame)
            return open_one
        # A full cluster is no wide one, and one state and another that does not fit are two clusters as they are.
        if nearest is None or nearest is not open_one or nearest.size == 1:
            return self._apart(frame, group, None if nearest is None else nearest.parent)
        if self.settings.splitting == "eager" or self.keeper.resident(nearest):
            new = level.found([frame], self._group(nearest))
            self._gather(nearest, [new, *(level.clusters[one] for one in nearest.waiting)])
            return next(part for part in self._cut(nearest) if frame in part.frames)
        self.upkeep.put_off += 1
        waiting = level.found([frame], self._group(nearest), nearest.id)
        nearest.lazy = True
        nearest.waiting.append(waiting.id)
        return waiting

    def _group(self, cluster: Cluster) -> int | None:
        return cluster.group if self.level.nested else None

    def _apart(self, frame: int, group: int | None, parent: int | None) -> Cluster:
        """A cluster of its own; next to one that waits it waits for the same."""
        new = self.level.found([frame], group, parent)
        if parent is None:
            self.upkeep.founded += 1
            self.keeper.kept(new, frame)
        else:
            self.upkeep.put_off += 1
            self.level.clusters[parent].waiting.append(new.id)
        return new

    def release(self, cluster: Cluster) -> None:
        """A cluster waits no longer for another one."""
        if cluster.parent is None:
            return
        parent = self.level.clusters[cluster.parent]
        parent.waiting.remove(cluster.id)
        parent.lazy = bool(parent.waiting)
        cluster.parent = None
        self.upkeep.settled += 1
        self.keeper.kept(cluster, cluster.frames[0])

    def refine(self, id: int) -> None:
        """A cluster is on the device: if a cut was put off, do it."""
        cluster = self.level.clusters.get(id)
        if cluster is None or not cluster.lazy:
            return
        self._gather(cluster, [self.level.clusters[one] for one in cluster.waiting])
        self._cut(cluster)

    def _gather(self, cluster: Cluster, others: list[Cluster]) -> None:
        for other in others:
            self.keeper.joined(cluster, other)
            self.level.join(cluster, other)
        cluster.waiting, cluster.lazy = [], False

    def _cut(self, cluster: Cluster) -> list[Cluster]:
        level = self.level
        sides = cut_in_two(level.vectors.of(cluster.frames)[:, : level.width])
        self.upkeep.cuts += 1
        group = self._group(cluster)
        return self.divide(cluster, [([cluster.frames[index] for index in side], group) for side in sides])

    def divide(self, cluster: Cluster, parts: Sequence[tuple[list[int], int | None]]) -> list[Cluster]:
        """Put clusters of some frames and groups in a cluster's place; what waits for it waits no longer."""
        for one in list(cluster.waiting):
            self.release(self.level.clusters[one])
        self.level.remove(cluster.id)
        made = [self.level.found(frames, group) for frames, group in parts]
        self.keeper.cut(cluster, made)
        return made

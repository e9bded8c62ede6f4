"""Clusters of frames on one level, as Mosaic makes and keeps them (arXiv 2604.10060, V-B and VI).

A new state joins its nearest cluster where that stays narrow enough. Else the cluster is left as it is: the state waits
as a cluster of its own. When a frame of the wide cluster is fetched, what waits is merged into it and it is cut in two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emblema.stream.mosaic.bisecting import second_sides

TAU_SMALL, TAU_LARGE, SCALE = 0.07, 0.2, 8.0
"""Variance allowed to a small and to a large cluster, as a share of its level's, and how many frames are large."""
EQUAL = 4e-4
"""Variance, as a share of the squared length of a level's mean state, that is none: such states are nearly equal."""


@dataclass(slots=True)
class Cluster:
    """Frames that belong together.

    Attributes:
        id: its number, never used again.
        group: the visual cluster that it lies in; its own id at the visual level.
        frames: its members.
        mean: of their states, [width].
        variance: mean squared distance of their states from the mean.
        waiting: clusters that came to it since it grew too wide.
        parent: the cluster that this one waits for.
    """

    id: int
    group: int
    frames: list[int]
    mean: Tensor
    variance: float
    waiting: list[int] = field(default_factory=list)
    parent: int | None = None


class RunningVariance:
    """Mean and variance of states as they come: μ' = μ + (x - μ) / (n + 1), σ²' = (n σ² + (x - μ)·(x - μ')) / (n + 1).

    Attributes:
        mean: None before the first.
    """

    def __init__(self) -> None:
        self.count, self.variance = 0, 0.0
        self.mean: Tensor | None = None

    def add(self, vector: Tensor) -> None:
        """Add a state [width]."""
        mean = torch.zeros_like(vector) if self.mean is None else self.mean
        self.mean, variance = with_one_more(vector, mean, self.variance, self.count)
        self.variance, self.count = max(0.0, variance), self.count + 1


class ClusterLevel:
    """Clusters of frames by states of length one.

    Args:
        largest: frames that a cluster may have; None for any number.
        watched: whether clusters may grow too wide.
        inner: levels whose clusters lie inside this one's, and are divided as this one's are.

    Attributes:
        clusters: by id.
        home: the cluster of each frame.
        touched: clusters of which a frame was fetched since a block ended or a question was answered.
        counts: states that joined a cluster, states that waited, and cuts.
    """

    def __init__(self, largest: int | None, watched: bool, inner: Sequence["ClusterLevel"] = ()) -> None:
        self.clusters: dict[int, Cluster] = {}
        self.home: dict[int, int] = {}
        self.touched: set[int] = set()
        self.counts = {"absorbed": 0, "put_off": 0, "cuts": 0}
        self._largest, self._watched, self._inner = largest, watched, inner
        self._states: dict[int, Tensor] = {}
        self._spread, self._next = RunningVariance(), 0

    def add(self, frame: int, vector: Tensor) -> None:
        """Take the state [width] of a frame, which is in no cluster yet."""
        self._states[frame] = torch.nn.functional.normalize(vector, dim=0)
        self._spread.add(self._states[frame])

    def create(self, frames: Sequence[int], group: int | None = None, parent: int | None = None) -> Cluster:
        """Return a new cluster of frames; without a group it is its own."""
        id, self._next = self._next, self._next + 1
        states = self._states_of(frames)
        mean, variance = states.mean(0), variance_of(states)
        self.clusters[id] = cluster = Cluster(
            id, id if group is None else group, list(frames), mean, variance, [], parent
        )
        self.home.update(dict.fromkeys(frames, id))
        return cluster

    def partition(self, groups: Sequence[tuple[int | None, list[int]]]) -> list[Cluster]:
        """Make the first partition in place of all clusters, inside each group: its number (None: its own), frames."""
        self.clusters.clear()
        made = []
        for group, frames in groups:
            parts = [frames]
            while parts:
                part = parts.pop()
                if len(part) == 1 or self._fits(self._states_of(part)):
                    made.append(self.create(part, group))
                else:
                    parts += self._sides(part)
        return made

    def take(self, frame: int, group: int | None = None) -> Cluster:
        """Put a new frame in one of a group's clusters (None: of all); return the one that it is in."""
        state = self._states[frame]
        near = [own for own in self.clusters.values() if group in (None, own.group)]
        if near:
            away = (torch.stack([own.mean for own in near]) - state).square().sum(1)
            near = [near[place] for place in away.argsort(stable=True).tolist()]
        nearest = near[0] if near else None
        free = next((own for own in near if self._largest is None or len(own.frames) < self._largest), None)
        if free is not None and self._absorb(free, frame, state):
            return free
        # A full cluster is not cut, and two states that do not fit are two clusters as they are.
        if nearest is None or nearest is not free or len(nearest.frames) == 1:
            return self._begin(frame, group, None if nearest is None else nearest.parent)
        if nearest.id in self.touched:
            self._merge(nearest, [self.create([frame], group), *map(self.clusters.__getitem__, nearest.waiting)])
            return next(part for part in self._cut(nearest) if frame in part.frames)
        return self._begin(frame, group, nearest.id)

    def refine(self) -> None:
        """Cut the clusters of which a frame was fetched, where a cut was put off."""
        for id in sorted(self.touched):
            cluster = self.clusters.get(id)
            if cluster is not None and cluster.waiting:
                self._merge(cluster, [self.clusters[waiting] for waiting in cluster.waiting])
                self._cut(cluster)

    def move(self, group: int, homes: dict[int, int]) -> None:
        """Follow the end of a cluster of the level outside: `homes` has that which each of its frames is in now."""
        clusters = [own for own in self.clusters.values() if own.group == group]
        new = {own.id: {homes[frame] for frame in own.frames} for own in clusters}
        for own in clusters:
            if own.parent is not None and new[own.id] != new[own.parent]:
                self._release(own)
        for own in clusters:
            if len(new[own.id]) == 1:
                own.group = next(iter(new[own.id]))
                continue
            parts: dict[int, list[int]] = {}
            for frame in own.frames:
                parts.setdefault(homes[frame], []).append(frame)
            self._divide(own, [(frames, home) for home, frames in parts.items()])

    def _states_of(self, frames: Sequence[int]) -> Tensor:
        return torch.stack([self._states[frame] for frame in frames])

    def _fits(self, states: Tensor) -> bool:
        """Return whether states [n, width] may be one cluster."""
        if self._largest is not None and len(states) > self._largest:
            return False
        return variance_of(states) <= self._bound(len(states) - 1)

    def _bound(self, size: int) -> float:
        """Return the variance allowed to a cluster of so many frames and one more (equation 5)."""
        if not self._watched or self._spread.mean is None:
            return math.inf
        allowed = TAU_LARGE - (TAU_LARGE - TAU_SMALL) * math.exp(-size / SCALE)
        return max(EQUAL * float(self._spread.mean.square().sum()), allowed * self._spread.variance)

    def _absorb(self, cluster: Cluster, frame: int, state: Tensor) -> bool:
        """Put a frame in a cluster if that stays narrow enough; return whether."""
        size = len(cluster.frames)
        mean, variance = with_one_more(state, cluster.mean, cluster.variance, size)
        if variance > self._bound(size):
            return False
        cluster.mean, cluster.variance = mean, variance
        cluster.frames.append(frame)
        self.home[frame] = cluster.id
        self.counts["absorbed"] += 1
        self._release(cluster)
        return True

    def _begin(self, frame: int, group: int | None, parent: int | None) -> Cluster:
        """Begin a cluster of one frame, which may wait for another one."""
        new = self.create([frame], group, parent)
        if parent is not None:
            self.counts["put_off"] += 1
            self.clusters[parent].waiting.append(new.id)
        return new

    def _release(self, cluster: Cluster) -> None:
        """Let a cluster wait no longer for another one."""
        if cluster.parent is not None:
            self.clusters[cluster.parent].waiting.remove(cluster.id)
            cluster.parent = None

    def _merge(self, cluster: Cluster, others: Sequence[Cluster]) -> None:
        for other in others:
            for level in self._inner:
                level.move(other.id, dict.fromkeys(other.frames, cluster.id))
            cluster.frames += other.frames
            self.home.update(dict.fromkeys(other.frames, cluster.id))
            del self.clusters[other.id]
        cluster.waiting = []

    def _cut(self, cluster: Cluster) -> list[Cluster]:
        self.counts["cuts"] += 1
        group = None if self._inner else cluster.group
        made = self._divide(cluster, [(side, group) for side in reversed(self._sides(cluster.frames))])
        for level in self._inner:
            level.move(cluster.id, {frame: part.id for part in made for frame in part.frames})
        return made

    def _sides(self, frames: Sequence[int]) -> list[list[int]]:
        """Return the frames of both sides of a cut, the second side first."""
        second = second_sides(self._states_of(frames)[None], torch.tensor([len(frames)]))[0].tolist()
        return [[frame for frame, own in zip(frames, second, strict=True) if own is side] for side in (True, False)]

    def _divide(self, cluster: Cluster, parts: Sequence[tuple[list[int], int | None]]) -> list[Cluster]:
        """Put clusters of some frames and groups in a cluster's place; what waits for it waits no longer."""
        for id in list(cluster.waiting):
            self._release(self.clusters[id])
        self.touched.discard(cluster.id)
        del self.clusters[cluster.id]
        return [self.create(frames, group) for frames, group in parts]


def variance_of(states: Tensor) -> float:
    """Return the mean squared distance of states [n, width] from their mean."""
    return float((states - states.mean(0)).square().sum(1).mean())


def with_one_more(state: Tensor, mean: Tensor, variance: float, size: int) -> tuple[Tensor, float]:
    """Return mean and variance of `size` states after one more state [width]."""
    away = state - mean
    moved = mean + away / (size + 1)
    return moved, (size * variance + float(away @ (state - moved))) / (size + 1)

"""Clusters of frames in one space, with the statistics that tell when one has grown too wide (Mosaic, VI-A)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from emblema.stream.saved import Saved


@dataclass(slots=True)
class Cluster:
    """Frames that belong together, at the visual level or in one layer.

    Attributes:
        id: its number, never used again.
        group: the visual cluster that it lies in; its own id at the visual level.
        frames: its members, in the order in which their rows lie in its block.
        variance: mean squared distance of its members from their mean.
        lazy: it grew too wide while it was on the host, and is cut when it is fetched.
        waiting: clusters of one frame that came to it since then.
        parent: the cluster that this one waits for.
    """

    id: int
    group: int
    frames: list[int]
    variance: float = 0.0
    lazy: bool = False
    waiting: list[int] = field(default_factory=list)
    parent: int | None = None

    @property
    def size(self) -> int:
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class Grown:
    """What a cluster's statistics would be with one more state: μ' = μ + (x - μ) / (n + 1),
    σ²' = (n σ² + (x - μ)·(x - μ')) / (n + 1)."""

    mean: Tensor
    variance: float

    @classmethod
    def by(cls, vector: Tensor, mean: Tensor, variance: float, size: int) -> "Grown":
        """A state [width] joins a cluster of `size`."""
        away = vector - mean
        moved = mean + away / (size + 1)
        return cls(moved, (size * variance + float(away @ (vector - moved))) / (size + 1))


def spread_of(vectors: Tensor) -> float:
    """Mean squared distance of states [n, width] from their mean."""
    return float((vectors - vectors.mean(0)).square().sum(1).mean())


class Spread:
    """The variance of all states of a level, as they come."""

    def __init__(self) -> None:
        self.count, self.variance = 0, 0.0
        self.mean: Tensor | None = None

    def add(self, vector: Tensor) -> None:
        """One more state [width]."""
        if self.mean is None:
            self.mean = torch.zeros_like(vector)
        grown = Grown.by(vector, self.mean, self.variance, self.count)
        self.mean, self.variance, self.count = grown.mean, max(0.0, grown.variance), self.count + 1

    def saved(self) -> Saved:
        """For a file."""
        return Saved({} if self.mean is None else {"mean": self.mean}, {"count": self.count, "variance": self.variance})

    def resume(self, saved: Saved) -> None:
        """Go on from what was saved."""
        mean = saved.tensors.get("mean")
        self.mean = mean
        self.count, self.variance = saved.facts["count"], saved.facts["variance"]

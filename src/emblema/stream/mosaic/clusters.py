"""Clusters of frames in one space, their running statistics, and how states are divided (Mosaic, V-B and VI-A)."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from emblema.stream.state import StreamState

ROUNDS = 16
"""Rounds of k-means, at most; a few dozen states settle in fewer."""

Fits = Callable[[Tensor], bool]
"""Whether states [n, width] may be one cluster."""


@dataclass(slots=True)
class Cluster:
    """Frames that belong together, at the visual level or in one layer.

    Attributes:
        id: its number, never used again.
        group: the visual cluster that it lies in; its own id at the visual level.
        frames: its members.
        variance: mean squared distance of its members from their mean.
        lazy: it grew too wide while it was on the host, and is cut when it is fetched.
        waiting: clusters of one frame that came to it since then.
        parent: the cluster that this one waits for.
        wide: it was merged and is wider than is allowed: it takes in no more states, none waits for it, and it is
            never cut.
    """

    id: int
    group: int
    frames: list[int]
    variance: float = 0.0
    lazy: bool = False
    waiting: list[int] = field(default_factory=list)
    parent: int | None = None
    wide: bool = False

    @property
    def size(self) -> int:
        return len(self.frames)

    def facts(self) -> dict[str, Any]:
        """Return all of it but the frames, of which there may be many."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "frames"}
        return {**own, "waiting": list(self.waiting)}


def add_to_statistics(vector: Tensor, mean: Tensor, variance: float, size: int) -> tuple[Tensor, float]:
    """Return mean and variance of `size` states after one more state [width].

    μ' = μ + (x - μ) / (n + 1), σ²' = (n σ² + (x - μ)·(x - μ')) / (n + 1).
    """
    away = vector - mean
    moved = mean + away / (size + 1)
    return moved, (size * variance + float(away @ (vector - moved))) / (size + 1)


def variance_of(vectors: Tensor) -> float:
    """Return the mean squared distance of states [n, width] from their mean."""
    return float((vectors - vectors.mean(0)).square().sum(1).mean())


def joined_statistics(
    means: tuple[Tensor, Tensor], variances: tuple[float, float], sizes: tuple[int, int]
) -> tuple[Tensor, float]:
    """Return mean and variance of the states of two clusters, from means [width] and variances of each."""
    (first, second), count = means, sum(sizes)
    away, share = second - first, sizes[1] / count
    within = (1 - share) * variances[0] + share * variances[1]
    return first + share * away, within + share * (1 - share) * float(away @ away)


class RunningVariance:
    """The variance of all states of a level, as they come."""

    def __init__(self) -> None:
        self.count, self.variance = 0, 0.0
        self.mean: Tensor | None = None

    def add(self, vector: Tensor) -> None:
        """Add a state [width]."""
        mean = torch.zeros_like(vector) if self.mean is None else self.mean
        self.mean, variance = add_to_statistics(vector, mean, self.variance, self.count)
        self.variance, self.count = max(0.0, variance), self.count + 1

    def begin(self, vectors: Tensor) -> None:
        """Begin again with states [n, width]."""
        self.count, self.variance, self.mean = len(vectors), 0.0, None
        if self.count:
            self.mean, self.variance = vectors.mean(0), variance_of(vectors)

    def state(self) -> StreamState:
        """Return the state for a file."""
        facts = {"count": self.count, "variance": self.variance}
        return StreamState({} if self.mean is None else {"mean": self.mean}, facts)

    def restore(self, state: StreamState) -> None:
        """Go on from a saved state."""
        self.mean = state.tensors.get("mean")
        self.count, self.variance = state.facts["count"], state.facts["variance"]


def cut_in_two(vectors: Tensor) -> tuple[list[int], list[int]]:
    """Return indices of two clusters of states [n, width], n >= 2, by 2-means; neither is empty.

    It begins from the state farthest from the mean and the one farthest from that: nothing is random. States that
    cannot be told apart are cut in the middle of their order.
    """
    side = second_side(vectors)
    left, right = ((side == value).nonzero().squeeze(1).tolist() for value in (False, True))
    return left, right


def second_side(vectors: Tensor) -> Tensor:
    """Return which states are on the second side of `cut_in_two`, bool [n]."""
    return second_sides(vectors[None], torch.tensor([len(vectors)]))[0]


def second_sides(vectors: Tensor, sizes: Tensor) -> Tensor:
    """Return `second_side` of many clusters at once, bool [clusters, n].

    Args:
        vectors: [clusters, n, width], the states of each, and after them what is no state.
        sizes: [clusters] states of each.
    """
    numbers, each = torch.arange(vectors.shape[1]), torch.arange(len(vectors))
    here = numbers < sizes[:, None]
    whole = (vectors * here[:, :, None]).sum(1)
    mean = whole / sizes[:, None]
    first = vectors[each, (vectors - mean[:, None]).square().sum(2).masked_fill_(~here, -1).argmax(1)]
    second = vectors[each, (vectors - first[:, None]).square().sum(2).masked_fill_(~here, -1).argmax(1)]
    middle = here & (numbers >= sizes[:, None] // 2)
    side, alike = middle, torch.zeros(len(vectors), dtype=torch.bool)
    for _ in range(ROUNDS):
        before = side
        border = (second.square().sum(1) - first.square().sum(1)) / 2
        side = ((vectors @ (second - first)[:, :, None])[:, :, 0] > border[:, None]) & here
        count = side.sum(1)
        # Once no border parts them none is looked for again.
        alike |= (count == 0) | (count == sizes)
        side[alike] = middle[alike]
        if torch.equal(side, before):
            break
        count, inside = side.sum(1, keepdim=True), (vectors * side[:, :, None]).sum(1)
        first, second = (whole - inside) / (sizes[:, None] - count).clamp_min(1), inside / count.clamp_min(1)
    return side


def partition(vectors: Tensor, fits: Fits) -> list[list[int]]:
    """Return indices of clusters of states [n, width], n >= 1: all are cut in two until each fits, or is one state."""
    open_parts, done = [list(range(len(vectors)))], []
    while open_parts:
        part = open_parts.pop()
        if len(part) == 1 or fits(vectors[part]):
            done.append(part)
            continue
        left, right = cut_in_two(vectors[part])
        open_parts += [[part[index] for index in side] for side in (right, left)]
    return sorted(done)

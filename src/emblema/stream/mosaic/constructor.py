"""The first partition: spherical k-means by bisection, until every cluster is as narrow as it has to be (Mosaic, V-B).

It starts from one cluster of all states and cuts the one that is too wide in two, again and again. Nothing is drawn by
chance: a cut begins from the state farthest from the mean's direction and the one farthest from that.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ROUNDS = 16
"""Rounds of k-means at the most; a cut of a few dozen states settles in fewer."""

Fits = Callable[[Tensor], bool]
"""Whether states [n, width] may be one cluster."""


def directions(vectors: Tensor) -> Tensor:
    """Vectors [n, width] at length one."""
    return torch.nn.functional.normalize(vectors.float(), dim=-1)


def cut_in_two(vectors: Tensor) -> tuple[list[int], list[int]]:
    """Indices of two clusters of states [n, width], n >= 2, by cosine; neither is empty.

    States that cannot be told apart are cut in the middle of their order.
    """
    unit = directions(vectors)
    first = int((unit @ directions(unit.mean(0)[None])[0]).argmin())
    second = int((unit @ unit[first]).argmin())
    centres = torch.stack((unit[first], unit[second]))
    nearest = torch.zeros(len(unit), dtype=torch.int64)
    for _ in range(ROUNDS):
        before, nearest = nearest, (unit @ centres.T).argmax(1)
        if bool((nearest == nearest[0]).all()):
            middle = len(unit) // 2
            return list(range(middle)), list(range(middle, len(unit)))
        if bool((nearest == before).all()):
            break
        centres = directions(torch.stack([unit[nearest == side].mean(0) for side in (0, 1)]))
    left, right = ((nearest == side).nonzero().squeeze(1).tolist() for side in (0, 1))
    return left, right


def partition(vectors: Tensor, fits: Fits) -> list[list[int]]:
    """Indices of the clusters of states [n, width], n >= 1; each fits, or is one state alone."""
    open_parts, done = [list(range(len(vectors)))], []
    while open_parts:
        part = open_parts.pop()
        if len(part) == 1 or fits(vectors[part]):
            done.append(part)
            continue
        left, right = cut_in_two(vectors[part])
        open_parts += [[part[index] for index in side] for side in (right, left)]
    return sorted(done)

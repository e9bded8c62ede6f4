"""2-means without chance: how states are cut in two."""

import torch
from torch import Tensor

ROUNDS = 16
"""Rounds of k-means, at most; a few dozen states settle in fewer."""


def second_sides(vectors: Tensor, sizes: Tensor) -> Tensor:
    """Cut each of many clusters in two; return which states are on the second side, bool [clusters, n].

    It begins from the state farthest from the mean and the one farthest from that: nothing is random. No side of two
    or more states is empty. States that cannot be told apart are cut in the middle of their order.

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

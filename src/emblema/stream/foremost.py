"""Which centroids are attended where there are many: those that would be attended most."""

import torch
from torch import Tensor

from emblema.kv.layout import LayerLayout
from emblema.stream.method import Means, Query


def foremost(means: Means, query: Query, layout: LayerLayout, most: int) -> Means:
    """At most so many centroids for each group: so what a question costs has an end, however many clusters there are.

    A group's mean query, head by head, attends all centroids that the group is shown, positions left out, each by its
    weight; those with the largest share, averaged over heads, stay.

    Args:
        means: of one layer.
        query: of that layer.
        layout: likewise.
        most: centroids.
    """
    if means.shown.shape[1] <= most:
        return means
    shares = _shares(means, query, layout)
    best = shares.topk(most, dim=1).indices
    shown = torch.zeros_like(means.shown).scatter_(1, best, True) & means.shown
    stay = shown.any(0).nonzero().squeeze(1)
    keys, values = (part.index_select(1, stay) for part in (means.keys, means.values))
    return Means(keys, values, means.when[stay], means.weight[stay], shown[:, stay])


def _shares(means: Means, query: Query, layout: LayerLayout) -> Tensor:
    """[groups, centroids]: what each group's mean query gives each, averaged over heads."""
    met = torch.cat((means.keys, means.values), dim=2) if layout.kind == "latent" else means.keys
    asking = query.groups[None, :] == torch.arange(query.count, device=query.groups.device)[:, None]
    weights = asking.float() / asking.sum(1, keepdim=True).clamp_min(1)
    # [key heads, groups x heads that share one, width]
    own = (weights @ query.states).reshape(query.key_heads, -1, query.count, query.states.shape[2])
    logits = own.flatten(1, 2) @ met.transpose(1, 2) + means.weight
    logits = logits.unflatten(1, (-1, query.count)).masked_fill(~means.shown, torch.finfo(logits.dtype).min)
    return torch.softmax(logits, dim=-1).mean((0, 1))

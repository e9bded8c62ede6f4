"""Which clusters a query may see, and which of them it retrieves, in two stages (Mosaic, V-C)."""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.kv.layout import LayerLayout
from emblema.stream.method import Centroids, VisibleRange
from emblema.stream.mosaic.level import SemanticLevel

Counts = NDArray[numpy.int64]


def visible_sizes(level: SemanticLevel, visible: VisibleRange) -> Counts:
    """Return the visible frames of each cluster, by its row in the index."""
    facts = level.index.facts.numpy()
    sizes = facts[:, 0].astype(numpy.int64)
    for slot in ((facts[:, 2] < visible.low) | (facts[:, 3] >= visible.high)).nonzero()[0]:
        frames = level.clusters[level.index.ids[slot]].frames
        sizes[slot] = sum(visible.low <= frame < visible.high for frame in frames)
    return sizes


def recent_clusters(level: SemanticLevel, visible: VisibleRange) -> set[int]:
    """Return the clusters with frames that are shown without retrieval: the recent window of a past moment."""
    facts = level.index.facts.numpy()
    recent = set()
    for slot in ((facts[:, 3] >= visible.recent) & (facts[:, 2] < visible.high)).nonzero()[0]:
        cluster = level.clusters[level.index.ids[slot]]
        if any(visible.recent <= frame < visible.high for frame in cluster.frames):
            recent.add(cluster.id)
    return recent


def choose(scores: Tensor, sizes: Counts, groups: Counts, budget: int | None, breadth: float) -> list[int]:
    """Return the index rows of the clusters that one query retrieves in one layer.

    Stage one scores a visual cluster by the query's product with its mean key in this layer. That is the mean of its
    semantic clusters' scores by their sizes, and needs no product of its own. Visual clusters are chosen, best first,
    until they hold `breadth` times the budget. Stage two takes semantic clusters inside them, best first, each whole
    and only where it fits; what is left of the budget then goes to the others likewise.

    Args:
        scores: [clusters].
        sizes: [clusters], visible frames of each; those without any are never chosen.
        groups: [clusters], the visual cluster of each.
        budget: frames; None for all.
        breadth: as above.
    """
    seen = (sizes > 0).nonzero()[0]
    if budget is None or int(sizes.sum()) <= budget:
        return [int(row) for row in seen]
    points = scores.double().numpy()
    _, place = numpy.unique(groups, return_inverse=True)
    totals = numpy.bincount(place, weights=sizes)
    visual = numpy.bincount(place, weights=sizes * points) / numpy.maximum(totals, 1)
    visual[totals == 0] = -numpy.inf
    order = numpy.argsort(-visual, kind="stable")
    before = numpy.cumsum(totals[order]) - totals[order]
    inside = numpy.zeros(len(totals), dtype=bool)
    inside[order[before < breadth * budget]] = True
    chosen, left = [], budget
    for row in seen[numpy.lexsort((-points[seen], ~inside[place[seen]]))]:
        if sizes[row] <= left:
            chosen.append(int(row))
            left -= int(sizes[row])
        if left == 0:
            break
    return chosen


def other_centroids(
    level: SemanticLevel, layout: LayerLayout, rows: int | None, visible: VisibleRange, seen: list[set[int]]
) -> Centroids:
    """Return centroids of the clusters that a group sees no row of; only of clusters that are visible as a whole.

    Args:
        rows: rows of a frame, to weight a centroid by all rows of its cluster; None to count it as one row.
        seen: for each group, the clusters that it sees rows of.
    """
    index, facts = level.index, level.index.facts
    shown = ((facts[:, 2] >= visible.low) & (facts[:, 3] < visible.high)).repeat(len(seen), 1)
    for group, own in enumerate(seen):
        shown[group, [index.slot(id) for id in own]] = False
    keys, values = level.quantized.keys(len(index)), level.quantized.values(len(index))
    if layout.kind == "latent":
        keys, values = keys.split((layout.keys[1], layout.values[1]), dim=2)
    weight = torch.zeros(len(index)) if rows is None else (facts[:, 0] * rows).log().float()
    device = keys.device
    return Centroids(keys, values, facts[:, 1].float().to(device), weight.to(device), shown.to(device))

"""What a question or a frame may see of one level's clusters, before anything is retrieved."""

import numpy
import torch
from numpy.typing import NDArray

from emblema.kv.layout import LayerLayout
from emblema.stream.method import Means, Sight
from emblema.stream.mosaic.level import Level


def sizes_in_sight(level: Level, sight: Sight) -> NDArray[numpy.int64]:
    """Frames in sight of each cluster, by its row in the index."""
    facts = level.index.facts.numpy()
    sizes = facts[:, 0].astype(numpy.int64)
    for slot in ((facts[:, 2] < sight.low) | (facts[:, 3] >= sight.high)).nonzero()[0]:
        frames = level.clusters[level.index.ids[slot]].frames
        sizes[slot] = sum(sight.low <= frame < sight.high for frame in frames)
    return sizes


def with_recent(level: Level, sight: Sight) -> set[int]:
    """Clusters that hold frames which are shown whatever is retrieved: the window of a past moment."""
    facts = level.index.facts.numpy()
    found = set()
    for slot in ((facts[:, 3] >= sight.recent) & (facts[:, 2] < sight.high)).nonzero()[0]:
        cluster = level.clusters[level.index.ids[slot]]
        if any(sight.recent <= frame < sight.high for frame in cluster.frames):
            found.add(cluster.id)
    return found


def representatives(level: Level, layout: LayerLayout, rows: int | None, sight: Sight, seen: list[set[int]]) -> Means:
    """Centroids of the clusters that a group sees no row of; none of them knows what is out of sight.

    Args:
        level: of one layer.
        layout: of that layer.
        rows: rows of a frame, for a centroid to count for all that it stands for; None has it count for one.
        seen: for each group, the clusters that it sees rows of.
    """
    index, facts = level.index, level.index.facts
    if index.short is None:
        raise TypeError("a level without representatives on the device shows none")
    shown = ((facts[:, 2] >= sight.low) & (facts[:, 3] < sight.high)).repeat(len(seen), 1)
    for group, own in enumerate(seen):
        shown[group, [index.slot(id) for id in own]] = False
    keys, values = index.short.keys(len(index)), index.short.values(len(index))
    if layout.kind == "latent":
        keys, values = keys.split((layout.keys[1], layout.values[1]), dim=2)
    weight = torch.zeros(len(index)) if rows is None else (facts[:, 0] * rows).log().float()
    device = keys.device
    return Means(keys, values, facts[:, 1].float().to(device), weight.to(device), shown.to(device))

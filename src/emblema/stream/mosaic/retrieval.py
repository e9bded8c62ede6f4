"""What a query retrieves in one layer: single frames, or whole clusters in two stages (Mosaic, V-C)."""

import math

import numpy
import torch
from numpy.typing import NDArray

from emblema.kv.layout import LayerLayout
from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.lines import FrameNumbers
from emblema.stream.method import Centroids, Query, VisibleRange
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.kernels import Asked
from emblema.stream.mosaic.level import SemanticLevel
from emblema.stream.mosaic.postings import Postings
from emblema.stream.settings import StreamSettings

Counts = NDArray[numpy.int64]
Scores = NDArray[numpy.float32]
EXACT = 2
"""Times as many frames as postings would give are all compared: that takes about as long."""


def choose_frames(
    keys: FrameKeys,
    postings: Postings | None,
    query: Query,
    visible: VisibleRange,
    settings: StreamSettings,
    gone: ForgottenFrames,
) -> list[FrameNumbers]:
    """Return the frames that each group retrieves, rising.

    Every query of every head has an order of frames, by the attention that it would give to their keys. All first
    frames come first, then all second ones, and so on; within a place in these orders, by attention. So no head that
    looks at many frames a little loses to one that looks at one frame much. With the scoring `attention` frames come
    by the most that any query gives to one of their keys, whatever its place. Keys are compared as they are (in eight
    bits): all that may be seen where there are few frames, or no postings, else those that postings find.
    """
    low, high = max(visible.low, keys.first), min(visible.recent, visible.high, keys.first + keys.count)
    budget, parts = settings.budget, keys.parts
    live = gone.count_live(low, high)
    if budget is None or live <= budget:
        return [gone.live(low, high)] * query.count
    groups = query.groups.tolist()
    asking = [row for row, group in enumerate(groups) if group >= 0]
    start, stop = (asking[0], asking[-1] + 1) if asking else (0, 0)
    # Who asks mostly follow one another.
    own = query.states[:, start:stop] if len(asking) == stop - start else query.states[:, torch.tensor(asking)]
    states = own.reshape(keys.heads, -1, keys.width)
    most = math.ceil(settings.ablation.pool * budget) * parts
    whole = (low, high) == (keys.first, keys.first + keys.count)
    askers = numpy.array([groups[row] for row in asking], dtype=numpy.int64)
    asked = Asked(askers, query.count, budget, settings.ablation.scoring != "attention")
    lists = postings if live * parts > EXACT * most else None
    if lists is not None and whole and states.device.type == "cpu":
        return [numpy.sort(own) + keys.first for own in lists.search(states, most, asked)]
    entries: Counts | None = None
    known: Scores | None = None
    if lists is not None:
        entries, known = lists.find(states.cpu(), low, high, most)
        if not whole and int((entries >= 0).sum(1).min(initial=0)) < most:
            # The lists that were visited have too little of this span.
            entries, known = None, None
    if entries is None and live < high - low:
        every = (gone.live(low, high) - keys.first)[:, None] * parts + numpy.arange(parts)
        entries = numpy.tile(every.ravel(), (keys.heads, 1))
    if entries is None:
        logits, begin = keys.logits_between(states, low - keys.first, high - keys.first), low
    else:
        logits, begin = keys.logits(states, entries), keys.first
    # Both are too small: the sum over the keys found, and that over all codes by their means.
    lines = keys.kernels.choose(logits.cpu().numpy(), known if whole else None, entries, parts, asked)
    return [numpy.sort(own) + begin for own in lines]


def choose_clusters(
    level: SemanticLevel, query: Query, visible: VisibleRange, settings: StreamSettings
) -> list[Counts]:
    """Return the index rows of the clusters that each group retrieves, by their summaries.

    One with more frames than the budget counts as just filling it.
    """
    ablation, index, summaries = settings.ablation, level.index, level.summaries
    sizes = visible_sizes(level, visible)
    if ablation.scoring == "pooled":
        scores = query.score_pooled(summaries.keys(len(index)))
    else:
        logits = summaries.logits(query.states, len(index))
        scores = query.score_by_attention(logits, torch.from_numpy(sizes).to(logits.device))
    groups = index.facts[:, 4].long().numpy()
    sizes = sizes if settings.budget is None else numpy.minimum(sizes, settings.budget)
    return [choose(own.double().cpu().numpy(), sizes, groups, settings.budget, ablation.breadth) for own in scores]


def frames_of(level: SemanticLevel, slots: Counts, visible: VisibleRange, most: int | None) -> FrameNumbers:
    """Return the frames of clusters that may be seen, rising; of one with more than `most`, so many evenly in time."""
    parts = [numpy.zeros(0, dtype=numpy.int64)]
    for slot in slots:
        own = numpy.sort(numpy.array(level.clusters[level.index.ids[slot]].frames, dtype=numpy.int64))
        own = own[(own >= visible.low) & (own < visible.high)]
        parts.append(own if most is None or len(own) <= most else own[numpy.arange(most) * len(own) // most])
    return numpy.sort(numpy.concatenate(parts))


def visible_sizes(level: SemanticLevel, visible: VisibleRange) -> Counts:
    """Return the visible frames of each cluster, by its row in the index."""
    facts = level.index.facts.numpy()
    sizes = facts[:, 0].astype(numpy.int64)
    for slot in ((facts[:, 2] < visible.low) | (facts[:, 3] >= visible.high)).nonzero()[0]:
        frames = level.clusters[level.index.ids[slot]].frames
        sizes[slot] = sum(visible.low <= frame < visible.high for frame in frames)
    return sizes


def choose(points: NDArray[numpy.float64], sizes: Counts, groups: Counts, budget: int | None, breadth: float) -> Counts:
    """Return the index rows of the clusters that one query retrieves in one layer.

    Stage one scores a visual cluster by the query's product with its mean key in this layer. That is the mean of its
    semantic clusters' scores by their sizes, and needs no product of its own. Visual clusters are chosen, best first,
    until they hold `breadth` times the budget. Stage two takes semantic clusters inside them, best first, each whole
    and only where it fits; what is left of the budget then goes to the others likewise.

    Args:
        points: [clusters], their scores.
        sizes: [clusters], visible frames of each; those without any are never chosen.
        groups: [clusters], the visual cluster of each.
        budget: frames; None for all.
        breadth: as above.
    """
    seen = (sizes > 0).nonzero()[0]
    if budget is None or int(sizes.sum()) <= budget:
        return seen
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
    return numpy.array(chosen, dtype=numpy.int64)


def other_centroids(
    level: SemanticLevel, layout: LayerLayout, rows: int | None, visible: VisibleRange, seen: list[set[int]]
) -> Centroids:
    """Return centroids of the clusters that a group sees no row of; only of clusters that are visible as a whole.

    Args:
        rows: rows of a frame, to weight a centroid by all rows of its cluster; None to count it as one row.
        seen: for each group, the clusters that it sees rows of.
    """
    index, facts, summaries = level.index, level.index.facts, level.summaries
    shown = ((facts[:, 2] >= visible.low) & (facts[:, 3] < visible.high)).repeat(len(seen), 1)
    for group, own in enumerate(seen):
        shown[group, [index.slot(id) for id in own]] = False
    keys, values = summaries.keys(len(index)), summaries.values(len(index))
    if layout.kind == "latent":
        keys, values = keys.split((layout.keys[1], layout.values[1]), dim=2)
    weight = torch.zeros(len(index)) if rows is None else (facts[:, 0] * rows).log().float()
    device = keys.device
    return Centroids(keys, values, facts[:, 1].float().to(device), weight.to(device), shown.to(device))

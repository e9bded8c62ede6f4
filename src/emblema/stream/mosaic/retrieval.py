"""What a query retrieves in one layer: single frames, or whole clusters in two stages (Mosaic, V-C)."""

import math
from itertools import islice

import numpy
import torch
from numpy.typing import NDArray

from emblema.kv.layout import LayerLayout
from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.lines import FrameNumbers
from emblema.stream.method import Centroids, Query, VisibleRange
from emblema.stream.mosaic.frame_keys import FrameKeys
from emblema.stream.mosaic.level import SemanticLevel
from emblema.stream.mosaic.postings import Postings
from emblema.stream.settings import StreamSettings

Counts = NDArray[numpy.int64]
Scores = NDArray[numpy.float32]
RANKS = 16
"""Places of a query's order that are looked at one after the other; where more are asked for they are sorted."""
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
    live = sum(map(len, gone.live_runs(range(low, high))))
    if budget is None or live <= budget:
        return [gone.live(low, high)] * query.count
    groups = query.groups.cpu().numpy()
    asking = numpy.flatnonzero(groups >= 0)
    rows = numpy.tile(groups[asking], query.states.shape[0] // keys.heads)
    states = query.states[:, torch.from_numpy(asking)].reshape(keys.heads, -1, keys.width)
    most = math.ceil(settings.ablation.pool * budget) * parts
    whole = (low, high) == (keys.first, keys.first + keys.count)
    entries: Counts | None = None
    known: Scores | None = None
    if postings is not None and live * parts > EXACT * most:
        entries, known = postings.find(states.cpu(), low, high, most)
        if not whole and int((entries >= 0).sum(1).min(initial=0)) < most:
            # The lists that were visited have too little of this span.
            entries, known = None, None
    if entries is None and live < high - low:
        lines = (gone.live(low, high) - keys.first)[:, None] * parts + numpy.arange(parts)
        entries = numpy.broadcast_to(lines.ravel(), (keys.heads, lines.size))
    if entries is None:
        logits = keys.logits_between(states, low - keys.first, high - keys.first)
    else:
        logits = keys.logits(states, entries)
    compared = logits.cpu().numpy()
    if entries is not None:
        for own, found in zip(compared, (entries >= 0).sum(1).tolist(), strict=True):
            own[:, found:] = -numpy.inf
    mass = keys.kernels.log_sum(compared)
    if known is not None and whole:
        # Both are too small: that of the keys found, and that of all codes by their means.
        mass = numpy.maximum(mass, known)
    order = KeyOrder(compared, mass, rows, settings.ablation.scoring != "attention")
    while True:
        places, scores = order.next(budget)
        if entries is None:
            lines = places // parts + (low - keys.first)
        else:
            lines = entries[numpy.arange(keys.heads)[:, None, None], places] // parts
        chosen = _best_lines(scores, lines, rows, query.count, budget)
        if order.ended or all(len(own) == budget for own in chosen):
            return [numpy.sort(own) + keys.first for own in chosen]


class KeyOrder:
    """The keys of every query, those that it attends most first.

    Args:
        logits: [heads, queries, keys]; overwritten.
        mass: [heads, queries], the logarithm of all that a query attends.
        groups: [queries], who asks.
        placed: count a key by its place in its query's order; else by its attention alone, and all of them at once.

    Attributes:
        ended: all keys were returned.
    """

    def __init__(self, logits: Scores, mass: Scores, groups: Counts, placed: bool) -> None:
        self.ended = False
        self._logits, self._mass, self._placed = logits, mass[:, :, None], placed
        self._each = math.ceil(len(groups) * logits.shape[0] / max(1, int(groups.max(initial=0)) + 1))
        # By query of each head and rank.
        shape = (logits.shape[0] * logits.shape[1], min(RANKS, logits.shape[2]))
        self._places, self._values = numpy.empty(shape, dtype=numpy.int64), numpy.empty(shape, dtype=numpy.float32)
        self._ranks = 0

    def next(self, budget: int) -> tuple[Counts, Scores]:
        """Return places [heads, queries, n] of the first keys, and a score of each, the lowest best; inf is none.

        Every call returns more, until all were returned.

        Args:
            budget: keys that each group needs.
        """
        known, count = self._ranks, self._logits.shape[2]
        if known >= RANKS or not self._placed:
            return self._sorted()
        more = min(RANKS - known, 2 if known else 1 + math.ceil(budget / max(1, self._each)), count - known)
        flat = self._logits.reshape(-1, count)
        every, starts = flat.reshape(-1), numpy.arange(0, flat.size, count)
        for rank in range(known, known + more):
            best = flat.argmax(1)
            self._places[:, rank] = best
            best += starts
            self._values[:, rank] = every[best]
            every[best] = -numpy.inf
        self._ranks = known + more
        self.ended = self._ranks == count
        return self._scored(self._places[:, : self._ranks], self._values[:, : self._ranks])

    def _sorted(self) -> tuple[Counts, Scores]:
        flat = self._logits.reshape(-1, self._logits.shape[2])
        # Last ones first: where none was left a place that was returned before came again.
        for rank in reversed(range(self._ranks)):
            flat[numpy.arange(len(flat)), self._places[:, rank]] = self._values[:, rank]
        self.ended = True
        order = numpy.argsort(-flat, axis=1, kind="stable")
        return self._scored(order, numpy.take_along_axis(flat, order, 1))

    def _scored(self, places: Counts, values: Scores) -> tuple[Counts, Scores]:
        heads, queries, _ = self._logits.shape
        found = values.reshape(heads, queries, -1)
        scores = -numpy.exp(numpy.minimum(found - self._mass, 0))
        if self._placed:
            scores += numpy.arange(1, found.shape[2] + 1, dtype=numpy.float32)
        scores[found == -numpy.inf] = numpy.inf
        return places.reshape(found.shape), scores


def _best_lines(scores: Scores, lines: Counts, groups: Counts, count: int, budget: int) -> list[Counts]:
    """Return for each group the `budget` lines of the lowest scores, in no order; fewer where there are no more.

    Args:
        scores, lines: [heads, queries, ranks]; what has the score inf is none.
        groups: [queries], who asks.
        count: groups.
    """
    chosen = []
    for group in range(count):
        mine = slice(None) if count == 1 else groups == group
        own, found = lines[:, mine].ravel(), scores[:, mine].ravel()
        order = numpy.argsort(found, kind="stable")[: numpy.count_nonzero(found < numpy.inf)]
        known = dict.fromkeys(own[order].tolist())
        chosen.append(numpy.fromiter(islice(known, budget), dtype=numpy.int64))
    return chosen


def choose_clusters(
    level: SemanticLevel, query: Query, visible: VisibleRange, settings: StreamSettings
) -> list[Counts]:
    """Return the index rows of the clusters that each group retrieves, by their summaries."""
    ablation, index, summaries = settings.ablation, level.index, level.summaries
    sizes = visible_sizes(level, visible)
    if ablation.scoring == "pooled":
        scores = query.score_pooled(summaries.keys(len(index)))
    else:
        logits = summaries.logits(query.states, len(index))
        scores = query.score_by_attention(logits, torch.from_numpy(sizes).to(logits.device))
    groups = index.facts[:, 4].long().numpy()
    return [choose(own.double().cpu().numpy(), sizes, groups, settings.budget, ablation.breadth) for own in scores]


def frames_of(level: SemanticLevel, slots: Counts, visible: VisibleRange) -> FrameNumbers:
    """Return the frames of clusters that may be seen, rising."""
    frames = [frame for slot in slots for frame in level.clusters[level.index.ids[slot]].frames]
    found = numpy.sort(numpy.array(frames, dtype=numpy.int64))
    return found[(found >= visible.low) & (found < visible.high)]


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

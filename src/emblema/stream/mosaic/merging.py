"""Which clusters of a level are merged where there are too many: near ones of about the same age."""

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.stream.mosaic.centroids import CentroidIndex

Counts = NDArray[numpy.int64]


def surplus_pairs(index: CentroidIndex, most: int, now: int | None, grouped: bool) -> list[tuple[int, int]]:
    """Return pairs of clusters to merge, no cluster twice; none where there are at most `most`, or nothing fits.

    Clusters are divided by age, that of their last frame, into buckets: of 1 frame, 2 and 3, 4 to 7, and so on. All
    buckets may keep the same number, those that have fewer keep all. What is merged are the pairs whose merging adds
    least to the variance inside clusters (Ward), of each bucket that has more, the oldest first. Not all that have to
    be merged need be among them: the next call says more.

    Args:
        now: the frame that ages count from; None puts all in one bucket.
        grouped: merge clusters of one group alone, else any.
    """
    facts, left = index.facts.numpy(), len(index) - most
    if left <= 0:
        return []
    ages = numpy.ones(len(index)) if now is None else now - facts[:, 3]
    bucket = numpy.frexp(ages)[1]
    bucket -= bucket.min()
    counts = numpy.bincount(bucket)
    groups = facts[:, 4] if grouped else numpy.zeros(len(index))
    kept = _kept(counts, _distinct(bucket, groups, len(counts)), most)
    pairs: list[tuple[int, int]] = []
    for place in numpy.flatnonzero(counts > kept)[::-1]:
        rows = numpy.flatnonzero(bucket == place)
        own = near_pairs(index.means[torch.from_numpy(rows)], facts[rows, 0], groups[rows])
        own = own[: min(int(counts[place] - kept[place]), left)]
        pairs += [(index.ids[rows[first]], index.ids[rows[second]]) for first, second in own]
        left -= len(own)
    return pairs


def _distinct(bucket: Counts, groups: NDArray[numpy.float64], count: int) -> Counts:
    """Return the number of groups in each bucket."""
    return numpy.bincount(numpy.unique(numpy.stack((bucket, groups)), axis=1)[0].astype(numpy.int64), minlength=count)


def _kept(counts: Counts, least: Counts, most: int) -> Counts:
    """Return how many clusters each bucket keeps: the same number for all that have more, `least` of each at least."""
    shares = numpy.arange(1, counts.max() + 1)[:, None]
    kept = numpy.maximum(least, numpy.minimum(counts, shares))
    fitting = numpy.flatnonzero(kept.sum(1) <= most)
    share: Counts = kept[fitting[-1] if len(fitting) else 0]
    return share


def near_pairs(means: Tensor, sizes: NDArray[numpy.float64], groups: NDArray[numpy.float64]) -> list[tuple[int, int]]:
    """Return pairs of clusters of one group, each the other's nearest by Ward's distance, the nearest pair first.

    Args:
        means: [clusters, width].
        sizes: [clusters] members of each.
        groups: [clusters] of each.
    """
    own = means.numpy()
    squares = numpy.einsum("nw,nw->n", own, own)
    away = squares[:, None] + squares - 2 * (own @ own.T)
    # Rounding may make the two sides of a pair differ.
    away = numpy.maximum(numpy.minimum(away, away.T), 0)
    away *= (sizes[:, None] * sizes / (sizes[:, None] + sizes)).astype(numpy.float32)
    away[groups[:, None] != groups] = numpy.inf
    numpy.fill_diagonal(away, numpy.inf)
    each, nearest = numpy.arange(len(own)), away.argmin(1)
    firsts = each[(nearest[nearest] == each) & (each < nearest) & numpy.isfinite(away[each, nearest])]
    firsts = firsts[numpy.argsort(away[firsts, nearest[firsts]], kind="stable")]
    return list(zip(firsts.tolist(), nearest[firsts].tolist(), strict=True))

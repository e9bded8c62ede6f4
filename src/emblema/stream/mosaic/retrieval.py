"""Two-stage retrieval: visual clusters first, then the semantic clusters inside them (Mosaic, V-C)."""

import numpy
from numpy.typing import NDArray
from torch import Tensor

Counts = NDArray[numpy.int64]


def choose(scores: Tensor, sizes: Counts, groups: Counts, budget: int | None, breadth: float) -> list[int]:
    """Rows of the clusters that one query retrieves in one layer.

    Stage one scores a visual cluster by the query's product with its mean key in this layer; as that is the mean of its
    members' keys, it is the mean of its semantic clusters' products by their sizes, and costs no product of its own.
    Visual clusters are chosen, best first, until they hold `breadth` times the budget. Stage two takes semantic
    clusters inside them, best first, each whole and only where it fits; what is left of the budget then goes to the
    others likewise.

    Args:
        scores: [clusters], the query's products with the representatives.
        sizes: [clusters], frames of each that may be seen; those without any are never chosen.
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

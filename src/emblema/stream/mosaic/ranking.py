"""The frames that groups of queries take by the orders in which each query attends their keys."""

import numpy
from numpy.typing import NDArray

Numbers = NDArray[numpy.int64]
Scores = NDArray[numpy.float32]
BIG = float(numpy.finfo(numpy.float32).max)


def log_sum(logits: Scores, counts: Scores | None = None) -> Scores:
    """Return the logarithm of the sum of exponentials over the last axis.

    What torch does of the kind takes ten times as long where sums have numbers that are almost nothing.

    Args:
        logits: [heads, queries, n].
        counts: [heads, n], how often each is counted; once if left out.
    """
    highest = numpy.maximum(logits.max(-1, keepdims=True), -BIG)
    shares = logits - highest
    numpy.exp(shares, out=shares)
    sums = shares.sum(-1) if counts is None else (shares @ counts[:, :, None])[:, :, 0]
    with numpy.errstate(divide="ignore"):
        found: Scores = numpy.log(sums) + highest[:, :, 0]
    return found


def first_lines(
    logits: Scores, mass: Scores, lines: Numbers, groups: Numbers, count: int, budget: int
) -> list[Numbers]:
    """Return the lines that each group takes, in order; fewer than it may where there are no more.

    All first keys of its queries come first, those that get more of their query's attention before others, then all
    second ones, and so on.

    Args:
        logits: [heads, queries, n]; overwritten. -inf for no key.
        mass: [heads, queries], the logarithm of all that a query attends.
        lines: [heads, n], the line of each key.
        groups: [rows], who asks with each row. Queries of a head are those rows, once or several times over.
        count: of groups.
        budget: lines of a group.
    """
    heads, queries, keys = logits.shape
    flat, all_mass = logits.reshape(-1, keys), mass.reshape(-1)
    each, owners = numpy.arange(len(flat)), numpy.arange(heads).repeat(queries)
    asking = numpy.tile(groups, heads * queries // max(1, len(groups)))
    members = [numpy.flatnonzero(asking == group) for group in range(count)]
    chosen: list[dict[int, None]] = [{} for _ in range(count)]
    for _ in range(keys):
        best = flat.argmax(1)
        weights = numpy.minimum(flat[each, best] - all_mass, 0)
        flat[each, best] = -numpy.inf
        found = lines[owners, best]
        for own, rows in zip(chosen, members, strict=True):
            if len(own) < budget:
                order = rows[numpy.argsort(-weights[rows], kind="stable")]
                own.update(dict.fromkeys(found[order[weights[order] > -numpy.inf]].tolist()))
        if all(len(own) >= budget for own in chosen) or not numpy.isfinite(weights).any():
            break
    return [numpy.fromiter(own, dtype=numpy.int64)[:budget] for own in chosen]

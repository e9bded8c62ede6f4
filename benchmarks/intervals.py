"""Estimates with bootstrap intervals by episode."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from emblema.errors import EmblemaError

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its bootstrap interval."""

    value: float
    low: float
    high: float


def bootstrap(values: ArrayLike, episodes: ArrayLike, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the mean of `values` with a 95 % interval by episode: whole episodes are drawn with replacement.

    For a paired comparison give the differences, item by item.
    """
    return bootstrap_ratio(values, np.ones(np.shape(values)), episodes, resamples=resamples, seed=seed)


def bootstrap_ratio(
    numerators: ArrayLike,
    denominators: ArrayLike,
    episodes: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return sum(numerators) / sum(denominators) with a 95 % interval by episode, both sums from the same draws.

    Raises:
        EmblemaError: there are no items, or the arguments have different lengths.
    """
    above, below = (np.asarray(sums, dtype=np.float64) for sums in (numerators, denominators))
    names = np.asarray(episodes)
    if not len(above) or not len(above) == len(below) == len(names):
        raise EmblemaError(f"{len(above)}, {len(below)} and {len(names)} items: give as many of each, and one or more")
    _, owner = np.unique(names, return_inverse=True)
    tops, bottoms = np.bincount(owner, above), np.bincount(owner, below)
    count = len(tops)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=resamples)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (draws @ tops) / (draws @ bottoms)
        value = float(tops.sum() / bottoms.sum())
    known = ratios[np.isfinite(ratios)]
    low, high = np.quantile(known, [0.025, 0.975]) if len(known) else (np.nan, np.nan)
    return Interval(value, float(low), float(high))


def bootstrap_eta(method: ArrayLike, blind: ArrayLike, episodes: ArrayLike) -> Interval:
    """Return `eta` with its interval by episode."""
    ratio = bootstrap_ratio(method, blind, episodes)
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)

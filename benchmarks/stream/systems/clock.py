"""Times of things that are done in turns, and the ratio of two that were."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np
import torch

from benchmarks.intervals import Interval

RESAMPLES = 2000
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds on the clock, and seconds of processor time of the whole process, its threads included."""

    wall: float
    cpu: float


def timed(run: Callable[[], Made]) -> tuple[Made, Spent]:
    """Do something; what it gave, and what it took, with what it left to a GPU."""
    _awaited()
    wall, cpu = time.perf_counter(), time.process_time()
    made = run()
    _awaited()
    return made, Spent(time.perf_counter() - wall, time.process_time() - cpu)


def _awaited() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def turned(names: Sequence[Made], turn: int) -> list[Made]:
    """The names, beginning with another one each turn, so that none always comes first."""
    start = turn % len(names)
    return [*names[start:], *names[:start]]


def ratio(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Interval:
    """The median of ratios, pair by pair, with its 95 % bootstrap interval over the pairs."""
    ratios = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(ratios), size=(RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return Interval(float(np.median(ratios)), float(low), float(high))


def middle(seconds: Sequence[float]) -> float:
    """Median, in milliseconds."""
    return 1000 * median(seconds)

"""Seconds of several actions, taken in turns in one run."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import numpy as np
import torch

from benchmarks.intervals import Interval
from emblema.kv.device import wait_for

T = TypeVar("T")
Action = Callable[[], object]
"""Does something once. A float that it returns is the seconds that count; else all of it does."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long is measured.

    Attributes:
        rounds: rounds of a group of actions, at most.
        seconds: after which a group has no further round; three there are in any case, unless one took as long.
    """

    rounds: int = 9
    seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of each round, by action."""

    rounds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        """Return the median of an action's seconds."""
        return median(self.rounds[name])

    def least(self, names: tuple[str, ...]) -> str:
        """Return which of some actions is the quickest, of medians."""
        return min(names, key=self.median)

    def ratio(self, name: str, over: str) -> Interval:
        """Return the ratio of two medians, with the quartiles of the rounds' own ratios."""
        low, high = np.quantile(np.divide(self.rounds[name], self.rounds[over]), (0.25, 0.75))
        return Interval(self.median(name) / self.median(over), float(low), float(high))


def interleaved(actions: Mapping[str, Action], device: torch.device, pace: Pace) -> Seconds:
    """Do some actions in turns, from another one on in each round; the first round is not counted.

    Where that one alone takes as long as `pace` allows, it is the only one and counts.
    """
    names = list(actions)
    began = time.perf_counter()
    first = {name: _seconds(actions[name], device) for name in names}
    if time.perf_counter() - began >= pace.seconds:
        return Seconds({name: (seconds,) for name, seconds in first.items()})
    found: dict[str, list[float]] = {name: [] for name in names}
    began = time.perf_counter()
    for index in range(max(1, pace.rounds)):
        if index >= 3 and time.perf_counter() - began >= pace.seconds:
            break
        for name in turned(names, index):
            found[name].append(_seconds(actions[name], device))
    return Seconds({name: tuple(rounds) for name, rounds in found.items()})


def turned(names: Sequence[T], turn: int) -> list[T]:
    """Return the names, beginning with another one each turn, so that none always comes first."""
    start = turn % max(1, len(names))
    return [*names[start:], *names[:start]]


def _seconds(action: Action, device: torch.device) -> float:
    wait_for(device)
    began = time.perf_counter()
    own = action()
    wait_for(device)
    return own if isinstance(own, float) else time.perf_counter() - began

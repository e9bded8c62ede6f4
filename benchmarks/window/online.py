"""Placement as a window slides: a decision a step, from what was asked so far, or knowing what will be asked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from emblema.errors import PlanError
from emblema.link.policy.policy import Lane
from emblema.window.placement.problem import (
    AvailableRows,
    Candidate,
    Placement,
    PlacementLimits,
    Price,
    price_in_rows,
)
from emblema.window.placement.solver import solve_placement

HALF_LIFE = 4.0
"""Steps in which what a chunk was or will be asked for loses half of its weight."""

Trace = Sequence[Sequence[str]]
"""For every step, the ids that have to be in in the window."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A window between two steps.

    Attributes:
        order: ids in order.
        rows: what is stored, and what the rows of the chunks in `order` absorbed; nothing at first.
    """

    order: tuple[str, ...] = ()
    rows: AvailableRows = field(default_factory=lambda: AvailableRows(canonical=frozenset()))

    def after(self, placed: Placement, *, forming: bool = True) -> "Standing":
        """The window once a placement was carried out.

        Args:
            forming: a chunk that was computed behind others leaves a patch for their order.
        """
        written: dict[str, frozenset[str]] = {}
        patches = dict(self.rows.patches)
        for index, (name, lane) in enumerate(zip(placed.order, placed.lanes, strict=True)):
            before = placed.order[:index]
            written[name] = self.rows.written[name] if lane is Lane.SETTLED else frozenset(before)
            if forming and lane is Lane.FRESH:
                patches[name] = patches.get(name, frozenset()) | {before}
        return Standing(placed.order, replace(self.rows, patches=patches, written=written))


class Foresight(Protocol):
    """What it is worth to keep a chunk that a step does not ask for."""

    def __call__(self, candidate: Candidate, step: int) -> float:
        """The worth at a step, in the unit of the prices."""


@dataclass(frozen=True, slots=True)
class Recency:
    """A chunk is worth its price, halved for every `half_life` steps since it was last asked for (online)."""

    trace: Trace
    price: Price = price_in_rows
    half_life: float = HALF_LIFE

    def __call__(self, candidate: Candidate, step: int) -> float:
        past = [index for index in range(step) if candidate.id in self.trace[index]]
        return _faded(self.price(candidate, Lane.FRESH), step - past[-1], self.half_life) if past else 0.0


@dataclass(frozen=True, slots=True)
class Foreknown:
    """A chunk is worth its price, halved for every `half_life` steps until it is asked for next (offline)."""

    trace: Trace
    price: Price = price_in_rows
    half_life: float = HALF_LIFE

    def __call__(self, candidate: Candidate, step: int) -> float:
        coming = next((index for index in range(step, len(self.trace)) if candidate.id in self.trace[index]), None)
        return 0.0 if coming is None else _faded(self.price(candidate, Lane.FRESH), coming - step, self.half_life)


def advance(
    standing: Standing,
    asked: Sequence[Candidate],
    others: Sequence[Candidate],
    limits: PlacementLimits,
    worth: Callable[[Candidate], float],
    price: Price = price_in_rows,
) -> Placement:
    """One decision: the chunks asked for stand in the window; who else of those standing stays, and in which order.

    Args:
        asked: chunks that have to be in there now.
        others: sizes of the chunks that stand there already; those asked for are passed over.
        worth: what it is worth to keep one of them.

    Raises:
        CapacityError: the chunks asked for do not fit.
        PlanError: a chunk that is in the window is unknown.
    """
    sizes = {one.id: one for one in others} | {one.id: one for one in asked}
    unknown = [name for name in standing.order if name not in sizes]
    if unknown:
        raise PlanError(f"chunk {unknown[0][:12]} is in the window: give its sizes among the others")
    names = {one.id for one in asked}
    kept = [
        replace(sizes[name], worth=float("inf") if name in names else worth(sizes[name])) for name in standing.order
    ]
    new = [replace(one, worth=float("inf")) for one in asked if one.id not in standing.order]
    return solve_placement([*kept, *new], standing.rows, limits, price)


def replay(
    trace: Trace,
    sizes: Mapping[str, Candidate],
    limits: PlacementLimits,
    foresight: Foresight,
    price: Price = price_in_rows,
    *,
    begin: Standing | None = None,
    forming: bool = True,
) -> tuple[Placement, ...]:
    """A trace, a decision a step; the prices of all steps are its cost.

    Raises:
        CapacityError: a step's chunks do not fit.
        PlanError: the trace asks for a chunk of unknown size.
    """
    standing = begin or Standing()
    found = []
    for step, names in enumerate(trace):
        asked = [known(sizes, name) for name in dict.fromkeys(names)]
        others = [known(sizes, name) for name in standing.order]

        def worth(candidate: Candidate, step: int = step) -> float:
            return foresight(candidate, step + 1)

        placed = advance(standing, asked, others, limits, worth, price)
        standing = standing.after(placed, forming=forming)
        found.append(placed)
    return tuple(found)


def known(sizes: Mapping[str, Candidate], name: str) -> Candidate:
    """A chunk's sizes.

    Raises:
        PlanError: they are not given.
    """
    if name not in sizes:
        raise PlanError(f"the trace asks for chunk {name[:12]}, whose size is not given")
    return sizes[name]


def _faded(price: float, steps: int, half_life: float) -> float:
    return float(price * 0.5 ** (steps / half_life))

"""Placement as a window slides, decision by decision, and the least that a known trace can cost: a yardstick.

A decision is made from what was asked so far, or knowing what will be asked. The optimum is for a few chunks only.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations

from emblema.errors import PlanError
from emblema.link.policy.policy import Lane
from emblema.window.placement.problem import (
    AvailableRows,
    Candidate,
    Placement,
    PlacementLimits,
    PlacementProblem,
    Price,
    price_in_rows,
)
from emblema.window.placement.solver import solve_placement

HALF_LIFE = 4.0
"""Steps in which what a chunk was or will be asked for loses half of its weight."""

IdTrace = Sequence[Sequence[str]]
"""For every step, the ids that have to be in the window."""


@dataclass(frozen=True, slots=True)
class PlacedWindow:
    """A window between two steps.

    Attributes:
        order: ids in order.
        rows: what is stored, and what the rows of the chunks in `order` absorbed; nothing at first.
    """

    order: tuple[str, ...] = ()
    rows: AvailableRows = field(default_factory=lambda: AvailableRows(canonical=frozenset()))

    def after(self, placed: Placement, *, forming: bool = True) -> "PlacedWindow":
        """Return the window once a placement was carried out.

        Args:
            forming: a chunk that was computed after others leaves a patch for their order.
        """
        written: dict[str, frozenset[str]] = {}
        patches = dict(self.rows.patches)
        for index, (name, lane) in enumerate(zip(placed.order, placed.lanes, strict=True)):
            before = placed.order[:index]
            written[name] = self.rows.written[name] if lane is Lane.SETTLED else frozenset(before)
            if forming and lane is Lane.FRESH:
                patches[name] = patches.get(name, frozenset()) | {before}
        return PlacedWindow(placed.order, replace(self.rows, patches=patches, written=written))


Foresight = Callable[[Candidate, int], float]
"""What it is worth to keep a chunk that a step does not ask for, in the unit of the prices."""


@dataclass(frozen=True, slots=True)
class Recency:
    """A chunk is worth its price, halved for every `half_life` steps since it was last asked for (online)."""

    trace: IdTrace
    price: Price = price_in_rows
    half_life: float = HALF_LIFE

    def __call__(self, candidate: Candidate, step: int) -> float:
        past = [index for index in range(step) if candidate.id in self.trace[index]]
        if not past:
            return 0.0
        return float(self.price(candidate, Lane.FRESH) * 0.5 ** ((step - past[-1]) / self.half_life))


@dataclass(frozen=True, slots=True)
class Foreknown:
    """A chunk is worth its price, halved for every `half_life` steps until it is asked for next (offline)."""

    trace: IdTrace
    price: Price = price_in_rows
    half_life: float = HALF_LIFE

    def __call__(self, candidate: Candidate, step: int) -> float:
        coming = next((index for index in range(step, len(self.trace)) if candidate.id in self.trace[index]), None)
        if coming is None:
            return 0.0
        return float(self.price(candidate, Lane.FRESH) * 0.5 ** ((coming - step) / self.half_life))


def advance(
    window: PlacedWindow,
    asked: Sequence[Candidate],
    others: Sequence[Candidate],
    limits: PlacementLimits,
    worth: Callable[[Candidate], float],
    price: Price = price_in_rows,
) -> Placement:
    """Decide once: the chunks asked for are in the window; who else of those in it stays, and in which order.

    Args:
        asked: chunks that have to be in there now.
        others: sizes of the chunks that are there already; those asked for are passed over.
        worth: what it is worth to keep one of them.

    Raises:
        CapacityError: the chunks asked for do not fit.
        PlanError: a chunk that is in the window is unknown.
    """
    sizes = {chunk.id: chunk for chunk in (*others, *asked)}
    unknown = [name for name in window.order if name not in sizes]
    if unknown:
        raise PlanError(f"chunk {unknown[0][:12]} is in the window: give its sizes among the others")
    names = {chunk.id for chunk in asked}
    kept = [replace(sizes[name], worth=float("inf") if name in names else worth(sizes[name])) for name in window.order]
    new = [replace(chunk, worth=float("inf")) for chunk in asked if chunk.id not in window.order]
    return solve_placement([*kept, *new], window.rows, limits, price)


def replay(
    trace: IdTrace,
    sizes: Mapping[str, Candidate],
    limits: PlacementLimits,
    foresight: Foresight,
    price: Price = price_in_rows,
    *,
    begin: PlacedWindow | None = None,
    forming: bool = True,
) -> tuple[Placement, ...]:
    """Decide at every step of a trace; the prices of all steps are its cost.

    Raises:
        CapacityError: a step's chunks do not fit.
        PlanError: the trace asks for a chunk of unknown size.
    """
    window = begin or PlacedWindow()
    found = []
    for step, names in enumerate(trace):
        asked = [known(sizes, name) for name in dict.fromkeys(names)]
        others = [known(sizes, name) for name in window.order]

        def worth(candidate: Candidate, step: int = step) -> float:
            return foresight(candidate, step + 1)

        placed = advance(window, asked, others, limits, worth, price)
        window = window.after(placed, forming=forming)
        found.append(placed)
    return tuple(found)


def known(sizes: Mapping[str, Candidate], name: str) -> Candidate:
    """Return a chunk's sizes.

    Raises:
        PlanError: they are not given.
    """
    if name not in sizes:
        raise PlanError(f"the trace asks for chunk {name[:12]}, whose size is not given")
    return sizes[name]


STATES = 5_000
"""Windows, with what is stored, that are followed at once at most."""

NEAR = 1e-9

_Place = tuple[tuple[str, ...], frozenset[tuple[str, frozenset[str]]]]


@dataclass(frozen=True, slots=True)
class PricedWindow:
    """A window that decisions lead to, what they cost, and the patches that are stored then."""

    cost: float
    window: PlacedWindow
    stored: frozenset[tuple[str, tuple[str, ...]]]


def optimum(
    trace: IdTrace,
    sizes: Mapping[str, Candidate],
    limits: PlacementLimits,
    price: Price = price_in_rows,
    *,
    begin: PlacedWindow | None = None,
    forming: bool = True,
) -> float:
    """Return the least cost of a trace over all decisions, knowing it to the end.

    Every window that a step can leave is followed (dynamic programming over steps): the chunks asked for, any of those
    that were there, in any order. One that costs more than decisions already known is given up.

    Raises:
        CapacityError: a step's chunks do not fit.
        PlanError: the trace asks for a chunk of unknown size, or there are more than `STATES` windows to follow.
    """
    first = begin or PlacedWindow()
    most = min(
        sum(placed.cost for placed in replay(trace, sizes, limits, foresight, price, begin=begin, forming=forming))
        for foresight in (Foreknown(trace, price), Recency(trace, price))
    )
    level = [PricedWindow(0.0, first, frozenset(_flat(first)))]
    for step, names in enumerate(trace):
        later = {name for rest in trace[step + 1 :] for name in rest}
        following: dict[_Place, list[PricedWindow]] = {}
        count = 0
        asked = [known(sizes, name) for name in dict.fromkeys(names)]
        for start in level:
            for spent, after in _steps(start.window, asked, sizes, limits, price, forming):
                if start.cost + spent <= most + NEAR:
                    after = _useful(after, later)
                    place = (after.order, frozenset(after.rows.written.items()))
                    added = PricedWindow(start.cost + spent, after, frozenset(_flat(after)))
                    count += _kept(following.setdefault(place, []), added)
                if count > STATES:
                    raise PlanError(
                        f"more than {STATES} windows to follow: the optimum is for a few chunks; give fewer, or a "
                        "smaller budget"
                    )
        level = [priced for every in following.values() for priced in every]
    return min(priced.cost for priced in level)


def _kept(held: list[PricedWindow], added: PricedWindow) -> int:
    """Add a window to those of the same chunks unless another is as good; return by how many they grow."""
    if any(other.cost <= added.cost and other.stored >= added.stored for other in held):
        return 0
    before = len(held)
    held[:] = [other for other in held if not (added.cost <= other.cost and added.stored >= other.stored)]
    held.append(added)
    return len(held) - before


def _useful(window: PlacedWindow, later: set[str]) -> PlacedWindow:
    """Return the window without patches of chunks that are not asked for any more."""
    patches = {name: every for name, every in window.rows.patches.items() if name in later}
    return replace(window, rows=replace(window.rows, patches=patches))


def _flat(window: PlacedWindow) -> Iterator[tuple[str, tuple[str, ...]]]:
    return ((name, before) for name, every in window.rows.patches.items() for before in every)


def _steps(
    window: PlacedWindow,
    asked: list[Candidate],
    sizes: Mapping[str, Candidate],
    limits: PlacementLimits,
    price: Price,
    forming: bool,
) -> Iterator[tuple[float, PlacedWindow]]:
    """Yield every window that a step can leave, and its price."""
    needed = {chunk.id for chunk in asked}
    spare = [known(sizes, name) for name in window.order if name not in needed]
    for count in range(len(spare) + 1):
        for kept in combinations(spare, count):
            if count and not limits.allow(
                sum(chunk.tokens for chunk in (*asked, *kept)), sum(chunk.bytes for chunk in (*asked, *kept))
            ):
                continue
            task = PlacementProblem((*asked, *kept), window.rows, limits, price, ())
            for order in permutations(task.candidates):
                placed = task.placement(order)
                yield placed.cost, window.after(placed, forming=forming)

"""The least that a known trace can cost: the yardstick for decisions made online. For a few chunks only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from benchmarks.window.online import Foreknown, Recency, Standing, Trace, known, replay
from emblema.errors import PlanError
from emblema.window.placement.problem import Candidate, PlacementLimits, PlacementProblem, Price, price_in_rows

STATES = 5_000
"""Windows, with what is stored, that are followed at once at most."""

NEAR = 1e-9

_Place = tuple[tuple[str, ...], frozenset[tuple[str, frozenset[str]]]]


@dataclass(frozen=True, slots=True)
class _Followed:
    cost: float
    standing: Standing
    stored: frozenset[tuple[str, tuple[str, ...]]]


def optimum(
    trace: Trace,
    sizes: Mapping[str, Candidate],
    limits: PlacementLimits,
    price: Price = price_in_rows,
    *,
    begin: Standing | None = None,
    forming: bool = True,
) -> float:
    """The least cost of a trace over all decisions, knowing it to the end.

    Every window that a step can leave behind is followed (dynamic programming over steps): the chunks asked for, any of
    those that stood there, in any order. One that costs more than decisions already known is given up.

    Raises:
        CapacityError: a step's chunks do not fit.
        PlanError: the trace asks for a chunk of unknown size, or there are more than `STATES` windows to follow.
    """
    start = begin or Standing()
    most = min(
        sum(placed.cost for placed in replay(trace, sizes, limits, foresight, price, begin=begin, forming=forming))
        for foresight in (Foreknown(trace, price), Recency(trace, price))
    )
    level = [_Followed(0.0, start, frozenset(_flat(start)))]
    for step, names in enumerate(trace):
        later = {name for rest in trace[step + 1 :] for name in rest}
        following: dict[_Place, list[_Followed]] = {}
        count = 0
        asked = [known(sizes, name) for name in dict.fromkeys(names)]
        for one in level:
            for spent, after in _steps(one.standing, asked, sizes, limits, price, forming):
                if one.cost + spent <= most + NEAR:
                    after = _useful(after, later)
                    place = (after.order, frozenset(after.rows.written.items()))
                    added = _Followed(one.cost + spent, after, frozenset(_flat(after)))
                    count += _kept(following.setdefault(place, []), added)
                if count > STATES:
                    raise PlanError(
                        f"more than {STATES} windows to follow: the optimum is for a few chunks; give fewer, or a "
                        "smaller budget"
                    )
        level = [one for every in following.values() for one in every]
    return min(one.cost for one in level)


def _kept(held: list[_Followed], added: _Followed) -> int:
    """Add a window to those of the same chunks, unless one costs no more and stores no less; by how many they grow."""
    if any(one.cost <= added.cost and one.stored >= added.stored for one in held):
        return 0
    before = len(held)
    held[:] = [one for one in held if not (added.cost <= one.cost and added.stored >= one.stored)]
    held.append(added)
    return len(held) - before


def _useful(standing: Standing, later: set[str]) -> Standing:
    """The window without patches of chunks that are not asked for any more."""
    patches = {name: every for name, every in standing.rows.patches.items() if name in later}
    return replace(standing, rows=replace(standing.rows, patches=patches))


def _flat(standing: Standing) -> Iterator[tuple[str, tuple[str, ...]]]:
    return ((name, before) for name, every in standing.rows.patches.items() for before in every)


def _steps(
    standing: Standing,
    asked: list[Candidate],
    sizes: Mapping[str, Candidate],
    limits: PlacementLimits,
    price: Price,
    forming: bool,
) -> Iterator[tuple[float, Standing]]:
    """Every window that a step can leave, and its price."""
    needed = {one.id for one in asked}
    spare = [known(sizes, name) for name in standing.order if name not in needed]
    for count in range(len(spare) + 1):
        for kept in combinations(spare, count):
            if count and not limits.allow(
                sum(one.tokens for one in (*asked, *kept)), sum(one.bytes for one in (*asked, *kept))
            ):
                continue
            task = PlacementProblem((*asked, *kept), standing.rows, limits, price, ())
            for order in permutations(task.candidates):
                placed = task.placement(order)
                yield placed.cost, standing.after(placed, forming=forming)

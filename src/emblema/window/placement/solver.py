"""Solving a placement: exactly for few chunks, by a beam and a local search for many."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

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

MOST_EXACT = 11
"""Up to this many chunks that are free to move, `solve_placement` finds the optimum; beyond, it searches."""
BEAM_WIDTH = 8
"""Orders that the beam follows at a time."""
SEARCH_ROUNDS = 4
"""Passes of the local search at most."""
EPSILON = 1e-9

Order = tuple[Candidate, ...]
Ids = tuple[str, ...]


def solve_placement(
    candidates: Sequence[Candidate],
    rows: AvailableRows,
    limits: PlacementLimits | None = None,
    price: Price = price_in_rows,
    front: Sequence[Candidate] = (),
) -> Placement:
    """Choose a window's chunks and their order so that prices plus the worth of the chunks left out are least.

    Exact up to `MOST_EXACT` candidates (dynamic programming over subsets, with the order remembered only as long as a
    stored patch may still ask for it); beyond, the better of a beam and a local search, exact where it meets a bound.
    Among equals the order given is kept.

    Args:
        candidates: chunks that may be there; those of infinite worth must.
        rows: stored patches, and rows of chunks that are in the window already.
        limits: what the window may hold, `front` included.
        price: what a chunk costs in a lane.
        front: chunks that are at the front in this order and stay.

    Raises:
        CapacityError: the chunks that have to be there do not fit.
        PlanError: a chunk is given twice, or a price or limit is none.
    """
    problem = PlacementProblem(tuple(candidates), rows, limits or PlacementLimits(), price, tuple(front))
    return solve_exactly(problem) if len(problem.candidates) <= MOST_EXACT else search(problem)


@dataclass(frozen=True, slots=True)
class _Prefix:
    cost: float
    order: Order
    tokens: int
    bytes: int


def solve_exactly(problem: PlacementProblem) -> Placement:
    """Return the placement of the least total, by dynamic programming over subsets.

    What a chunk costs depends on the set before it, and on its order only while that order is the beginning of the
    antecedents of a stored patch. So a state is a set, and the order as long as some patch still asks for it: as many
    states as subsets, and one more for every beginning of a stored order.
    """
    asked = _patch_prefixes(problem)
    front = tuple(chunk.id for chunk in problem.front)
    begun = _Prefix(0.0, problem.front, sum(c.tokens for c in problem.front), sum(c.bytes for c in problem.front))
    level: dict[tuple[frozenset[str], Ids | None], _Prefix] = {
        (frozenset(front), front if front in asked else None): begun
    }
    worths = {chunk.id: chunk.worth for chunk in problem.candidates}
    best, least = begun, inf
    while level:
        following: dict[tuple[frozenset[str], Ids | None], _Prefix] = {}
        for (names, order), prefix in level.items():
            loss = sum(worth for name, worth in worths.items() if name not in names)
            if prefix.cost + loss < least:
                best, least = prefix, prefix.cost + loss
            for chunk in problem.candidates:
                if chunk.id in names:
                    continue
                tokens, size = prefix.tokens + chunk.tokens, prefix.bytes + chunk.bytes
                if not problem.limits.allow(tokens, size):
                    continue
                # Off every stored order, any order of the set will do: no patch can ask for it.
                cost = prefix.cost + problem.cheapest(chunk, [other.id for other in prefix.order])[0]
                longer = None if order is None else (*order, chunk.id)
                state = (names | {chunk.id}, longer if longer in asked else None)
                if state not in following or cost < following[state].cost:
                    following[state] = _Prefix(cost, (*prefix.order, chunk), tokens, size)
        level = following
    return problem.placement(best.order, exact=True)


def _patch_prefixes(problem: PlacementProblem) -> frozenset[Ids]:
    """Return every beginning of the antecedents of a stored patch that this problem's chunks could meet."""
    names = {chunk.id for chunk in (*problem.front, *problem.candidates)}
    found: set[Ids] = set()
    for chunk in problem.candidates:
        for before in problem.rows.patches.get(chunk.id, ()):
            if names.issuperset(before):
                found.update(before[:stop] for stop in range(len(before) + 1))
    return frozenset(found)


def search(problem: PlacementProblem) -> Placement:
    """Return the best placement found; exact where its total meets the bound that no placement can be below."""
    floor = _lower_bound(problem)
    best, least = problem.front, inf
    for order in _first_guesses(problem):
        total = problem.placement(order).total
        if total < least - EPSILON:
            best, least = order, total
        if least <= floor + EPSILON:
            return problem.placement(best, exact=True)
    for order in _beam(problem):
        total = problem.placement(order).total
        if total < least - EPSILON:
            best, least = order, total
    found = _improve(problem, best)
    return problem.placement(found, exact=problem.placement(found).total <= floor + EPSILON)


def _lower_bound(problem: PlacementProblem) -> float:
    """Bound every placement's total: all at their best, and the least worth that has to be left out for room."""
    required, optional = [*problem.front, *problem.required], problem.optional
    gains = {chunk.id: chunk.worth - problem.least_price(chunk) for chunk in optional}
    best = sum(gains.values())
    sizes: tuple[tuple[int | None, Callable[[Candidate], int]], ...] = (
        (problem.limits.bytes, lambda chunk: chunk.bytes),
        (problem.limits.tokens, lambda chunk: chunk.tokens),
    )
    for limit, size in sizes:
        if limit is not None:
            best = min(best, _fill(optional, gains, limit - sum(size(chunk) for chunk in required), size))
    needs = sum(problem.least_price(chunk) for chunk in problem.required)
    return _front_cost(problem) + needs + sum(chunk.worth for chunk in optional) - best


def _fill(
    chunks: Sequence[Candidate], gains: Mapping[str, float], room: float, size: Callable[[Candidate], int]
) -> float:
    """Return the most gain that fits into a room, with chunks that could be cut."""
    total = 0.0
    for chunk in sorted(chunks, key=lambda chunk: -gains[chunk.id] / max(size(chunk), EPSILON)):
        share = min(1.0, room / size(chunk)) if size(chunk) else 1.0
        total, room = total + share * gains[chunk.id], room - share * size(chunk)
    return total


def _front_cost(problem: PlacementProblem) -> float:
    names = [chunk.id for chunk in problem.front]
    return sum(problem.cheapest(chunk, names[:place])[0] for place, chunk in enumerate(problem.front))


def _first_guesses(problem: PlacementProblem) -> Iterator[Order]:
    """Yield orders as given: the required chunks, and of the others those that come first, or are worth the most."""
    for rank in (lambda chunk: 0, lambda chunk: -chunk.worth / max(1, chunk.bytes), lambda chunk: -chunk.worth):
        held = [*problem.front, *problem.required]
        for chunk in sorted(problem.optional, key=rank):
            if chunk.worth > 0 and problem.fits([*held, chunk]):
                held.append(chunk)
        names = {chunk.id for chunk in held}
        yield (*problem.front, *(chunk for chunk in problem.candidates if chunk.id in names))


def _beam(problem: PlacementProblem) -> Iterator[Order]:
    """Grow orders by a chunk at a time, following those that could still come to the least; yield complete ones."""
    beam: list[tuple[float, Order]] = [(_front_cost(problem), problem.front)]
    while beam:
        # By the set of chunks, the order of the least bound: bound, cost, order.
        grown: dict[frozenset[str], tuple[float, float, Order]] = {}
        for cost, order in beam:
            before = [chunk.id for chunk in order]
            missing = [chunk for chunk in problem.required if chunk.id not in before]
            if not missing:
                yield order
            for chunk in problem.candidates:
                others = (other for other in missing if other is not chunk)
                if chunk.id in before or not problem.fits((*order, chunk, *others)):
                    continue
                longer = cost + problem.cheapest(chunk, before)[0]
                names = frozenset((*before, chunk.id))
                bound = longer + _bound_rest(problem, [*before, chunk.id], names)
                if names not in grown or bound < grown[names][0]:
                    grown[names] = (bound, longer, (*order, chunk))
        best = sorted(grown.values(), key=lambda state: state[0])[:BEAM_WIDTH]
        beam = [(cost, order) for _, cost, order in best]


def _bound_rest(problem: PlacementProblem, order: Sequence[str], names: frozenset[str]) -> float:
    """Bound what the chunks that are not placed yet will cost, with the antecedents that may still be met."""
    total, rows, count = 0.0, problem.rows, len(order)
    for chunk in problem.candidates:
        if chunk.id in names:
            continue
        least = min(chunk.worth, problem.lane_price(chunk, Lane.FRESH))
        if chunk.id in rows.written and names <= rows.written[chunk.id]:
            least = min(least, problem.lane_price(chunk, Lane.SETTLED))
        if any(names <= before for before in rows.orbits.get(chunk.id, ())):
            least = min(least, problem.lane_price(chunk, Lane.ORBIT))
        if any(before[:count] == tuple(order) for before in rows.patches.get(chunk.id, ())):
            least = min(least, problem.lane_price(chunk, Lane.PATCH))
        total += least
    return total


def _improve(problem: PlacementProblem, order: Order) -> Order:
    """Return the order after moves of single chunks to another place, out, or in, as long as they help."""
    least = problem.placement(order).total
    for _ in range(SEARCH_ROUNDS):
        best = order
        for other in _neighbours(problem, order):
            total = problem.placement(other).total
            if total < least - EPSILON:
                best, least = other, total
        if best is order:
            break
        order = best
    return order


def _neighbours(problem: PlacementProblem, order: Order) -> Iterator[Order]:
    fixed = len(problem.front)
    inside = {chunk.id for chunk in order}
    for place in range(fixed, len(order)):
        rest = (*order[:place], *order[place + 1 :])
        if not order[place].required:
            yield rest
        for target in range(fixed, len(rest) + 1):
            if target != place:
                yield (*rest[:target], order[place], *rest[target:])
    for chunk in problem.candidates:
        if chunk.id not in inside and problem.fits((*order, chunk)):
            for target in range(fixed, len(order) + 1):
                yield (*order[:target], chunk, *order[target:])

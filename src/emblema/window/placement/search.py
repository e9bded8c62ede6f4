"""A good placement of a large set: a beam over orders that knows what may still be met, then a local search."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from emblema.window.placement.data import Candidate, Placement, Task

WIDTH = 8
"""Orders that the beam follows at a time."""
ROUNDS = 4
"""Passes of the local search at most."""
NEAR = 1e-9

Line = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class _State:
    """A window under way: its chunks, and what it costs with what is left at its best."""

    bound: float
    cost: float
    line: Line = field(repr=False)
    names: frozenset[str] = field(repr=False)


def searched(task: Task) -> Placement:
    """The best placement found; exact where its total meets the bound that no placement can be below."""
    floor = _floor(task)
    best: Line | None = None
    least = float("inf")
    for line in _first_guesses(task):
        total = task.placed(line).total
        if total < least - NEAR:
            best, least = line, total
        if least <= floor + NEAR:
            return task.placed(best or line, exact=True)
    for line in _beam(task):
        total = task.placed(line).total
        if total < least - NEAR:
            best, least = line, total
    found = _improved(task, best or task.front)
    return task.placed(found, exact=task.placed(found).total <= floor + NEAR)


def _floor(task: Task) -> float:
    """A bound on every placement's total: all at their best, and the least worth that has to be left out for room."""
    needed = [*task.front, *(one for one in task.candidates if one.required)]
    others = [one for one in task.candidates if not one.required]
    gains = {one.id: one.worth - task.least(one) for one in others}
    best = sum(gains.values())
    sizes: tuple[tuple[int | None, Callable[[Candidate], int]], ...] = (
        (task.limits.bytes, lambda one: one.bytes),
        (task.limits.tokens, lambda one: one.tokens),
    )
    for limit, size in sizes:
        if limit is not None:
            best = min(best, _filled(others, gains, limit - sum(size(one) for one in needed), size))
    needs = sum(task.least(one) for one in task.candidates if one.required)
    return _front_cost(task) + needs + sum(one.worth for one in others) - best


def _filled(
    others: Sequence[Candidate], gains: Mapping[str, float], room: float, size: Callable[[Candidate], int]
) -> float:
    """The most that fits into a room, with chunks that could be cut."""
    total = 0.0
    for one in sorted(others, key=lambda one: -gains[one.id] / max(size(one), NEAR)):
        share = min(1.0, room / size(one)) if size(one) else 1.0
        total, room = total + share * gains[one.id], room - share * size(one)
    return total


def _front_cost(task: Task) -> float:
    names = [one.id for one in task.front]
    return sum(task.way(one, names[:place])[0] for place, one in enumerate(task.front))


def _first_guesses(task: Task) -> Iterator[Line]:
    """In the order given: who must stand there, and of the others those that come first, or are worth the most."""
    required = [one for one in task.candidates if one.required]
    for rank in (None, lambda one: -one.worth / max(1, one.bytes), lambda one: -one.worth):
        others = [one for one in task.candidates if not one.required]
        chosen = _fitting(task, required, others if rank is None else sorted(others, key=rank))
        yield (*task.front, *(one for one in task.candidates if one.id in chosen))


def _fitting(task: Task, required: Sequence[Candidate], others: Iterable[Candidate]) -> set[str]:
    held = [*task.front, *required]
    tokens, size = sum(one.tokens for one in held), sum(one.bytes for one in held)
    names = {one.id for one in required}
    for one in others:
        if one.worth > 0 and task.limits.hold(tokens + one.tokens, size + one.bytes):
            tokens, size = tokens + one.tokens, size + one.bytes
            names.add(one.id)
    return names


def _beam(task: Task) -> Iterator[Line]:
    """Orders that grow by a chunk at a time; those are followed that could still come to the least."""
    states = [_State(0.0, _front_cost(task), task.front, frozenset(one.id for one in task.front))]
    while states:
        grown: dict[frozenset[str], _State] = {}
        for state in states:
            missing = [one for one in task.candidates if one.required and one.id not in state.names]
            if not missing:
                yield state.line
            before = [one.id for one in state.line]
            for one in task.candidates:
                if one.id in state.names or not task.fits((*state.line, one, *(c for c in missing if c is not one))):
                    continue
                cost = state.cost + task.way(one, before)[0]
                names = state.names | {one.id}
                bound = cost + _still(task, [*before, one.id], names)
                if names not in grown or bound < grown[names].bound:
                    grown[names] = _State(bound, cost, (*state.line, one), names)
        states = sorted(grown.values(), key=lambda state: state.bound)[:WIDTH]


def _still(task: Task, line: Sequence[str], names: frozenset[str]) -> float:
    """A bound on what the chunks that are not placed yet will cost, with the antecedents that may still be met."""
    total = 0.0
    for one in task.candidates:
        if one.id in names:
            continue
        least = min(one.worth, task.priced(one, "fresh"))
        held, count = task.held, len(line)
        if one.id in held.settled and names <= held.settled[one.id]:
            least = min(least, task.priced(one, "settled"))
        if any(names <= before for before in held.orbits.get(one.id, ())):
            least = min(least, task.priced(one, "orbit"))
        if any(before[:count] == tuple(line) for before in held.patches.get(one.id, ())):
            least = min(least, task.priced(one, "patch"))
        total += least
    return total


def _improved(task: Task, line: Line) -> Line:
    """The line after moves of one chunk to another place, or out, or in, as long as they help."""
    least = task.placed(line).total
    for _ in range(ROUNDS):
        best = line
        for other in _neighbours(task, line):
            total = task.placed(other).total
            if total < least - NEAR:
                best, least = other, total
        if best is line:
            break
        line = best
    return line


def _neighbours(task: Task, line: Line) -> Iterator[Line]:
    fixed = len(task.front)
    inside = {one.id for one in line}
    for place in range(fixed, len(line)):
        rest = (*line[:place], *line[place + 1 :])
        if not line[place].required:
            yield rest
        for target in range(fixed, len(rest) + 1):
            if target != place:
                yield (*rest[:target], line[place], *rest[target:])
    for one in task.candidates:
        if one.id not in inside and task.fits((*line, one)):
            for target in range(fixed, len(line) + 1):
                yield (*line[:target], one, *line[target:])

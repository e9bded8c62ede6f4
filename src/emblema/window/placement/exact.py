"""The best placement of a small set: dynamic programming over subsets.

What a chunk costs depends on the set before it, and on its order only while that order is the beginning of the
antecedents of a stored patch. So a state is a set, and the order as long as some patch still asks for it: as many
states as subsets, and one more for every beginning of a stored order.
"""

from dataclasses import dataclass
from math import inf

from emblema.window.placement.data import Candidate, Placement, Task

Order = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Reached:
    cost: float
    order: tuple[Candidate, ...]
    tokens: int
    bytes: int


def exactly(task: Task) -> Placement:
    """The placement of the least total."""
    asked = beginnings(task)
    front = tuple(one.id for one in task.front)
    begun = _Reached(0.0, task.front, sum(one.tokens for one in task.front), sum(one.bytes for one in task.front))
    level: dict[tuple[frozenset[str], Order | None], _Reached] = {
        (frozenset(front), front if front in asked else None): begun
    }
    worths = {one.id: one.worth for one in task.candidates}
    best, least = begun, inf
    while level:
        following: dict[tuple[frozenset[str], Order | None], _Reached] = {}
        for (names, order), reached in level.items():
            loss = sum(worth for name, worth in worths.items() if name not in names)
            if reached.cost + loss < least:
                best, least = reached, reached.cost + loss
            for one in task.candidates:
                if one.id in names:
                    continue
                tokens, size = reached.tokens + one.tokens, reached.bytes + one.bytes
                if not task.limits.hold(tokens, size):
                    continue
                # Off every stored order, any order of the set will do: no patch can ask for it.
                cost = reached.cost + task.way(one, [other.id for other in reached.order])[0]
                longer = None if order is None else (*order, one.id)
                state = (names | {one.id}, longer if longer in asked else None)
                if state not in following or cost < following[state].cost:
                    following[state] = _Reached(cost, (*reached.order, one), tokens, size)
        level = following
    return task.placed(best.order, exact=True)


def beginnings(task: Task) -> frozenset[Order]:
    """Every beginning of the antecedents of a stored patch that could be met by this task's chunks."""
    names = {one.id for one in (*task.front, *task.candidates)}
    found: set[Order] = set()
    for one in task.candidates:
        for before in task.held.patches.get(one.id, ()):
            if names.issuperset(before):
                found.update(before[:stop] for stop in range(len(before) + 1))
    return frozenset(found)

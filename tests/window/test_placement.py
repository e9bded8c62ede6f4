"""Placement against every order of every subset, and what it has to refuse."""

from itertools import combinations, permutations
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import CapacityError, PlanError
from emblema.link.lanes import Lane
from emblema.window.budget import WindowBudget, is_within
from emblema.window.placement import Candidate, placement_of, solve_placement
from tests.window.placing import PlainPrices

NAMES = "abcdefghi"
PRICED = ({}, {Lane.LEADING: 0.0, Lane.SETTLED: 0.1, Lane.PATCH: 0.5})
Problem = tuple[list[Candidate], PlainPrices, WindowBudget]


def drawn(rng: Random, most: int) -> Problem:
    names = NAMES[: rng.randint(1, most)]

    def order() -> list[str]:
        return rng.sample(NAMES, rng.randint(0, 4))

    worths = (inf, 0.0, 1.0, 3.0, 8.0, 30.0)
    every = [Candidate(name, rng.randint(1, 9), rng.randint(0, 5), rng.choice(worths)) for name in names]
    patches: dict[str, set[tuple[str, ...]]] = {}
    for _ in range(rng.randint(0, 8)):
        patches.setdefault(rng.choice(names), set()).add(tuple(order()))
    written = {name: set(order()) for name in names if rng.random() < 0.5}
    canonical = frozenset(rng.choice([NAMES, order()]))
    tokens = {chunk.id: chunk.tokens for chunk in every}
    needed = [chunk for chunk in every if chunk.worth == inf]
    budget = WindowBudget(
        rng.choice([None, sum(chunk.tokens for chunk in needed) + rng.randint(0, 20)]),
        rng.choice([None, sum(chunk.bytes for chunk in needed) + rng.randint(0, 8)]),
    )
    return every, PlainPrices(tokens, patches, written, canonical, rng.choice(PRICED)), budget


def fits(budget: WindowBudget, chunks: tuple[Candidate, ...]) -> bool:
    return is_within(budget, sum(chunk.tokens for chunk in chunks), sum(chunk.bytes for chunk in chunks))


def brute(every: list[Candidate], prices: PlainPrices, budget: WindowBudget) -> float:
    """The least total over every order of every subset."""
    required = {chunk for chunk in every if chunk.worth == inf}
    totals = []
    for count in range(len(every) + 1):
        for chosen in combinations(every, count):
            if required <= set(chosen) and fits(budget, chosen):
                totals += [placement_of(order, every, prices).total for order in permutations(chosen)]
    return min(totals)


@given(st.randoms(use_true_random=False))
def test_every_rule_is_kept_and_the_order_given_is_never_better(rng: Random) -> None:
    every, prices, budget = drawn(rng, 9)
    found = solve_placement(every, prices, budget)
    known = {chunk.id: chunk for chunk in every}
    assert sorted((*found.order, *found.left)) == sorted(known)
    assert all(known[name].worth < inf for name in found.left)
    assert fits(budget, tuple(known[name] for name in found.order))
    cost = sum(prices.cheapest(name, found.order[:place])[0] for place, name in enumerate(found.order))
    assert found.total == pytest.approx(cost + sum(known[name].worth for name in found.left))
    assert not fits(budget, tuple(every)) or found.total <= placement_of(every, every, prices).total + 1e-9


def test_few_chunks_are_nearly_always_placed_at_the_least_total() -> None:
    """All but one in a hundred of problems with five chunks at most, whose patches and rows contradict each other."""
    rng, missed = Random(), 0
    for _ in range(400):
        every, prices, budget = drawn(rng, 5)
        found, least = solve_placement(every, prices, budget).total, brute(every, prices, budget)
        assert found >= least - 1e-9
        missed += found > least + 1e-9
    assert missed <= 4


def named(order: str, worth: float = inf) -> list[Candidate]:
    return [Candidate(name, 10, 10, worth) for name in order]


TOKENS = dict.fromkeys(NAMES, 10)
WRITTEN = PlainPrices(TOKENS, written={"a": set(), "b": {"x", "a"}}, canonical=frozenset(NAMES))


def test_a_stored_order_is_found_again() -> None:
    prices = PlainPrices(TOKENS, {"a": {("c",)}, "b": {("c", "a")}}, canonical=frozenset(NAMES))
    found = solve_placement(named("abc"), prices, WindowBudget())
    assert (found.order, found.lanes, found.cost) == (("c", "a", "b"), ("leading", "patch", "patch"), 0.0)


def test_survivors_stay_and_a_new_chunk_goes_behind_them() -> None:
    # `c` would be free in front, but then `a` and `b` had to be computed after what they never saw.
    found = solve_placement(named("cab"), WRITTEN, WindowBudget())
    assert (found.order, found.cost) == (("a", "b", "c"), 10.0)
    assert found.lanes[1:] == ("settled", "fresh")


def test_among_equals_the_order_given_is_kept() -> None:
    assert solve_placement(named("dbca"), PlainPrices(TOKENS), WindowBudget()).order == tuple("dbca")


def test_the_least_worthy_leaves_when_room_is_short() -> None:
    candidates = [*named("a"), Candidate("b", 10, 10, 3.0), Candidate("c", 10, 10, 12.0)]
    prices = PlainPrices(TOKENS, written={"b": {"a"}, "c": {"a", "b"}}, canonical=frozenset(NAMES))
    found = solve_placement(candidates, prices, WindowBudget(bytes=20))
    assert (found.order, found.left, found.loss) == (("a", "c"), ("b",), 3.0)
    assert solve_placement(candidates, prices, WindowBudget(tokens=30)).left == ()
    assert solve_placement((), prices, WindowBudget()).order == ()


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(CapacityError, match="take 20 bytes"):
        solve_placement(named("ab"), PlainPrices(TOKENS), WindowBudget(bytes=19))
    for worth in (-1.0, float("nan")):
        with pytest.raises(PlanError, match="not below zero"):
            Candidate("a", 1, 1, worth)

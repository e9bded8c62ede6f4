"""Placement against every order of every subset, and what it has to refuse."""

from itertools import combinations, permutations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import CapacityError, PlanError
from emblema.link.policy.policy import Lane
from emblema.store.keys import ArtifactKey, ArtifactKind
from emblema.window.placement.problem import (
    AvailableRows,
    Candidate,
    Placement,
    PlacementLimits,
    PlacementProblem,
    price_in_rows,
)
from emblema.window.placement.solver import search, solve_exactly, solve_placement
from tests.window.placing import available

NAMES = "abcdef"


@st.composite
def tasks(draw: st.DrawFn, most: int = 5) -> PlacementProblem:
    names = NAMES[: draw(st.integers(1, most))]
    worths = st.sampled_from([inf, 0.0, 1.0, 3.0, 8.0, 30.0])
    every = [Candidate(name, draw(st.integers(1, 9)), draw(st.integers(0, 5)), draw(worths)) for name in names]
    orders = st.lists(st.sampled_from(NAMES), unique=True, max_size=4)
    keys = [
        ArtifactKey(
            "m",
            draw(st.sampled_from(names)),
            tuple(draw(orders)),
            draw(st.sampled_from([ArtifactKind.PATCH, ArtifactKind.ORBIT])),
        )
        for _ in range(draw(st.integers(0, 8)))
    ]
    settled = {name: draw(orders) for name in names if draw(st.booleans())}
    front = every[: draw(st.integers(0, 2))]
    rest = every[len(front) :]
    needed = [*front, *(chunk for chunk in rest if chunk.required)]
    limits = PlacementLimits(
        draw(st.none() | st.integers(0, 8).map(lambda more: more + sum(chunk.bytes for chunk in needed))),
        draw(st.none() | st.integers(0, 20).map(lambda more: more + sum(chunk.tokens for chunk in needed))),
    )
    return PlacementProblem(
        tuple(rest),
        available(keys, settled, draw(st.none() | st.sets(st.sampled_from(NAMES)))),
        limits,
        draw(st.sampled_from(PRICES)),
        tuple(front),
    )


def in_seconds(candidate: Candidate, lane: Lane) -> float:
    """Every lane has its price, a leading chunk the least."""
    base = {"leading": 0.0, "settled": 0.1, "patch": 0.5, "orbit": 0.7, "fresh": 2.0}[lane]
    return base + 0.25 * candidate.tokens * (lane == "fresh")


PRICES = (price_in_rows, in_seconds)


def brute(task: PlacementProblem) -> float:
    """The least total over every order of every subset."""
    totals = []
    for count in range(len(task.candidates) + 1):
        for chosen in combinations(task.candidates, count):
            if set(task.required) <= set(chosen) and task.fits((*task.front, *chosen)):
                totals += [task.placement((*task.front, *order)).total for order in permutations(chosen)]
    return min(totals)


def check(task: PlacementProblem, found: Placement) -> None:
    every = {chunk.id: chunk for chunk in (*task.front, *task.candidates)}
    assert sorted((*found.order, *found.left)) == sorted(every)
    assert found.order[: len(task.front)] == tuple(item.id for item in task.front)
    assert all(not every[name].required for name in found.left)
    assert task.fits([every[name] for name in found.order])
    again = task.placement([every[name] for name in found.order])
    assert (found.lanes, found.total) == (again.lanes, pytest.approx(again.total))


@given(tasks())
def test_small_sets_are_placed_at_the_least_total(task: PlacementProblem) -> None:
    found = solve_exactly(task)
    check(task, found)
    assert found.exact
    assert found.total == pytest.approx(brute(task))


@given(tasks(6))
def test_the_search_keeps_every_rule_and_says_exact_only_when_it_is(task: PlacementProblem) -> None:
    found, best = search(task), solve_exactly(task).total
    check(task, found)
    assert found.total >= best - 1e-9
    assert not found.exact or found.total == pytest.approx(best)


def named(order: str, worth: float = inf) -> list[Candidate]:
    return [Candidate(name, 10, 10, worth) for name in order]


def test_a_stored_order_is_found_again() -> None:
    keys = [ArtifactKey("m", "a", ("c",)), ArtifactKey("m", "b", ("c", "a"))]
    found = solve_placement(named("abc"), available(keys))
    assert (found.order, found.lanes, found.cost) == (("c", "a", "b"), ("leading", "patch", "patch"), 0.0)


def test_a_chunk_without_rows_is_computed_even_at_the_front() -> None:
    assert solve_placement(named("ab"), available((), canonical="b")).lanes == ("leading", "fresh")
    assert solve_placement(named("a"), available((), canonical=())).cost == 10.0


def test_an_orbit_serves_any_order_of_its_set() -> None:
    keys = [ArtifactKey("m", "c", ("a", "b"), ArtifactKind.ORBIT), ArtifactKey("m", "a", ("b",))]
    assert solve_placement(named("cab"), available(keys)).order == ("b", "a", "c")
    other = [ArtifactKey("m", "c", ("b", "a"), ArtifactKind.ORBIT), ArtifactKey("m", "b", ("a",))]
    assert solve_placement(named("cab"), available(other)).order == ("a", "b", "c")


def test_survivors_stay_and_a_new_chunk_goes_behind_them() -> None:
    # `c` would be free in front, but then `a` and `b` had to be computed after what they never saw.
    settled = {"a": (), "b": ("x", "a")}
    found = solve_placement(named("cab"), available((), settled))
    assert (found.order, found.cost) == (("a", "b", "c"), 10.0)
    assert found.lanes[1:] == ("settled", "fresh")


def test_among_equals_the_order_given_is_kept() -> None:
    assert solve_placement(named("dbca"), AvailableRows()).order == tuple("dbca")


def test_the_least_worthy_leaves_when_room_is_short() -> None:
    candidates = [*named("a"), Candidate("b", 10, 10, 3.0), Candidate("c", 10, 10, 12.0)]
    held = available((), {"b": ("a",), "c": ("a", "b")})
    found = solve_placement(candidates, held, PlacementLimits(bytes=20))
    assert (found.order, found.left, found.loss) == (("a", "c"), ("b",), 3.0)
    assert solve_placement(candidates, held, PlacementLimits(tokens=30)).left == ()


def test_pieces_that_are_no_patches_do_not_count() -> None:
    held = available([ArtifactKey("m", "a", ("b",), ArtifactKind.RESIDUAL, layer=2)])
    assert held.lanes("a", ["b"]) == ("fresh",)


def test_what_cannot_be_placed_is_refused() -> None:
    with pytest.raises(CapacityError, match="take 20 bytes"):
        solve_placement(named("ab"), AvailableRows(), PlacementLimits(bytes=19))
    with pytest.raises(PlanError, match="given twice"):
        solve_placement(named("aba"), AvailableRows())
    with pytest.raises(PlanError, match="given twice"):
        solve_placement(named("ab"), AvailableRows(), front=named("b"))
    with pytest.raises(PlanError, match="no sizes"):
        Candidate("a", 0, 1)
    with pytest.raises(PlanError, match="no sizes"):
        Candidate("a", 1, 1, float("nan"))
    with pytest.raises(PlanError, match="give 0 or more"):
        PlacementLimits(bytes=-1)
    with pytest.raises(PlanError, match="prices are finite"):
        solve_placement(named("ab"), AvailableRows(), price=lambda candidate, lane: -1.0)


def test_nothing_to_place_is_an_empty_window() -> None:
    assert solve_placement((), AvailableRows()).order == ()

"""Placement step by step: against the least that a known trace can cost, and what it has to refuse."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tests.online_placement import Foreknown, PlacedWindow, Recency, advance, optimum, replay
from emblema.errors import CapacityError, PlanError
from emblema.store.keys import ArtifactKey, ArtifactKind
from emblema.window.placement.problem import Candidate, PlacementLimits, PlacementProblem, price_in_rows
from emblema.window.placement.solver import MOST_EXACT, search, solve_exactly
from tests.window.placing import available

SIZES = {name: Candidate(name, 10 + 7 * place, 10 + 7 * place) for place, name in enumerate("abcd")}
LIMITS = PlacementLimits(bytes=70)

traces = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=2, unique=True), min_size=1, max_size=4)


def cost(found: tuple) -> float:
    return sum(placed.cost for placed in found)


@given(traces, st.booleans())
def test_no_decision_costs_less_than_the_optimum(trace: list[list[str]], forming: bool) -> None:
    least = optimum(trace, SIZES, LIMITS, forming=forming)
    for foresight in (Recency(trace), Foreknown(trace)):
        found = replay(trace, SIZES, LIMITS, foresight, forming=forming)
        assert cost(found) >= least - 1e-9
        for placed, names in zip(found, trace, strict=True):
            assert set(names) <= set(placed.order)
            assert sum(SIZES[name].bytes for name in placed.order) <= 70


def looking_back(seed: int, steps: int = 9) -> list[list[str]]:
    """One or two pictures a step, half of them from the last two steps."""
    drawn = random.Random(seed)
    trace = [["a"], ["b"]]
    while len(trace) < steps:
        names = [
            drawn.choice("abcd") if drawn.random() < 0.5 else drawn.choice(trace[-1 - drawn.randint(0, 1)])
            for _ in range(drawn.randint(1, 2))
        ]
        trace.append(list(dict.fromkeys(names)))
    return trace


@pytest.mark.parametrize("forming", [True, False])
def test_online_decisions_stay_near_the_optimum(forming: bool) -> None:
    online = known = least = 0.0
    for seed in range(10):
        trace = looking_back(seed)
        least += optimum(trace, SIZES, LIMITS, forming=forming)
        online += cost(replay(trace, SIZES, LIMITS, Recency(trace), forming=forming))
        known += cost(replay(trace, SIZES, LIMITS, Foreknown(trace), forming=forming))
    assert least > 0
    assert online <= 1.25 * least
    assert known <= 1.15 * least


def mixed(seed: int, count: int) -> PlacementProblem:
    """Chunks of which twelve past windows left patches, half of them to be had or not, in a budget that is short."""
    drawn = random.Random(seed)
    names = [f"{place:02}" for place in range(count)]
    every = [Candidate(name, drawn.randint(20, 80), drawn.randint(20, 80)) for name in names]
    every = [chunk if drawn.random() < 0.5 else replace(chunk, worth=drawn.uniform(0, 120)) for chunk in every]
    keys = []
    for _ in range(12):
        line = drawn.sample(names, drawn.randint(3, count))
        keys += [
            ArtifactKey(
                "m",
                line[place],
                tuple(line[:place]),
                ArtifactKind.ORBIT if drawn.random() < 0.3 else ArtifactKind.PATCH,
            )
            for place in range(1, len(line))
            if drawn.random() < 0.6
        ]
    settled = {name: drawn.sample(names, drawn.randint(0, 4)) for name in names if drawn.random() < 0.4}
    least = sum(chunk.bytes for chunk in every if chunk.required)
    limits = PlacementLimits(bytes=max(least, int(sum(chunk.bytes for chunk in every) * drawn.uniform(0.5, 1.0))))
    return PlacementProblem(tuple(every), available(keys, settled), limits, price_in_rows, ())


def test_the_search_is_near_the_optimum_where_that_is_known() -> None:
    totals = [(search(task).total, solve_exactly(task).total) for task in (mixed(seed, 8) for seed in range(24))]
    assert sum(found <= best + 1e-9 for found, best in totals) >= 0.85 * len(totals)
    assert sum(found for found, _ in totals) <= 1.05 * sum(best for _, best in totals)


def test_a_long_window_that_slides_computes_only_what_is_new() -> None:
    # More than the optimum is found for: survivors stay where they are, the oldest leave, the newest goes last.
    shown = 2 * MOST_EXACT
    sizes = {f"{step:03}": Candidate(f"{step:03}", 64, 64) for step in range(3 * shown)}
    trace = [[name] for name in sizes]
    found = replay(trace, sizes, PlacementLimits(bytes=64 * shown), Recency(trace))
    assert cost(found) == 64 * len(trace)
    assert len(found[-1].order) == shown
    assert found[-1].order == tuple(sorted(found[-1].order))
    assert all(placed.lanes[:-1] == ("settled",) * (len(placed.order) - 1) for placed in found)


def test_a_chunk_that_returns_to_the_order_it_knew_is_not_computed_again() -> None:
    trace = [["a"], ["a", "b"], ["a", "c"], ["a", "b"]]
    found = replay(trace, SIZES, PlacementLimits(bytes=40), Foreknown(trace))
    assert [placed.cost for placed in found] == [10.0, 17.0, 24.0, 0.0]
    assert found[-1].lanes == ("settled", "patch")
    bare = replay(trace, SIZES, PlacementLimits(bytes=40), Foreknown(trace), forming=False)
    assert bare[-1].cost == 17.0


def test_what_leaves_forgets_what_it_absorbed() -> None:
    window = PlacedWindow(("a", "b"), available((), {"a": (), "b": ("a",)}, canonical=()))
    placed = advance(window, [SIZES["c"]], [SIZES["a"], SIZES["b"]], PlacementLimits(bytes=45), lambda chunk: 1.0)
    after = window.after(placed)
    assert "a" in placed.order or "b" in placed.order
    assert set(after.rows.written) == set(placed.order)


def test_what_cannot_be_replayed_is_refused() -> None:
    with pytest.raises(PlanError, match="size is not given"):
        replay([["x"]], SIZES, LIMITS, Recency([["x"]]))
    with pytest.raises(CapacityError, match="have to be in"):
        replay([["a", "b", "c", "d"]], SIZES, LIMITS, Recency([]))
    with pytest.raises(PlanError, match="is in the window"):
        advance(PlacedWindow(("z",)), [SIZES["a"]], [], LIMITS, lambda chunk: 1.0)
    many = {f"{index}": Candidate(f"{index}", 1, 1) for index in range(8)}
    with pytest.raises(PlanError, match="windows to follow"):
        optimum([list(many)], many, PlacementLimits())

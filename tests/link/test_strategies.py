"""Names of strategies: what they parse to, and what is refused."""

from re import fullmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StrategyError
from emblema.link.strategies.registry import KINDS, parse, strategies
from emblema.link.strategies.reprefill import Reprefill
from emblema.link.strategies.vlcache import VLCache

NAMES = (
    *("pair", "pair+query-3%", "pair+query-2.5%", "pair+query-100%"),
    *("full", "prefix", "blind", "auto", "patch-64", "patch-25%", "patch-2.5%", "patch-64-deep", "patch-6%-deep"),
    *("orbit-32", "basis-32", "mpic-32", "mpic-all", "mpic-32-raw", "mpic-all-raw", "full-reuse", "full-reuse-raw"),
    *("cacheblend-15", "cacheblend-0.5", "cacheblend-100", "cacheblend2-15", "epic-8", "vlcache-5", "vlcache-2.25"),
    *("vlcache-5-uniform", "sink", "lowrank-k-64", "reprefill-deep-75", "reprefill-shallow-12.5", "query-12%"),
    *("query-2.5%", "query-100%"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_what_it_parses_to(name: str) -> None:
    assert parse(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        *("pair-3", "pair+query", "pair+query-3", "pairs"),
        *("", "fulll", "patch", "patch-", "patch--3", "patch-x", "patch-3-shallow", "PATCH-3", "patch-25%%"),
        *("mpic", "mpic-", "mpic-some", "mpic-raw", "full-reuse-32", "cacheblend", "cacheblend3-15", "cacheblend-15%"),
        *("epic-8-raw", "vlcache-5-even", "sink-4", "lowrank-64", "reprefill-25", "reprefill-deep", "orbit-all"),
        *("oracle-deficit-25", "oracle-query-25", "cacheblend-1e1", "basis-²", "query-12", "query-%", "query-12%%"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(StrategyError, match="unknown strategy.*patch-M"):
        parse(name)


@pytest.mark.parametrize(
    "name",
    [
        *("pair+query-0%", "pair+query-101%"),
        *("patch-0", "patch-0%", "patch-101%", "patch-1.5", "patch-99999999", "patch-0-deep", "orbit-0", "orbit-2.5"),
        *("basis-0", "mpic-0", "mpic-1.5", "mpic-99999999-raw", "epic-0", "lowrank-k-0", "lowrank-k-70000"),
        *("cacheblend-0", "cacheblend-101", "cacheblend2-100.5", "vlcache-0", "vlcache-0.0-uniform", "vlcache-200"),
        *("reprefill-deep-0", "reprefill-deep-100.1", "reprefill-shallow-0", "query-0%", "query-101%"),
    ],
)
def test_knobs_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(StrategyError, match="must be"):
        parse(name)


@given(st.text(max_size=20))
def test_any_other_text_is_an_error_of_ours(text: str) -> None:
    try:
        parse(text)
    except StrategyError:
        return
    assert text.strip().split("-")[0] in {name.split("-")[0] for name in NAMES}


def test_all_are_listed_with_a_line_each() -> None:
    assert len(strategies()) == len(KINDS)
    assert not any("oracle" in usage for usage in strategies()), "oracles are the bench's alone"
    assert {kind.usage for kind in KINDS for name in NAMES if fullmatch(kind.pattern, name)} == {*strategies()}
    assert all(line and "\n" not in line for line in strategies().values())


@given(st.integers(1, 300), st.integers(1, 40), st.floats(0.01, 100))
def test_a_layer_adaptive_budget_falls_with_depth_and_adds_up(tokens: int, layers: int, percent: float) -> None:
    counts = VLCache(percent).counts(tokens, layers)
    assert len(counts) == layers and counts[0] >= 1
    assert all(0 <= deeper <= count <= tokens for count, deeper in zip(counts, counts[1:], strict=False))
    # Each layer is rounded to a whole row, and the first has at least one.
    assert abs(sum(counts) - percent / 100 * tokens * layers) <= layers / 2 + 1
    assert VLCache(100.0).counts(tokens, layers) == VLCache(100.0, uniform=True).counts(tokens, layers)
    assert set(VLCache(percent, uniform=True).counts(tokens, layers)) == {max(1, round(tokens * percent / 100))}


@given(st.integers(1, 80), st.floats(0.01, 100))
def test_a_share_of_layers_is_the_nearest_whole_number(layers: int, percent: float) -> None:
    count = Reprefill(percent, deep=True).count(layers)
    assert 1 <= count <= layers
    assert abs(count - max(1.0, layers * percent / 100)) <= 0.5
    assert Reprefill(100, deep=False).count(layers) == layers

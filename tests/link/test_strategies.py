"""Names of strategies: what they parse to, and what is refused."""

from re import fullmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StrategyError
from emblema.link.strategies.registry import KINDS, parse, strategies
from emblema.link.strategies.vlcache import VLCache

NAMES = (
    *("full", "prefix", "blind", "auto", "patch-64", "patch-25%", "patch-2.5%", "patch-64-deep", "patch-6%-deep"),
    *("orbit-32", "mpic-32", "mpic-all", "full-reuse", "cacheblend-15", "cacheblend-0.5", "cacheblend-100"),
    *("epic-8", "vlcache-5", "vlcache-2.25", "vlcache-5-uniform", "sink", "query-12%"),
    *("query-2.5%", "query-100%"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_what_it_parses_to(name: str) -> None:
    assert parse(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "fulll", "patch", "patch-", "patch--3", "patch-x", "patch-3-shallow", "PATCH-3", "patch-25%%"),
        *("mpic", "mpic-", "mpic-some", "full-reuse-32", "cacheblend", "cacheblend3-15", "cacheblend-15%"),
        *("epic-8-raw", "vlcache-5-even", "sink-4", "lowrank-64", "orbit-all"),
        *("oracle-deficit-25", "oracle-query-25", "cacheblend-1e1", "patch-²", "query-12", "query-%", "query-12%%"),
    ],
)
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(StrategyError, match="unknown strategy.*patch-M"):
        parse(name)


@pytest.mark.parametrize(
    "name",
    [
        *("patch-0", "patch-0%", "patch-101%", "patch-1.5", "patch-99999999", "patch-0-deep", "orbit-0", "orbit-2.5"),
        *("orbit-70000", "mpic-0", "mpic-1.5", "mpic-99999999", "epic-0", "cacheblend-0", "cacheblend-100.5"),
        *("vlcache-0", "vlcache-0.0-uniform", "vlcache-200", "query-0%", "query-101%"),
    ],
)
def test_knobs_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(StrategyError, match="must be"):
        parse(name)


@pytest.mark.parametrize(
    ("name", "successor"),
    [
        *(("basis-16", "patch-M"), ("lowrank-k-16", "patch-M"), ("reprefill-deep-50", "query-R%")),
        *(("reprefill-shallow-50", "query-R%"), ("cacheblend2-15", "cacheblend-R"), ("mpic-8-raw", "mpic-K")),
        *(("mpic-all-raw", "mpic-K"), ("full-reuse-raw", "full-reuse")),
    ],
)
def test_names_of_former_strategies_are_refused_with_their_successors(name: str, successor: str) -> None:
    with pytest.raises(StrategyError, match=f"'{name}' is no longer offered: use {successor}"):
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

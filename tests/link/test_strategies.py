"""Names of strategies: what they parse to, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import emblema
from emblema.errors import StrategyError
from emblema.link.strategies.registry import KINDS, parse


@pytest.mark.parametrize(
    "name", ["full", "prefix", "blind", "auto", "patch-64", "patch-25%", "patch-2.5%", "patch-64-deep", "patch-6%-deep"]
)
def test_a_name_is_what_it_parses_to(name: str) -> None:
    assert parse(name).name == name


@pytest.mark.parametrize(
    "name", ["", "fulll", "patch", "patch-", "patch--3", "patch-x", "patch-3-shallow", "PATCH-3", "patch-25%%"]
)
def test_unknown_names_are_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(StrategyError, match="unknown strategy.*patch-M"):
        parse(name)


@pytest.mark.parametrize("name", ["patch-0", "patch-0%", "patch-101%", "patch-1.5", "patch-99999999", "patch-0-deep"])
def test_knobs_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(StrategyError, match="must be"):
        parse(name)


@given(st.text(max_size=20))
def test_any_other_text_is_an_error_of_ours(text: str) -> None:
    try:
        parse(text)
    except StrategyError:
        return
    assert text.strip().split("-")[0] in ("full", "prefix", "blind", "auto", "patch")


def test_all_are_listed_with_a_line_each() -> None:
    assert len(emblema.strategies()) == len(KINDS)
    assert all(line and "\n" not in line for line in emblema.strategies().values())

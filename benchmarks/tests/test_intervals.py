"""Bootstrap intervals against theory and values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.intervals import bootstrap, bootstrap_eta, bootstrap_ratio
from emblema.errors import EmblemaError
from emblema.eval.metrics import eta


@pytest.mark.parametrize("alike", [1, 10])
def test_bootstrap_is_as_wide_as_theory_says_and_draws_episodes_and_not_items(alike: int) -> None:
    own = np.random.default_rng(5).normal(0, 1, 400)
    found = bootstrap(np.repeat(own, alike), np.repeat(np.arange(400), alike))
    assert found.value == pytest.approx(own.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * own.std() / 20, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=40), st.integers(0, 2**31))
def test_bootstrap_holds_its_value_and_repeats(items: list[tuple[float, int]], seed: int) -> None:
    values, episodes = zip(*items, strict=True)
    found = bootstrap(values, episodes, resamples=200, seed=seed)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found == bootstrap(values, episodes, resamples=200, seed=seed)


def test_bootstrap_of_eta_agrees_with_eta() -> None:
    blind = np.random.default_rng(8).random(50)
    found = bootstrap_eta(blind * 0.1, blind, np.arange(50))
    assert (found.value, found.low, found.high) == pytest.approx((eta(blind * 0.1, blind), 0.9, 0.9))


def test_bootstrap_refuses_nothing_and_unequal_lengths() -> None:
    with pytest.raises(EmblemaError, match="one or more"):
        bootstrap([], [])
    with pytest.raises(EmblemaError, match="as many"):
        bootstrap_ratio([1.0], [1.0, 2.0], [0])

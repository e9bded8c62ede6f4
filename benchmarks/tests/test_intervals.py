"""Bootstrap intervals against theory and values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.intervals import bootstrap, bootstrap_eta, bootstrap_ratio
from emblema.errors import EmblemaError
from emblema.eval.metrics import eta


def test_bootstrap_is_as_wide_as_theory_says() -> None:
    random = np.random.default_rng(5)
    values = random.normal(0, 1, 400)
    found = bootstrap(values, np.arange(400))
    assert found.value == pytest.approx(values.mean())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)


def test_bootstrap_draws_episodes_and_not_items() -> None:
    episodes = np.repeat(np.arange(40), 10)
    values = np.repeat(np.random.default_rng(6).normal(0, 1, 40), 10)
    by_episode, by_item = bootstrap(values, episodes), bootstrap(values, np.arange(400))
    assert by_episode.high - by_episode.low > 2.5 * (by_item.high - by_item.low)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=40), st.integers(0, 2**31))
def test_bootstrap_holds_its_value_and_repeats(items: list[tuple[float, int]], seed: int) -> None:
    values, episodes = zip(*items, strict=True)
    found = bootstrap(values, episodes, resamples=200, seed=seed)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    assert found == bootstrap(values, episodes, resamples=200, seed=seed)


def test_paired_differences_are_narrower_than_unpaired_ones() -> None:
    random = np.random.default_rng(7)
    base = random.normal(0, 1, 200)
    other = base - 0.1 + random.normal(0, 0.05, 200)
    paired = bootstrap(base - other, np.arange(200))
    assert paired.low > 0.08
    assert paired.high < 0.12


def test_bootstrap_of_eta_agrees_with_eta() -> None:
    random = np.random.default_rng(8)
    blind = random.random(50)
    method = blind * 0.1
    found = bootstrap_eta(method, blind, np.arange(50))
    assert found.value == pytest.approx(eta(method, blind))
    assert found.low == pytest.approx(0.9)
    assert found.high == pytest.approx(0.9)


def test_bootstrap_refuses_nothing_and_unequal_lengths() -> None:
    with pytest.raises(EmblemaError, match="one or more"):
        bootstrap([], [])
    with pytest.raises(EmblemaError, match="as many"):
        bootstrap_ratio([1.0], [1.0, 2.0], [0])

"""Metrics against values worked out by hand, and the properties that they have to have."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import EmblemaError
from emblema.eval.metrics import (
    agreement,
    divergence,
    eta,
    flip_recovery,
    median_eta,
)

LOGITS = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12)


def test_divergence_of_two_coins() -> None:
    left, right = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert divergence(left, right) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert divergence(right, left) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


@given(LOGITS, st.floats(-50, 50))
def test_divergence_from_itself_is_zero_however_shifted(logits: list[float], shift: float) -> None:
    assert divergence(logits, np.add(logits, shift)) == pytest.approx(0, abs=1e-9)


@given(st.data())
def test_divergence_is_never_negative(data: st.DataObject) -> None:
    left = data.draw(LOGITS)
    right = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=len(left), max_size=len(left)))
    assert divergence(left, right) >= 0


def test_divergence_leaves_out_tokens_that_the_reference_never_says() -> None:
    assert divergence([0.0, -np.inf], [0.0, 0.0]) == pytest.approx(math.log(2))


def test_divergence_refuses_different_vocabularies() -> None:
    with pytest.raises(EmblemaError, match="3 and over 2"):
        divergence([1, 2, 3], [1, 2])


def test_eta_is_one_at_the_ceiling_zero_at_the_floor_and_negative_beyond() -> None:
    blind = [0.2, 0.6, 0.4]
    assert eta([0, 0, 0], blind) == 1
    assert eta(blind, blind) == 0
    assert eta([0.4, 1.2, 0.8], blind) == pytest.approx(-1)
    assert math.isnan(eta([0.1], [0.0]))


def test_median_eta_counts_only_items_with_a_deficit() -> None:
    found = median_eta([0.1, 0.0, 5.0, 0.3], [1.0, 1.0, 1e-6, 1.0])
    assert (found.value, found.count) == (pytest.approx(0.9), 3)
    assert median_eta([0.1], [0.0]).count == 0


def test_flip_recovery_comes_with_its_count() -> None:
    found = flip_recovery([1, 2, 3, 4], [1, 9, 9, 9], [9, 2, 3, 7])
    assert (found.value, found.count) == (pytest.approx(2 / 3), 3)
    assert flip_recovery([1], [1], [2]).count == 0
    assert agreement([1, 2, 3, 4], [1, 2, 9, 4]) == 0.75

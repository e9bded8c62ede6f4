"""Metrics against values worked out by hand."""

import math

import pytest

from emblema.eval.metrics import agreement, eta, flip_recovery


def test_eta_is_one_at_the_ceiling_zero_at_the_floor_and_negative_beyond() -> None:
    blind = [0.2, 0.6, 0.4]
    assert eta([0, 0, 0], blind) == 1
    assert eta(blind, blind) == 0
    assert eta([0.4, 1.2, 0.8], blind) == pytest.approx(-1)
    assert math.isnan(eta([0.1], [0.0]))


def test_an_infinite_divergence_is_never_a_good_score() -> None:
    assert eta([0.1, math.inf], [0.2, 0.2]) == -math.inf
    assert math.isnan(eta([0.0], [math.inf])), "nothing is as good as re-prefill because blind reuse broke"


def test_flip_recovery_comes_with_its_count() -> None:
    found = flip_recovery([1, 2, 3, 4], [1, 9, 9, 9], [9, 2, 3, 7])
    assert (found.value, found.count) == (pytest.approx(2 / 3), 3)
    assert flip_recovery([1], [1], [2]).count == 0
    assert agreement([1, 2, 3, 4], [1, 2, 9, 4]) == 0.75

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.margins import CHECKS, DEFAULT, KEPT, STEPS, MarginSample, MarginStats, wilson_interval


def stats(*passes: tuple[float, bool | None, int], checks: tuple[tuple[float, bool, int], ...] = ()) -> MarginStats:
    """Samples of a margin, whether they agreed, and how many."""
    found = MarginStats()
    for margin, agrees, count in passes:
        found.passes.extend([MarginSample(margin, agrees)] * count)
    for margin, agrees, count in checks:
        found.checks.extend([MarginSample(margin, agrees)] * count)
    return found


def test_nothing_learnt_asks_the_default() -> None:
    assert MarginStats().least() == DEFAULT == 0.5
    assert stats((0.9, None, 400)).least() == DEFAULT


def test_answers_that_were_right_already_lower_the_margin() -> None:
    assert stats((0.9, None, 300), (0.45, True, 20)).least() == 0.4
    assert stats((0.9, None, 300), (0.45, True, 10), (0.25, True, 10)).least() == 0.2


def test_too_few_or_wrong_ones_do_not() -> None:
    assert stats((0.9, None, 300), (0.45, True, 15)).least() == DEFAULT
    assert stats((0.9, None, 300), (0.45, True, 20), (0.42, False, 4)).least() == DEFAULT
    # 16 right answers are no reason where the share of wrong ones cannot be told from 1 %.
    assert stats((0.9, None, 40), (0.45, True, 20)).least() == DEFAULT


def test_the_largest_step_that_is_safe_is_not_passed() -> None:
    assert stats((0.9, None, 400), (0.45, True, 20), (0.25, True, 4), (0.22, False, 6)).least() in (0.3, 0.4)


def test_wrong_answers_that_stood_raise_the_margin() -> None:
    assert stats(checks=((0.95, True, 60), (0.55, False, 4))).least() == 0.6
    assert stats(checks=((0.95, True, 100), (0.55, False, 1))).least() == DEFAULT
    assert stats(checks=((0.99, False, 8),)).least() == STEPS[-1]


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([True, False, None])), max_size=2 * KEPT))
def test_the_margin_is_a_step_and_survives_a_file(samples: list[tuple[float, bool | None]]) -> None:
    log = FidelityLog()
    for margin, agrees in samples:
        log.note_margin("m", ["image"], MarginSample(margin, agrees))
        if agrees is not None:
            log.note_margin("m", ["image"], MarginSample(margin, agrees), check=True)
    least = log.least_margin("m", ["image"])
    assert least in STEPS
    again = FidelityLog.from_json(log.to_json())
    assert again.least_margin("m", ["image"]) == least
    assert again.to_json() == log.to_json()
    assert again.unsure_share("m") == log.unsure_share("m")


def test_kinds_and_models_are_apart_and_the_largest_margin_counts() -> None:
    log = FidelityLog()
    for _ in range(20):
        log.note_margin("m", ["page"], MarginSample(0.45, True))
    for _ in range(300):
        log.note_margin("m", ["page"], MarginSample(0.9, None))
    assert log.least_margin("m", ["page"]) == 0.4
    assert log.least_margin("m", ["page", "image"]) == DEFAULT
    assert log.least_margin("other", ["page"]) == DEFAULT
    assert log.unsure_share("m") == pytest.approx((wilson_interval(20, 320)[0] * 320 + 1) / (320 + 10))
    assert log.unsure_share("other") == pytest.approx(0.1)


def test_a_few_unsure_answers_are_no_measurement_and_many_are() -> None:
    few, many = FidelityLog(), FidelityLog()
    for log, unsure, count in ((few, 1, 2), (many, 60, 200)):
        for index in range(count):
            agrees = True if index < unsure else None
            log.note_margin("m", ["page"], MarginSample(0.1 if index < unsure else 0.9, agrees))
    assert few.unsure_share("m") < 0.11
    assert 0.22 < many.unsure_share("m") < 0.3


@pytest.mark.parametrize("sample", [[math.nan, True], [1.5, True], [True, True], [0.5, 1], ["x", None], [0.5]])
def test_a_malformed_file_is_refused(sample: list[object]) -> None:
    data = {"version": 1, "standings": [], "plateaus": {}}
    data["margins"] = [{"model": "m", "kind": "page", "passes": [sample], "checks": []}]
    with pytest.raises(StoreError, match="no log"):
        FidelityLog.from_json(data)


def test_a_file_with_too_many_samples_is_refused() -> None:
    data = {"version": 1, "standings": [], "plateaus": {}}
    data["margins"] = [{"model": "m", "kind": "page", "passes": [], "checks": [[0.5, True]] * (CHECKS + 1)}]
    with pytest.raises(StoreError, match="too many"):
        FidelityLog.from_json(data)

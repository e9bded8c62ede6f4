"""Certificates: what they promise holds as often as they say, on fresh draws; shifts are noticed; damage is refused."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.link.policy.certificate import FIRST_LOOK, THRESHOLDS, Bounds, Certificate, binomial_tail, certified_margin
from emblema.link.policy.samples import Sample

ALPHA = 0.02
BOUNDS = Bounds(alpha=ALPHA, max_kl=None, delta=0.05)
Draw = Callable[[random.Random], Sample]


def answers(wrong: float, sharpness: float, skew: float = 1.0) -> Draw:
    """Answers that differ the less the surer they are: a share of `wrong` (1 - margin) ** sharpness."""

    def draw(rnd: random.Random) -> Sample:
        margin = rnd.random() ** skew
        agrees = rnd.random() > wrong * (1 - margin) ** sharpness
        return Sample(0.0 if agrees else 2.0, agrees, margin)

    return draw


def shares_wrong(draw: Draw) -> dict[float, float]:
    """Return the share of differing answers from each threshold on, of a population so large that it hardly varies."""
    rnd = random.Random("population")
    every = [draw(rnd) for _ in range(100_000)]
    above = {threshold: [each for each in every if each.margin >= threshold] for threshold in THRESHOLDS}
    return {threshold: sum(not each.agrees for each in found) / len(found) for threshold, found in above.items()}


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.01, 0.99))
def test_a_tail_is_a_sum_of_binomial_chances(count: int, hits: int, share: float) -> None:
    wanted = sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(min(hits, count) + 1))
    assert binomial_tail(min(hits, count), count, share) == pytest.approx(min(1.0, wanted), abs=1e-9)


@pytest.mark.parametrize(
    ("draw", "broken"),
    [
        (answers(0.5, 2), False),
        (answers(0.3, 4), False),
        (answers(0.025, 0), True),
        (answers(0.3, 0.2), True),
        (answers(0.2, 2, skew=0.3), False),
    ],
)
def test_a_certified_margin_is_wrong_no_more_often_than_delta(draw: Draw, broken: bool) -> None:
    """Whatever the traffic is like: looks at any time, 2,000 comparisons, in 100 runs."""
    failed, shares = 0, shares_wrong(draw)
    for seed in range(100):
        rnd, certificate, seen = random.Random(seed), Certificate(), list[Sample]()
        for _ in range(2000):
            seen.append(draw(rnd))
            certificate.look(seen, BOUNDS)
        if certificate.margin is not None:
            failed += broken or shares[certificate.margin] > ALPHA
    # A share of 0.05, and what chance makes of it in 100 runs at a level of 0.001.
    assert binomial_tail(failed - 1, 100, 0.05) < 0.999


def test_sure_traffic_is_certified_soon_and_hopeless_traffic_never() -> None:
    rnd, soon = random.Random(1), Certificate()
    seen = [Sample(0.0, True, rnd.random()) for _ in range(FIRST_LOOK)]
    assert not soon.look(seen[:-1], BOUNDS) and soon.look(seen, BOUNDS) and soon.margin == 0.0
    assert certified_margin([Sample(0.0, rnd.random() > 0.3, rnd.random()) for _ in range(4000)], BOUNDS) is None


def test_unsure_answers_that_differ_leave_the_sure_ones_certified() -> None:
    rnd = random.Random(2)
    seen = [Sample(0.0, (margin := rnd.random()) > 0.5 or rnd.random() > 0.4, margin) for _ in range(2000)]
    found = certified_margin(seen, BOUNDS)
    assert found is not None and 0.45 <= found <= 0.55


def test_a_bound_in_nats_is_kept_beside_the_other() -> None:
    rnd = random.Random(3)
    both = Bounds(0.02, 0.05, 0.05)
    near = [Sample(0.008, True, rnd.random()) for _ in range(1000)]
    far = [Sample(0.3, True, rnd.random()) for _ in range(1000)]
    assert certified_margin(near, both) == 0.0 and certified_margin(far, both) is None
    assert certified_margin(far, BOUNDS) == 0.0 and certified_margin(far, Bounds(None, 0.05, 0.05)) is None
    assert certified_margin([Sample(math.inf, True, 0.9)] * 1000, both) is None
    assert certified_margin(near, Bounds(0.0, None, 0.05)) is None, "nothing may differ"


def test_the_strictest_threshold_that_fails_ends_the_search() -> None:
    sure_and_wrong = [Sample(0.0, False, 0.96)] * 40 + [Sample(0.0, True, 0.96)] * 400
    assert certified_margin([*sure_and_wrong, *[Sample(0.0, True, 0.3)] * 100_000], BOUNDS) is None


def test_the_alarm_tells_a_shift_within_200_answers_and_is_seldom_false() -> None:
    """Of answers that stood one in five is compared once the alarm is on the watch; they begin to differ in 0.3."""
    late, false = 0, 0
    for seed in range(200):
        rnd, calm = random.Random(seed), Certificate()
        false += any(calm.observe(rnd.random() > 0.01, 0.02) for _ in range(300))
        shifted = Certificate()
        for _ in range(300):
            shifted.observe(rnd.random() > 0.01, 0.02)
        late += not any(shifted.observe(rnd.random() > 0.3, 0.02) for _ in range(40))
    assert late <= 4 and false <= 20, (late, false)


def test_a_certificate_survives_being_written_and_a_damaged_one_is_refused() -> None:
    made = Certificate(0.5, 2, 600, 1.5)
    assert (
        Certificate.from_json(made.to_json()) == made
        and Certificate.from_json(Certificate().to_json()) == Certificate()
    )
    for wrong in ([0.33, 1, 1, 1.0], [None, -1, 1, 1.0], [None, True, 1, 1.0], [None, 1, 1, float("nan")], [None, 1]):
        with pytest.raises((ValueError, TypeError)):
            Certificate.from_json(wrong)
    assert 0.0 in THRESHOLDS and sorted(THRESHOLDS, reverse=True) == list(THRESHOLDS)

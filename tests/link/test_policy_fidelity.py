"""When a lane is closed and when it opens again; what is kept of it; what rows cost."""

import json
import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import EmblemaError, StoreError
from emblema.link.policy.costs import Costs
from emblema.link.policy.fidelity import (
    KEPT,
    FidelityLog,
    LaneStats,
    Sample,
    broken,
    describe,
    divergence,
    divergence_of,
    first_token,
    met,
)
from emblema.link.policy.policy import Lane, Policy

POLICY = Policy(max_kl=0.05)
GOOD, BAD, AWFUL = Sample(0.001, True), Sample(0.3, False), Sample(40.0, False)
ENDLESS = Sample(math.inf, False)
WEIGHTS = st.lists(st.integers(1, 10**9), min_size=2, max_size=12)
NOT_FINITE = (math.nan, math.inf)


@given(st.data(), st.floats(-50, 50), st.floats(-50, 50))
def test_divergence_is_the_sum_of_its_definition(data: st.DataObject, up: float, down: float) -> None:
    """Of probabilities that are known as whole numbers, in place of logits that would have to be normalised."""
    left = data.draw(WEIGHTS)
    right = data.draw(st.lists(st.integers(1, 10**9), min_size=len(left), max_size=len(left)))
    whole, other = sum(left), sum(right)
    wanted = math.fsum(p / whole * math.log(p * other / (q * whole)) for p, q in zip(left, right, strict=True))
    found = divergence([math.log(p) + up for p in left], [math.log(q) + down for q in right])
    assert found == pytest.approx(wanted, abs=1e-9) and found >= 0


def test_divergence_of_two_coins() -> None:
    left, right = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert divergence(left, right) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert divergence(right, left) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert divergence(torch.tensor([0.0, 0.0]), torch.tensor([0.0, 0.0])) == 0


def test_divergence_leaves_out_tokens_that_the_reference_never_says() -> None:
    assert divergence([0.0, -math.inf], [0.0, 0.0]) == pytest.approx(math.log(2))
    assert divergence([0.0, -math.inf], [0.0, -math.inf]) == 0
    assert divergence([0.0, -1e5], [0.0, -math.inf]) == 0, "as good as never"
    assert divergence([0.0, 0.0], [0.0, -math.inf]) == math.inf


@given(st.data())
def test_what_is_not_finite_is_infinitely_far(data: st.DataObject) -> None:
    """Wherever it is, and on either side; its first token agrees with none."""
    count = data.draw(st.integers(1, 8))
    sides = [data.draw(st.lists(st.floats(-30, 30), min_size=count, max_size=count)) for _ in range(2)]
    for side in sides[: data.draw(st.integers(1, 2))]:
        side[data.draw(st.integers(0, count - 1))] = data.draw(st.sampled_from(NOT_FINITE))
    for reference, method in (sides, reversed(sides)):
        sample = Sample.of(reference, method)
        assert sample == ENDLESS and divergence(reference, method) == math.inf
    assert divergence([-math.inf] * 2, [0.0, 0.0]) == math.inf and first_token([-math.inf] * 2) == -1


def test_divergence_refuses_different_vocabularies() -> None:
    with pytest.raises(EmblemaError, match="3 and over 2"):
        divergence([1, 2, 3], [1, 2])


def test_a_sample_says_whether_the_first_tokens_are_the_same() -> None:
    assert Sample.of([0.0, 2.0, 1.0], [0.0, 1.5, 1.0]).agrees
    assert not Sample.of([0.0, 2.0, 1.0], [0.0, 1.0, 1.5]).agrees
    assert (first_token([0.0, 2.0, 1.0]), first_token([0.0, -math.inf])) == (1, 0)


def test_infinite_divergences_close_a_lane_and_never_open_one() -> None:
    """An infinite mean has no interval, and must not be lost in one."""
    assert divergence_of([GOOD, ENDLESS]) == divergence_of([ENDLESS] * 3) == (math.inf, math.inf)
    assert broken([ENDLESS] * 4, POLICY) and broken([ENDLESS, *[GOOD] * 40, ENDLESS], POLICY)
    assert not broken([ENDLESS, *[GOOD] * 40], POLICY), "never by one item"
    assert not met([ENDLESS, *[GOOD] * 63], POLICY) and "inf nats" in describe([ENDLESS, GOOD])
    lane = LaneStats(False)
    assert sum(fed(lane, [ENDLESS] * 4)) == 1 and lane.closed
    assert not any(fed(lane, [ENDLESS, *[GOOD] * 63]))


def fed(standing: LaneStats, samples: list[Sample], policy: Policy = POLICY) -> list[bool]:
    return [standing.add(sample, policy) for sample in samples]


def test_a_bad_lane_is_closed_and_a_good_one_opens_again() -> None:
    standing = LaneStats(False)
    assert sum(fed(standing, [BAD, Sample(0.2, True)] * 4)) == 1 and standing.closed and standing.turns == 1
    assert not any(fed(standing, [GOOD] * 7)), "not at once"
    assert sum(fed(standing, [GOOD] * 63)) == 1 and not standing.closed, "judged by what came of late"
    assert not any(fed(standing, [GOOD] * 200)) and len(standing.samples) == KEPT
    assert standing.measured == 278


@given(
    st.lists(st.sampled_from([GOOD, Sample(0.01, True)]), max_size=60),
    st.floats(0.06, 1e6) | st.just(math.inf),
    st.data(),
)
def test_no_single_item_turns_a_lane_over(samples: list[Sample], kl: float, data: st.DataObject) -> None:
    """One outlier of any size among items that keep the bound, wherever it comes."""
    where = data.draw(st.integers(0, len(samples)))
    series = [*samples[:where], Sample(kl, False), *samples[where:]]
    for policy in (POLICY, Policy(max_kl=None, min_agreement=0.99), Policy(min_agreement=0.99)):
        assert not any(fed(LaneStats(False), series, policy))


@given(st.lists(st.sampled_from([GOOD, BAD, AWFUL, ENDLESS, Sample(0.05, True)]), max_size=80))
def test_no_set_of_items_breaks_and_keeps_a_bound(samples: list[Sample]) -> None:
    for policy in (POLICY, Policy(max_kl=None, min_agreement=0.9), Policy(min_agreement=0.9)):
        assert not (broken(samples, policy) and met(samples, policy))
        assert not broken(samples, Policy(max_kl=None)), "no bound, nothing to break"


def test_an_agreement_is_closed_by_failures_and_opened_by_enough_items() -> None:
    policy = Policy(max_kl=None, min_agreement=0.95)
    wrong, right = Sample(0.0, False), Sample(0.0, True)
    assert not broken([wrong, *[right] * 3], policy) and broken([wrong, wrong, wrong, right], policy)
    assert not broken([wrong, wrong, *[right] * 60], policy), "2 of 62 are within 5 %"
    assert not met([right] * 13, policy) and met([right] * 14, policy)
    assert not met([wrong, *[right] * 13], policy)


def test_another_bound_is_judged_by_the_same_items() -> None:
    standing = LaneStats(False)
    fed(standing, [Sample(0.02, True)] * 10)
    assert standing.verdict("image", Lane.PATCH, POLICY).open
    strict = Policy(max_kl=0.01)
    assert not standing.verdict("image", Lane.PATCH, strict).open
    assert "0.02 nats" in standing.verdict("image", Lane.PATCH, strict).reason
    bare = LaneStats(True)
    fed(bare, [Sample(0.02, True)] * 10)
    assert not bare.closed and not bare.verdict("text", Lane.BARE, strict).open
    assert bare.verdict("text", Lane.BARE, Policy(max_kl=0.1)).open
    assert not bare.verdict("text", Lane.BARE, Policy(max_kl=0)).open


def test_lanes_begin_as_the_menu_says() -> None:
    ledger = FidelityLog()
    for lane in (Lane.PATCH, Lane.ORBIT):
        assert ledger.verdict("m", "image", lane, POLICY).open
    for lane in (Lane.DRIFT, Lane.BARE):
        assert not ledger.verdict("m", "image", lane, POLICY).open
    for _ in range(8):
        ledger.record("m", "text", Lane.BARE, GOOD, POLICY)
    assert ledger.verdict("m", "text", Lane.BARE, POLICY).open
    assert not ledger.verdict("m", "image", Lane.BARE, POLICY).open, "another kind"
    assert not ledger.verdict("n", "text", Lane.BARE, POLICY).open, "another model"


def filled() -> FidelityLog:
    ledger = FidelityLog()
    for index in range(40):
        ledger.record("m", "image", Lane.PATCH, Sample(index / 1000, index % 7 > 0), POLICY)
        ledger.record("m", "text", Lane.BARE, GOOD, POLICY)
    ledger.record("n", "audio", Lane.ORBIT, BAD, Policy(max_kl=None, min_agreement=0.5))
    ledger.set_plateau("m", 16)
    return ledger


def test_a_log_is_the_same_from_its_file() -> None:
    ledger = filled()
    again = FidelityLog.from_json(json.loads(json.dumps(ledger.to_json())))
    assert again.to_json() == ledger.to_json() and again.reports() == ledger.reports()
    assert again.plateau("m") == 16 and again.plateau("n") is None
    for one in (ledger, again):
        one.record("m", "image", Lane.PATCH, BAD, POLICY)
    assert again.to_json() == ledger.to_json()


HOSTILE = [None, 7, "x", [], {}, -1, True, 1e999, float("nan"), {"lane": "full"}, "x" * 500, [[]], 2**70, "\x1b[2J"]


@given(st.data())
def test_a_hostile_file_is_refused_or_harmless(data: st.DataObject) -> None:
    """Any value of a good file in exchange for another."""
    plain = filled().to_json()
    places: list[tuple[object, object]] = []

    def walk(value: object) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for name, inner in list(items):
            places.append((value, name))
            walk(inner)

    walk(plain)
    holder, name = data.draw(st.sampled_from(places))
    holder[name] = data.draw(st.sampled_from(HOSTILE))  # type: ignore[index]
    try:
        ledger = FidelityLog.from_json(plain)
    except StoreError:
        return
    json.dumps(ledger.to_json(), allow_nan=False)
    assert all(line.kind.isprintable() for line in ledger.reports())
    ledger.record("m", "image", Lane.PATCH, GOOD, POLICY)


@pytest.mark.parametrize("data", HOSTILE)
def test_what_is_no_log_is_refused(data: object) -> None:
    with pytest.raises(StoreError, match="no log of measured lanes"):
        FidelityLog.from_json(data)


def test_costs_are_told_apart_once_there_is_enough_to_tell() -> None:
    """Half a millisecond a computed row, a tenth a taken one, with noise of a tenth."""
    noise, costs = random.Random(), Costs()
    for index in range(60):
        computed, taken = noise.randrange(10, 300), noise.randrange(0, 300)
        if index == 20:
            assert costs.gain(100, 0) is None and costs.rates is None, "too few"
        seconds = 0.002 + 0.0005 * computed + 0.0001 * taken
        costs.observe(computed, taken, noise.randrange(2**20), seconds * noise.uniform(0.95, 1.05))
    rates = costs.rates
    assert rates is not None and 0.0004 < rates.computed < 0.0006 and 0 < rates.taken < 0.0002
    gain = costs.gain(100, 0)
    assert gain is not None and 0.02 < gain < 0.06


def test_costs_say_nothing_where_prompts_are_alike_or_noise_is_larger() -> None:
    alike = Costs()
    for _ in range(60):
        alike.observe(100, 0, 0, 0.05)
    assert alike.gain(100, 0) is None and alike.rates is None
    noise, costs = random.Random(5), Costs()
    for _ in range(60):
        costs.observe(noise.randrange(10, 300), noise.randrange(10, 300), noise.randrange(2**20), noise.uniform(0, 1))
    assert costs.gain(5, 0) is None


@given(st.lists(st.sampled_from([GOOD, Sample(0.01, True)]), max_size=60), st.floats(0.06, 1e6), st.data())
def test_nor_does_it_a_lane_that_is_dear_to_measure(samples: list[Sample], kl: float, data: st.DataObject) -> None:
    where = data.draw(st.integers(0, len(samples)))
    series = [*samples[:where], Sample(kl, False), *samples[where:]]
    for policy in (POLICY, Policy(max_kl=None, min_agreement=0.99), Policy(min_agreement=0.99)):
        standing = LaneStats(False)
        assert not any(standing.add(one, policy, expensive=True) for one in series)


def test_survivors_are_closed_by_few_very_bad_ones_and_prove_themselves_longer_each_time() -> None:
    ledger = FidelityLog()

    def feed(*samples: Sample, lane: Lane = Lane.SURVIVOR) -> bool:
        for sample in samples:
            ledger.record("m", "image", lane, sample, POLICY)
        return ledger.verdict("m", "image", lane, POLICY).open

    assert feed(*[GOOD] * 20) and feed(AWFUL), "one never"
    assert feed(*[GOOD] * 20, AWFUL, AWFUL, lane=Lane.PATCH), "an interval does not see it yet"
    assert not feed(AWFUL)
    assert not feed(*[GOOD] * 15) and feed(GOOD)
    assert feed(GOOD, BAD) and not feed(BAD), "0.3 nats, with the worst left out and three counted as four"
    assert not feed(*[GOOD] * 63) and feed(GOOD), "twice as many for each turn since, and no more than count"
    assert not feed(AWFUL, AWFUL) and not feed(*[GOOD] * 63) and feed(GOOD)
    assert not broken([AWFUL, *[GOOD] * 30], POLICY)

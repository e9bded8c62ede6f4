"""When a lane is closed and when it opens again; what is kept of it; what rows cost."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import StoreError
from emblema.link.policy.costs import Costs
from emblema.link.policy.fidelity import KEPT, FidelityLog, LaneStats, Sample, broken, met
from emblema.link.policy.policy import Lane, Policy

POLICY = Policy(max_kl=0.05)
GOOD, BAD, AWFUL = Sample(0.001, True), Sample(0.3, False), Sample(40.0, False)


def fed(standing: LaneStats, samples: list[Sample], policy: Policy = POLICY) -> list[bool]:
    return [standing.add(sample, policy) for sample in samples]


def test_a_bad_lane_is_closed_and_a_good_one_opens_again() -> None:
    standing = LaneStats(False)
    assert sum(fed(standing, [BAD, Sample(0.2, True)] * 4)) == 1 and standing.closed and standing.turns == 1
    assert not any(fed(standing, [GOOD] * 7)), "not at once"
    assert sum(fed(standing, [GOOD] * 63)) == 1 and not standing.closed, "judged by what came of late"
    assert not any(fed(standing, [GOOD] * 200)) and len(standing.samples) == KEPT
    assert standing.measured == 278


@given(st.lists(st.sampled_from([GOOD, Sample(0.01, True)]), max_size=60), st.floats(0.06, 1e6), st.data())
def test_no_single_item_turns_a_lane_over(samples: list[Sample], kl: float, data: st.DataObject) -> None:
    """One outlier of any size among items that keep the bound, wherever it comes."""
    where = data.draw(st.integers(0, len(samples)))
    series = [*samples[:where], Sample(kl, False), *samples[where:]]
    for policy in (POLICY, Policy(max_kl=None, min_agreement=0.99), Policy(min_agreement=0.99)):
        assert not any(fed(LaneStats(False), series, policy))


@given(st.lists(st.sampled_from([GOOD, BAD, AWFUL, Sample(0.05, True)]), max_size=80))
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

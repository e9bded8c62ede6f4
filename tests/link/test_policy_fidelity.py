"""When a lane is closed and when it opens again, and what is kept of it."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emblema.errors import EmblemaError, StoreError
from emblema.link.lanes import Lane
from emblema.link.policy.certificate import FIRST_LOOK, PROVISIONAL
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.lane_stats import (
    KEPT,
    REFUSED,
    LaneStats,
    breaks_bounds,
    breaks_bounds_without_worst,
    keeps_bounds,
)
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample, compare, describe, divergence, divergence_of, first_token
from emblema.link.prompt import Prompt, TextPart

POLICY = Policy(max_kl=0.05, alpha=None)
WRITTEN = Lane.SETTLED
"""A lane without a certificate."""
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
        sample = compare(reference, method)
        assert (sample.kl, sample.agrees) == (math.inf, False) and divergence(reference, method) == math.inf
    assert divergence([-math.inf] * 2, [0.0, 0.0]) == math.inf and first_token([-math.inf] * 2) == -1


def test_divergence_refuses_different_vocabularies() -> None:
    with pytest.raises(EmblemaError, match="3 and over 2"):
        divergence([1, 2, 3], [1, 2])


def test_a_sample_says_whether_the_first_tokens_are_the_same() -> None:
    assert compare([0.0, 2.0, 1.0], [0.0, 1.5, 1.0]).agrees
    assert not compare([0.0, 2.0, 1.0], [0.0, 1.0, 1.5]).agrees
    assert (first_token([0.0, 2.0, 1.0]), first_token([0.0, -math.inf])) == (1, 0)


def test_infinite_divergences_close_a_lane_and_never_open_one() -> None:
    """An infinite mean has no interval, and must not be lost in one."""
    assert divergence_of([GOOD, ENDLESS]) == divergence_of([ENDLESS] * 3) == (math.inf, math.inf)
    assert breaks_bounds([ENDLESS] * 4, POLICY) and breaks_bounds([ENDLESS, *[GOOD] * 40, ENDLESS], POLICY)
    assert not breaks_bounds([ENDLESS, *[GOOD] * 40], POLICY), "never by one item"
    assert not keeps_bounds([ENDLESS, *[GOOD] * 63], POLICY) and "inf nats" in describe([ENDLESS, GOOD])
    lane = LaneStats(False)
    assert sum(fed(lane, [ENDLESS] * 4)) == 1 and lane.closed
    assert not any(fed(lane, [ENDLESS, *[GOOD] * 63]))


def fed(standing: LaneStats, samples: list[Sample], policy: Policy = POLICY) -> list[bool]:
    return [standing.add(sample, policy, WRITTEN) for sample in samples]


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
    for policy in (POLICY, Policy(max_kl=None, alpha=0.01), Policy(alpha=0.01)):
        assert not any(fed(LaneStats(False), series, policy))
        if math.isfinite(kl):
            standing = LaneStats(False)
            assert not any(standing.add(one, policy, Lane.SURVIVOR) for one in series), (
                "nor one that costs most to measure"
            )


@given(st.lists(st.sampled_from([GOOD, BAD, AWFUL, ENDLESS, Sample(0.05, True)]), max_size=80))
def test_no_set_of_items_breaks_and_keeps_a_bound(samples: list[Sample]) -> None:
    for policy in (POLICY, Policy(max_kl=None, alpha=0.1), Policy(alpha=0.1)):
        assert not (breaks_bounds(samples, policy) and keeps_bounds(samples, policy))
        assert not breaks_bounds(samples, Policy(max_kl=None, alpha=None)), "no bound, nothing to break"


def test_an_agreement_is_closed_by_failures_and_opened_by_enough_items() -> None:
    policy = Policy(max_kl=None, alpha=0.05)
    wrong, right = Sample(0.0, False), Sample(0.0, True)
    assert not breaks_bounds([wrong, *[right] * 3], policy) and breaks_bounds([wrong, wrong, wrong, right], policy)
    assert not breaks_bounds([wrong, wrong, *[right] * 60], policy), "2 of 62 are within 5 %"
    assert not keeps_bounds([right] * 13, policy) and keeps_bounds([right] * 14, policy)
    assert not keeps_bounds([wrong, *[right] * 13], policy)


def test_another_bound_is_judged_by_the_same_items() -> None:
    standing = LaneStats(False)
    fed(standing, [Sample(0.02, True)] * 10)
    assert standing.verdict(POLICY, WRITTEN).open
    strict = Policy(max_kl=0.01, alpha=None)
    assert not standing.verdict(strict, WRITTEN).open and "0.02 nats" in standing.verdict(strict, WRITTEN).reason
    assert standing.verdict(Policy(max_kl=0.1), WRITTEN).open and not standing.verdict(Policy(max_kl=0), WRITTEN).open


def test_lanes_begin_open_and_each_is_judged_alone() -> None:
    log = FidelityLog()
    for lane in (Lane.PATCH, Lane.QUERY, Lane.SURVIVOR):
        assert log.verdict("m", "image", lane, POLICY).open
        assert not log.verdict("m", "image", lane, Policy(alpha=0)).open, "exact rows only"
    for _ in range(8):
        log.record("m", "text", Lane.PATCH, BAD, POLICY)
    assert not log.verdict("m", "text", Lane.PATCH, POLICY).open
    assert log.verdict("m", "image", Lane.PATCH, POLICY).open, "another kind"
    assert log.verdict("n", "text", Lane.PATCH, POLICY).open, "another model"


def answer(rnd: random.Random, wrong: float) -> Sample:
    """Answers of any margin; those below 0.3 differ often, the others in a share."""
    margin = rnd.random()
    agrees = rnd.random() >= (0.3 if margin < 0.3 else wrong)
    return Sample(0.0 if agrees else 1.0, agrees, margin)


def test_a_margin_is_provisional_then_certified_then_taken_back_where_traffic_shifts() -> None:
    rnd, policy, log = random.Random(4), Policy(max_kl=None), FidelityLog()
    lanes = [("image", Lane.QUERY)]

    def least() -> float:
        return log.least_margin("m", lanes, policy)

    def asked(count: int, wrong: float) -> int:
        """Ask until the lane is closed; return how many answers that took."""
        for number in range(count):
            sample = answer(rnd, wrong)
            log.record("m", *lanes[0], sample, policy, accepted=sample.margin >= least())
            if not log.verdict("m", *lanes[0], policy).open:
                return number
        return count

    assert least() == PROVISIONAL and not log.is_certified("m", lanes)
    assert asked(4 * FIRST_LOOK, 0.0) == 4 * FIRST_LOOK
    certified = least()
    assert 0.25 <= certified <= 0.4 and log.is_certified("m", lanes)
    assert log.least_margin("m", [*lanes, ("image", Lane.PATCH)], policy) == PROVISIONAL, "the largest of all lanes"
    assert asked(200, 0.3) < 60, "it closes"
    assert least() == REFUSED and not log.is_certified("m", lanes)
    # Trials of a closed lane have to show it anew, with nothing of what was before.
    asked(1, 0.0)
    for _ in range(4 * FIRST_LOOK):
        sample = answer(rnd, 0.0)
        log.record("m", *lanes[0], sample, policy, accepted=sample.margin >= PROVISIONAL)
    assert log.verdict("m", *lanes[0], policy).open and log.is_certified("m", lanes)


def test_what_does_not_stand_closes_nothing() -> None:
    lane = LaneStats(False)
    assert not any(lane.add(Sample(3.0, False, 0.1), Policy(), Lane.QUERY, accepted=False) for _ in range(100))
    assert not lane.closed and lane.least_margin(Policy()) == PROVISIONAL and len(lane.compared) == 100


def test_the_share_that_does_not_stand_is_of_second_passes() -> None:
    log = FidelityLog()
    prompt = Prompt.of([TextPart((5, 6))], 1)
    before = log.unsure_share("m", prompt)
    for number in range(100):
        log.note_accepted("m", [("image", Lane.PATCH)], False, POLICY)
        log.note_accepted("m", [("image", Lane.QUERY)], number % 2 == 0, POLICY)
    assert before == 0.1 == log.unsure_share("n", prompt)
    assert 0.2 < log.unsure_share("m", prompt) < 0.8


def filled() -> FidelityLog:
    log = FidelityLog()
    for index in range(40):
        log.record("m", "image", Lane.PATCH, Sample(index / 1000, index % 7 > 0), POLICY)
        log.record("m", "text", Lane.QUERY, GOOD, POLICY)
    log.record("n", "audio", Lane.SURVIVOR, BAD, Policy(max_kl=None, alpha=0.5))
    log.note_accepted("m", [("text", Lane.QUERY)], True, POLICY)
    log.set_plateau("m", 16)
    return log


def test_a_log_is_the_same_from_its_file() -> None:
    log = filled()
    again = FidelityLog.from_json(json.loads(json.dumps(log.to_json())))
    assert again.to_json() == log.to_json() and again.reports() == log.reports()
    assert again.plateaus() == {"m": 16}
    for one in (log, again):
        one.record("m", "image", Lane.PATCH, BAD, POLICY)
    assert again.to_json() == log.to_json()


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
        log = FidelityLog.from_json(plain)
    except StoreError:
        return
    json.dumps(log.to_json(), allow_nan=False)
    assert all(line.kind.isprintable() for line in log.reports())
    log.record("m", "image", Lane.PATCH, GOOD, POLICY)


@pytest.mark.parametrize("data", HOSTILE)
def test_what_is_no_log_is_refused(data: object) -> None:
    with pytest.raises(StoreError, match="no log of measured lanes"):
        FidelityLog.from_json(data)


def test_survivors_are_closed_by_few_very_bad_ones_and_prove_themselves_longer_each_time() -> None:
    log = FidelityLog()

    def feed(*samples: Sample, lane: Lane = Lane.SURVIVOR) -> bool:
        for sample in samples:
            log.record("m", "image", lane, sample, POLICY)
        return log.verdict("m", "image", lane, POLICY).open

    assert feed(*[GOOD] * 20) and feed(AWFUL), "one never"
    assert feed(*[GOOD] * 20, AWFUL, AWFUL, lane=Lane.PATCH), "an interval does not see it yet"
    assert not feed(AWFUL)
    assert not feed(*[GOOD] * 15) and feed(GOOD)
    assert feed(GOOD, BAD) and not feed(BAD), "0.3 nats, with the worst left out and three counted as four"
    assert not feed(*[GOOD] * 63) and feed(GOOD), "twice as many for each turn since, and no more than count"
    assert not feed(AWFUL, AWFUL) and not feed(*[GOOD] * 63) and feed(GOOD)
    assert not breaks_bounds([AWFUL, *[GOOD] * 30], POLICY)


def test_a_closed_lane_opens_with_confidence_alone() -> None:
    """Not by a mean that keeps the bound, as long as chance may have made it."""
    for count in range(8, 64):
        for spread in (0.01, 0.03, 0.08, 0.2):
            # Half of them below the mean and half above, so that it is known.
            kls = [max(0.0, 0.04 - spread), 0.04 + spread] * (count // 2)
            mean = sum(kls) / len(kls)
            error = math.sqrt(sum((kl - mean) ** 2 for kl in kls) / (len(kls) - 1) / len(kls))
            sure = mean + 1.645 * error <= POLICY.max_kl  # type: ignore[operator]
            assert keeps_bounds([Sample(kl, True) for kl in kls], POLICY) == sure, (count, spread)
    lane = LaneStats(False)
    while not lane.closed:
        lane.add(BAD, POLICY, WRITTEN)
    for kl in [0.0, 0.0, 0.0, 0.19] * 4:
        assert not lane.add(Sample(kl, True), POLICY, WRITTEN) and lane.closed, "a mean of 0.0475, of 0.05"
    lane = LaneStats(False)
    while not lane.closed:
        lane.add(BAD, POLICY, WRITTEN)
    opened = [lane.add(Sample(0.0475, True), POLICY, WRITTEN) for _ in range(8)]
    assert opened == [False] * 7 + [True]


@pytest.mark.parametrize(
    ("wrong", "right", "alpha", "closed"),
    [
        (1, 0, 0.25, False),
        (2, 0, 0.25, False),
        (3, 1, 0.25, True),
        (2, 2, 0.25, False),
        (2, 2, 0.2, True),
        (3, 9, 0.2, False),
    ],
)
def test_wrong_answers_but_for_one_overspend_a_share_that_they_are_above(
    wrong: int, right: int, alpha: float, closed: bool
) -> None:
    """Of four answers one beside the worst is a share of .25: not above it."""
    samples = [Sample(0.0, False)] * wrong + [Sample(0.0, True)] * right
    assert breaks_bounds_without_worst(samples, Policy(max_kl=None, alpha=alpha)) is closed


@pytest.mark.parametrize(
    ("losses", "closed"), [((9.0, 0.2), False), ((9.0, 0.25), True), ((9.0, 0.05, 0.05, 0.1), False)]
)
def test_losses_but_for_the_worst_overspend_a_mean_that_they_are_above(losses: tuple[float, ...], closed: bool) -> None:
    assert (
        breaks_bounds_without_worst([Sample(loss, True) for loss in losses], Policy(max_kl=0.05, alpha=None)) is closed
    )

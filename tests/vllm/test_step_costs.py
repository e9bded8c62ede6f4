"""Whether linking pays: what is fitted from steps, and what a prompt's pages are worth to later ones."""

import random
from collections.abc import Iterator
from dataclasses import astuple, replace

import pytest

from emblema.kv.patch import form_patch
from emblema.link.policy.decide import COSTS_MORE
from emblema.served.spans import CachedSpans
from emblema.store import Store
from emblema.vllm.prompt_reuse import PromptReuse
from emblema.vllm.step_costs import MOST_TRIED, TRIED_KNOWN, TRIED_UNKNOWN, StepCosts, StepRates, StepWork
from tests.link.pieces import LAYOUTS
from tests.vllm.requests import SPEC, TOKENS, planned, planner_of, put, request, zeros

WHOLE = CachedSpans(((20, 1020),))
"""One long span after 20 rows of text, of a prompt of 1,040."""


def test_rates_are_fitted_from_steps_in_spite_of_noise() -> None:
    rng = random.Random(1)
    costs = StepCosts()
    sharing = []
    for _ in range(256):
        loads = rng.choice([0, rng.randint(1, 10)])
        work = StepWork(rng.randint(1, 4000), rng.randint(0, 40), loads, loads * rng.randint(50, 500))
        seconds = (5.0 + work.rows * 0.1 + work.requests * 20.0 + work.loads * 10.0 + work.taken * 0.03) * 1e-3
        costs.observe_step(work, seconds * rng.uniform(0.95, 1.05) * (10.0 if rng.random() < 0.05 else 1.0))
        sharing += [work.requests] * (work.requests > 0)
    assert costs.rates.request == pytest.approx(200, rel=0.05) and costs.rates.taken == pytest.approx(0.3, rel=0.2)
    assert costs.rates.load == pytest.approx(100, rel=0.25)
    own = costs.step * sum(sharing) / len(sharing)
    assert own == pytest.approx(50, rel=0.5), "five milliseconds of a tenth for each row"
    assert costs.row_costs().forward == costs.rates.load + 2 * costs.rates.request + costs.step


@pytest.mark.parametrize("requests", [1, 4, 16])
def test_requests_share_what_a_step_costs(requests: int) -> None:
    rng, costs = random.Random(3), StepCosts()
    for number in range(256):
        rows, loads = rng.randint(1, 2000), int(number % 2)
        # Every other step only decodes.
        work = StepWork(rows, requests * loads, loads, 500 * loads)
        costs.observe_step(work, (20.0 + rows * 0.1 + work.requests * 4.0 + work.taken * 0.02) * 1e-3)
    assert costs.step == pytest.approx(200 / requests, rel=0.1)


def test_a_second_pass_costs_a_load_and_a_request_for_each_pass() -> None:
    costs = StepCosts()
    costs.rates = StepRates(10.0, 20.0, 0.5)
    assert (costs.row_costs().forward, costs.row_costs().taken) == (40.0, 0.5)


def test_rates_are_fitted_where_loads_have_as_many_rows() -> None:
    rng = random.Random(2)
    costs = StepCosts()
    for _ in range(256):
        loads = rng.choice([0, rng.randint(1, 8)])
        work = StepWork(rng.randint(1, 2000), rng.randint(0, 8), loads, loads * 1500)
        seconds = (5.0 + work.rows * 0.1 + work.requests * 4.0 + work.taken * 0.02) * 1e-3
        costs.observe_step(work, seconds * rng.uniform(0.97, 1.03))
    assert costs.rates.load + 1500 * costs.rates.taken == pytest.approx(300, rel=0.05)
    assert costs.rates.request == pytest.approx(40, rel=0.05)


def test_few_steps_of_a_busy_machine_do_not_make_rates_of_chance() -> None:
    """Loads of nearly as many rows cannot be told from these rows where seconds are three times off."""
    for seed in range(20):
        rng, costs = random.Random(seed), StepCosts()
        for number in range(64):
            loads = rng.randint(1, 20) if number % 5 == 0 else 0
            rows = rng.choice([2, 200, 2000])
            work = StepWork(rows, rng.randint(1, 20), loads, loads * rng.randint(1800, 2064))
            seconds = (7.0 + work.rows * 0.5 + work.requests * 16.0 + work.loads * 15.0 + work.taken * 0.01) * 1e-3
            costs.observe_step(work, seconds * rng.uniform(0.5, 1.5))
        rates = costs.rates
        assert 8 < rates.load < 128 and 8 < rates.request < 64 and rates.taken < 0.2, seed


def test_rates_stay_where_steps_do_not_tell() -> None:
    costs = StepCosts()
    for _ in range(256):
        costs.observe_step(StepWork(500, 1, 0, 0), 0.05)
    assert costs.rates == StepRates()
    for _ in range(256):
        costs.observe_step(StepWork(500, 1, 1, 100), 0.05)
    assert astuple(costs.rates) == pytest.approx(astuple(StepRates()))
    costs.observe_step(StepWork(1, 1, 1, 1), 0.0)


def test_a_long_span_pays_and_a_short_one_does_not() -> None:
    costs = StepCosts()
    assert costs.pays(WHOLE, 0, 1040, 0.0)
    short = CachedSpans(((20, 90),))
    assert not costs.pays(short, 0, 110, 0.0), "a compute span costs as much as the rows that it saves"
    assert costs.pays(short, 0, 110, 0.0, trying=True), "it would pay if linking cost the least that it may"
    # Nothing is left to be taken after what the prefix cache has.
    assert not costs.pays(WHOLE, 1020, 1040, 0.0) and not costs.pays(CachedSpans(), 0, 1040, 0.0)
    assert not costs.pays(WHOLE, 990, 1040, 0.0) and costs.pays(WHOLE, 500, 1040, 0.0)


def test_pages_that_later_prompts_would_share_are_not_given_up_for_little() -> None:
    """A picture of 100 rows at the front of 1,000: whatever begins alike would compute the other 900 again."""
    front, costs = CachedSpans(((20, 220),)), StepCosts()
    assert costs.pays(front, 0, 1040, 0.0) and not costs.pays(front, 0, 1040, 1.0)
    assert not costs.pays(front, 0, 1040, 1.0, trying=True), "nor to learn what linking costs"
    assert costs.pays(WHOLE, 0, 1040, 1.0), "where all is linked, the next prompt links it too"


def test_a_picture_at_the_very_front_is_exact_and_costs_no_sharing() -> None:
    assert StepCosts().pays(CachedSpans(((2, 502),), exact=502), 0, 1040, 5.0)


def test_now_and_then_a_prompt_is_tried_and_less_often_once_costs_are_known() -> None:
    costs, rng = StepCosts(), random.Random(3)

    def tries(prompts: int) -> int:
        count = 0
        for _ in range(prompts):
            if costs.due():
                costs.tried()
                count += 1
        return count

    assert tries(4 * TRIED_UNKNOWN) == 4 and not costs.fitted
    for _ in range(16 * TRIED_UNKNOWN):
        costs.due()
    assert tries(MOST_TRIED) == MOST_TRIED, "none before could be tried, and some prompts in a row cost least"
    assert tries(8 * TRIED_UNKNOWN) <= 10
    assert costs.row_costs(trying=True).forward < costs.row_costs().forward
    for number in range(64):
        loads = number % 2
        work = StepWork(rng.randint(1, 2000), 4, loads, loads * rng.randint(100, 500))
        costs.observe_step(work, 1e-3 * (5 + work.rows * 0.1 + work.taken * 0.02))
    assert costs.fitted and tries(4 * TRIED_KNOWN) == 4
    for _ in range(4 * TRIED_KNOWN):
        costs.due()
    assert tries(MOST_TRIED) == 1


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as store:
        yield store


@pytest.mark.parametrize("strategy", ["auto", "patch-4"])
def test_auto_declines_what_does_not_pay_and_named_strategies_do_as_they_are_told(store: Store, strategy: str) -> None:
    costs = StepCosts()
    planner = planner_of(store, strategy, costs)
    put(store, request("a", "b"))
    planned(planner, "1", request("a", "b"))
    plan = planned(planner, "2", request("a", "b"))
    for key, rank, _ in plan.needs:
        patch = form_patch([zeros(LAYOUTS[0], TOKENS)] * len(LAYOUTS), rank, SPEC.dtype)
        assert store.tenant().put_artifact(key, patch)

    def linked(name: str, planning: float, scheduling: float) -> bool:
        """Whether a prompt is linked, by what a request costs while it is planned and when it is scheduled."""
        costs.rates = replace(costs.rates, request=planning)
        plan = planned(planner, name, request("a", "b"))
        costs.rates = replace(costs.rates, request=scheduling)
        assert bool(plan.cached.spans) == (strategy != "auto" or planning < 100)
        planner.admit(name, 0)
        taken = bool(plan.cached.spans)
        assert not plan.needs and not plan.lacking, "both patches are stored"
        report = planner.finish(name)
        assert report is not None and report["stored"] is True
        if not taken:
            assert report["strategy"] == "plain" and report["remark"] == COSTS_MORE
        return taken

    assert linked("3", 8.0, 8.0)
    assert linked("4", 1000.0, 1000.0) == linked("5", 8.0, 1000.0) == (strategy != "auto")


def test_a_prompt_is_weighed_once(store: Store) -> None:
    """A prompt that waits for pages asks again at each step, and counts once."""
    reuse = PromptReuse(shared=True)
    planner = planner_of(store, "auto", StepCosts(), reuse=reuse)
    planned(planner, "1", request("a"))
    planner.admit("1", 0)
    once = reuse.uses(b"")
    planner.admit("1", 0)
    assert reuse.uses(b"") == once != PromptReuse(shared=True).uses(b"")

"""The budget of learning: what answers earn, what learning spends, and when a prompt is learnt from."""

import threading

import pytest

from emblema.link.policy.learning_budget import LearningBudget

SHARE, AHEAD = 0.05, 100


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock) -> LearningBudget:
    return LearningBudget(clock)


def answer(budget: LearningBudget, clock: Clock, seconds: float = 1.0, count: int = 1) -> None:
    for _ in range(count):
        with budget.answering():
            clock.now += seconds


def test_the_first_prompt_is_learnt_from_before_anything_was_earned(budget: LearningBudget) -> None:
    assert budget.allows(1.0, SHARE, AHEAD)
    assert budget.costs.withheld == 0


def test_learning_inside_an_answer_is_no_part_of_it(budget: LearningBudget, clock: Clock) -> None:
    with budget.answering():
        clock.now += 3
        with budget.learning():
            clock.now += 2
            with budget.learning():
                clock.now += 1
        budget.spend(0.5)
        clock.now += 0.5
    assert budget.costs.answered == pytest.approx(3)
    assert budget.costs.learnt == pytest.approx(3.5)
    assert budget.costs.answers == 1


def test_an_answer_that_fails_counts(budget: LearningBudget, clock: Clock) -> None:
    with pytest.raises(ValueError, match="lost"), budget.answering():
        clock.now += 1
        raise ValueError("lost")
    assert budget.costs.answered == 1


def test_new_things_are_learnt_on_credit_that_is_bounded(budget: LearningBudget, clock: Clock) -> None:
    answer(budget, clock)
    budget.spend(SHARE * AHEAD)
    assert budget.allows(1.0, SHARE, AHEAD)
    budget.spend(SHARE * 2)
    assert not budget.allows(1.0, SHARE, AHEAD)
    assert budget.costs.withheld == 1


def test_what_is_worth_less_waits_until_the_debt_is_paid_back(budget: LearningBudget, clock: Clock) -> None:
    answer(budget, clock, count=10)
    budget.spend(SHARE * (10 + 0.5 * AHEAD))
    assert budget.allows(0.6, SHARE, AHEAD)
    assert not budget.allows(0.1, SHARE, AHEAD)
    answer(budget, clock, count=int(0.4 * AHEAD) + 1)
    assert budget.allows(0.1, SHARE, AHEAD)


def test_in_the_long_run_the_share_is_held(budget: LearningBudget, clock: Clock) -> None:
    """Learning that takes half of an answer, of prompts that are all new, for a thousand answers."""
    for _ in range(1000):
        if budget.allows(1.0, SHARE, AHEAD):
            budget.spend(0.5)
        answer(budget, clock)
    costs = budget.costs
    assert SHARE * 1000 <= costs.learnt <= SHARE * (1000 + AHEAD) + 0.5
    before = costs.learnt
    for _ in range(1000):
        if budget.allows(1.0, SHARE, AHEAD):
            budget.spend(0.5)
        answer(budget, clock)
    assert budget.costs.learnt - before == pytest.approx(SHARE * 1000, abs=0.5)


def test_no_bound_and_no_share(budget: LearningBudget, clock: Clock) -> None:
    assert not budget.allows(1.0, 0.0, AHEAD)
    answer(budget, clock)
    budget.spend(1e6)
    assert budget.allows(0.0, None, 0)


def test_threads_count_together(budget: LearningBudget) -> None:
    threads = [threading.Thread(target=lambda: [budget.spend(0.25) for _ in range(1000)] and None) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.costs.learnt == pytest.approx(1000)

"""Second passes that seldom stand are seldom tried, and soon tried again once they stand."""

import random
import statistics

from emblema.link.policy.expectations import LATEST, UNSURE, draw_unsure_share
from emblema.link.prompt import Prompt, TextPart


def prompts(count: int) -> list[Prompt]:
    rnd = random.Random(count)
    return [Prompt.of([TextPart(tuple(rnd.choices(range(9_000), k=6)))], 1) for _ in range(count)]


def test_draws_are_about_what_was_measured() -> None:
    for lost in (0, 8, 24, LATEST):
        rejected = [True] * lost + [False] * (LATEST - lost)
        draws = [draw_unsure_share(rejected, prompt) for prompt in prompts(400)]
        expected = (3 * UNSURE + lost) / (3 + LATEST)
        assert abs(statistics.mean(draws) - expected) < 0.02 and statistics.stdev(draws) < 0.09


def test_nothing_measured_is_the_usual_share() -> None:
    assert {draw_unsure_share([], prompt) for prompt in prompts(5)} == {UNSURE}


def test_a_prompts_draw_stays_until_something_is_measured() -> None:
    (prompt,) = prompts(1)
    rejected = [True, False, True]
    assert draw_unsure_share(rejected, prompt) == draw_unsure_share(rejected, prompt)
    assert draw_unsure_share(rejected, prompt) != draw_unsure_share([*rejected, True], prompt)


def test_a_lane_that_did_not_pay_comes_back() -> None:
    """Tried where the draw leaves a gain: seldom while nothing stands, nearly always once all does."""
    rejected = [True] * LATEST
    tried = [draw_unsure_share(rejected[-LATEST:], prompt) < 0.6 for prompt in prompts(300)]
    assert sum(tried) < 9
    rejected = [True] * 24 + [False] * 8
    tries = 0
    for prompt in prompts(2_000):
        if draw_unsure_share(rejected[-LATEST:], prompt) < 0.6:
            tries += 1
            rejected.append(False)
    assert tries > 1_500

"""What `auto` expects: how often prompts are gone on from, what came lately, and how often a second pass is unsure."""

import random
import statistics
from collections import OrderedDict

import pytest

from emblema.link.policy.expectations import (
    LATEST,
    LEAST_NEW,
    LONGEST,
    MOST_NEW,
    SOON,
    UNSURE,
    Continuations,
    RecentSightings,
    draw_unsure_share,
)
from emblema.link.prompt import ChunkPart, Prompt, TextPart
from tests.link.pieces import chunk


def prompt_of(*parts: str) -> Prompt:
    """A prompt of texts, and of chunks for parts that begin with `page`."""
    made = [
        ChunkPart(chunk(1, 3), source=part) if part.startswith("page") else TextPart(tuple(part.encode()))
        for part in parts
    ]
    return Prompt.of(made, 1)


NEW = prompt_of("hello", "page that nobody saw", "question")


def talk(number: int, turns: int) -> list[Prompt]:
    """A conversation sent whole at each turn."""
    opening = ("hello", f"page {number}", "map", f"page {number} b", "first question")
    return [prompt_of(*opening, *(f"turn {turn}" for turn in range(last))) for last in range(turns)]


def test_nothing_is_sure_before_anything_was_met() -> None:
    assert Continuations().share(NEW) == 0


def test_conversations_are_gone_on_from() -> None:
    known = Continuations()
    for number in range(20):
        for prompt in talk(number, 3):
            known.note(prompt)
    assert 0.85 < known.share(NEW) < 1


def test_turns_of_conversations_that_grow_are_counted_apart() -> None:
    known = Continuations()
    for number in range(80):
        for pages in range(1, 4):
            known.note(prompt_of(*(f"page {number} {page}" for page in range(pages)), "what is it"))
    assert known.share(NEW) > 0.9
    known.note(prompt_of("page 99 0", "question"))
    assert 0.3 < known.share(prompt_of("page 99 0", "page 99 1", "question")) < 0.5, "the second of three turns"


def test_a_window_that_slides_is_not_gone_on_from() -> None:
    known = Continuations()
    pages = [f"page {number}" for number in range(200)]
    for last in range(1, len(pages)):
        window = prompt_of(*pages[max(0, last - 6) : last], "question")
        if last > 6:
            assert known.share(window) < 0.05, "the first window alone grew"
        known.note(window)


@pytest.mark.parametrize("most", [9, 20])
def test_a_long_window_is_known_after_a_few_slides(most: int) -> None:
    known = Continuations()
    pages = [f"page {number}" for number in range(100)]
    shares = []
    for last in range(1, len(pages)):
        window = prompt_of(*pages[max(0, last - most) : last], "question")
        if last > most:
            shares.append(known.share(window))
        known.note(window)
    assert shares[0] > 0.5, "the first slide may be gone on from as all turns before it were"
    assert max(shares[2:]) < 0.05


@pytest.mark.parametrize("every_other", [False, True])
def test_rare_drops_are_gone_on_from(every_other: bool) -> None:
    """Of ten pages half leave, and the conversation grows again: each prompt but those before drops is gone on from."""
    known, shown = Continuations(), list[str]()
    for number in range(100):
        shown = shown if len(shown) < 10 else (shown[::2] if every_other else shown[5:])
        shown = [*shown, f"page {number}"]
        prompt = prompt_of(*shown, "question")
        if number > LEAST_NEW + 1:
            assert known.share(prompt) > 0.5
        known.note(prompt)


def test_prompts_that_never_come_again_are_not() -> None:
    known = Continuations()
    for number in range(SOON + 10):
        known.note(prompt_of("hello", f"page {number}", "question"))
        assert known.share(NEW) == 0


@pytest.mark.parametrize(
    ("later", "goes_on"),
    [
        (("hello", "page 1", "page 2", "another question"), True),
        (("hello", "page 1", "page 2", "question", "answer", "page 3", "next"), True),
        (("bonjour", "page 1", "page 2", "question"), False),
        (("hello", "page 2", "page 1", "question"), False),
        (("hello", "page 1", "then", "page 2", "question"), False),
        (("hello", "page 1", "question"), False),
    ],
    ids=["another question", "another turn", "another opening", "another order", "text between", "fewer pages"],
)
def test_only_what_begins_with_the_whole_of_a_prompt_goes_on_from_it(later: tuple[str, ...], goes_on: bool) -> None:
    known = Continuations()
    for number in range(LEAST_NEW + SOON):
        for parts in (("hello", "page 1", "page 2", "question"), later):
            known.note(prompt_of(*(f"{part} of {number}" if part.startswith("page") else part for part in parts)))
    assert (known.share(NEW) > 0) == goes_on


def test_fewer_than_eight_tell_nothing() -> None:
    known = Continuations()
    for number in range(LEAST_NEW):
        assert known.share(NEW) == 0
        for prompt in talk(number, 2):
            known.note(prompt)
    assert known.share(NEW) > 0.7


def test_few_that_come_again_among_many_are_few() -> None:
    known = Continuations()
    for number in range(200):
        known.note(prompt_of(f"page {number}", "question"))
        if number % 20 == 0:
            known.note(prompt_of(f"page {number}", "question"))
    assert known.share(NEW) < 0.1


def test_a_prompt_without_chunks_counts_for_nothing() -> None:
    known = Continuations()
    for _ in range(40):
        known.note(prompt_of("hello"))
    assert known.share(NEW) == 0


def test_what_was_long_ago_is_forgotten() -> None:
    known = Continuations()
    for number in range(50):
        for prompt in talk(number, 2):
            known.note(prompt)
    assert known.share(NEW) > 0.9
    for number in range(MOST_NEW + LONGEST + 1):
        known.note(prompt_of(f"page other {number}", "question"))
    assert known.share(NEW) == 0


def test_counts_are_those_of_the_lists_met_last() -> None:
    rnd = random.Random(5)
    own, kept = RecentSightings(most=20), OrderedDict[tuple[str, ...], int]()
    for _ in range(2000):
        names = tuple(rnd.sample("abcdef", rnd.randint(1, 3)))
        kept[names] = kept.get(names, 0) + 1
        kept.move_to_end(names)
        if len(kept) > 20:
            kept.popitem(last=False)
        assert own.add(names) == kept[names]
        asked = tuple(rnd.sample("abcdef", rnd.randint(1, 3)))
        assert own.count(asked) == kept.get(asked, 0)


def test_order_counts_and_names_do_not_run_together() -> None:
    own = RecentSightings()
    own.add(["ab", "c"])
    assert own.count(["ab", "c"]) == 1 and own.count(["c", "ab"]) == own.count(["a", "bc"]) == own.count([]) == 0


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

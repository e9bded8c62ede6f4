"""How often prompts are gone on from: conversations, requests that never come again, and what is sure of either."""

import pytest

from emblema.link.policy.expectations import LEAST_NEW, LONGEST, MOST_NEW, SOON, Continuations
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
    met = Continuations()
    for number in range(20):
        for prompt in talk(number, 3):
            met.note(prompt)
    assert 0.85 < met.share(NEW) < 1


def test_turns_of_conversations_that_grow_are_counted_apart() -> None:
    met = Continuations()
    for number in range(80):
        for pages in range(1, 4):
            met.note(prompt_of(*(f"page {number} {page}" for page in range(pages)), "what is it"))
    assert met.share(NEW) > 0.9
    met.note(prompt_of("page 99 0", "question"))
    assert 0.3 < met.share(prompt_of("page 99 0", "page 99 1", "question")) < 0.5, "the second of three turns"


def test_a_window_that_slides_is_not_gone_on_from() -> None:
    met = Continuations()
    pages = [f"page {number}" for number in range(200)]
    for last in range(1, len(pages)):
        window = prompt_of(*pages[max(0, last - 6) : last], "question")
        if last > 6:
            assert met.share(window) < 0.05, "the first window alone grew"
        met.note(window)


def test_prompts_that_never_come_again_are_not() -> None:
    met = Continuations()
    for number in range(SOON + 10):
        met.note(prompt_of("hello", f"page {number}", "question"))
        assert met.share(NEW) == 0


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
    met = Continuations()
    for number in range(LEAST_NEW + SOON):
        for parts in (("hello", "page 1", "page 2", "question"), later):
            met.note(prompt_of(*(f"{part} of {number}" if part.startswith("page") else part for part in parts)))
    assert (met.share(NEW) > 0) == goes_on


def test_fewer_than_eight_tell_nothing() -> None:
    met = Continuations()
    for number in range(LEAST_NEW):
        assert met.share(NEW) == 0
        for prompt in talk(number, 2):
            met.note(prompt)
    assert met.share(NEW) > 0.7


def test_few_that_come_again_among_many_are_few() -> None:
    met = Continuations()
    for number in range(200):
        met.note(prompt_of(f"page {number}", "question"))
        if number % 20 == 0:
            met.note(prompt_of(f"page {number}", "question"))
    assert met.share(NEW) < 0.1


def test_a_prompt_without_chunks_counts_for_nothing() -> None:
    met = Continuations()
    for _ in range(40):
        met.note(prompt_of("hello"))
    assert met.share(NEW) == 0


def test_what_was_long_ago_is_forgotten() -> None:
    met = Continuations()
    for number in range(50):
        for prompt in talk(number, 2):
            met.note(prompt)
    assert met.share(NEW) > 0.9
    for number in range(MOST_NEW + LONGEST + 1):
        met.note(prompt_of(f"page other {number}", "question"))
    assert met.share(NEW) == 0

"""Planted misses on the bundled model: each reply says of each picture that was computed why."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from PIL import Image

from benchmarks.load.requests import TrafficShape, traffic_of
from benchmarks.load.stages import LARGE, SIDE
from emblema import Engine
from emblema.link.miss_reasons import MissReason
from emblema.link.policy.policy import Policy
from emblema.session.replies import Reply

QUESTION = "in which land is the moon ?"


@pytest.fixture
def engine(reference: Engine) -> Iterator[Engine]:
    with Engine(reference.adapter.model, reference.processor, policy=Policy.quiet()) as own:
        yield own


def pages(side: int, count: int = 6) -> list[Image.Image]:
    """Return pages of so many cells a side."""
    return [page.image() for page in traffic_of(TrafficShape("rag", 1, side, 12, 6), 3).pages[:count]]


def missed(reply: Reply) -> list[tuple[int, str]]:
    return [(miss.part, miss.reason) for miss in reply.usage.misses]


def test_a_new_picture_is_new_once(engine: Engine) -> None:
    first, second = pages(SIDE)[:2]
    assert missed(engine.generate([first, QUESTION])) == [(0, MissReason.NEW)]
    assert missed(engine.generate([first, QUESTION])) == []
    assert missed(engine.generate([second, first, QUESTION]))[0] == (0, MissReason.NEW)


@pytest.mark.parametrize(
    ("asked", "strategy", "wanted"),
    [
        ((0, 1), "full", [(0, MissReason.STRATEGY), (1, MissReason.STRATEGY)]),
        ((0, 1), "prefix", [(0, MissReason.STRATEGY), (1, MissReason.STRATEGY)]),
        ((0, 1), "blind", []),
        ((0, 1), "mpic-8", []),
        ((1, 0), "query-25%", []),
        # A picture that leads is exact; behind it a second pass over 66 rows would not pay.
        ((0, 1), "auto", [(1, MissReason.COSTS)]),
    ],
)
def test_stored_pictures_are_missed_by_what_is_asked(
    engine: Engine, asked: Sequence[int], strategy: str, wanted: list[Any]
) -> None:
    chunks = [engine.add(page) for page in pages(SIDE, 2)]
    assert missed(engine.generate([*(chunks[place] for place in asked), QUESTION], strategy=strategy)) == wanted


def test_pictures_of_an_unsure_answer_are_missed_for_that(engine: Engine) -> None:
    chunks = [engine.add(page) for page in pages(LARGE, 5)]
    taken = engine.generate([*chunks, QUESTION])
    assert missed(taken) == [] and taken.usage.cached_tokens > 500
    unsure = engine.generate([*chunks[::-1], QUESTION], policy=Policy(margin=1.0))
    assert missed(unsure) == [(number, MissReason.UNSURE) for number in range(5)]
    assert sum(miss.rows for miss in unsure.usage.misses) == sum(chunk.tokens for chunk in chunks)


def test_a_window_misses_what_it_has_no_rows_of(engine: Engine) -> None:
    first, second, third = pages(SIDE, 3)
    with engine.window() as window:
        window.append(first)
        window.append("scrolled down .")
        window.append(second)
        assert missed(window.ask(QUESTION)) == [(0, MissReason.NEW), (1, MissReason.NEW)]
        assert missed(window.ask(QUESTION)) == []
        window.append(third)
        assert [reason for _, reason in missed(window.ask(QUESTION))] == [MissReason.NEW]
        window.slide()
        assert missed(window.ask(QUESTION)) == []

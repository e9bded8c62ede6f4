"""Conversations over the same ten pictures, each in an order of its own, as prompts for a load generator.

As in MMDU, a turn adds pictures and a question to all turns before it. An exact prefix serves the later turns of one
conversation and nothing of another, as no two begin alike; linked pictures serve both. Answers of earlier turns are
written in as given, so that every strategy sees the same rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from PIL import Image

from benchmarks.tasks.page_tasks import two_page
from benchmarks.vllm.measure import pages_of, texts_of

PICTURES = 10
TURNS = (4, 2, 2, 2)
"""How many pictures each turn adds."""
Part = str | Image.Image


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: everything said so far, and the question.

    Attributes:
        parts: texts and pictures in order.
        place: which turn of its conversation it is.
        answer: the right answer; empty where the pictures are noise.
    """

    parts: tuple[Part, ...]
    place: int
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Talks:
    """Conversations, turn behind turn, and the pictures that they are about."""

    turns: tuple[Turn, ...]
    pool: tuple[Image.Image, ...]


def of_noise(count: int, side: int, seed: int) -> Talks:
    """Conversations over pictures of noise, `side` pixels wide: for timing."""
    rng = numpy.random.default_rng(seed)
    pool = [Image.fromarray(rng.integers(0, 255, (side, side, 3), dtype=numpy.uint8)) for _ in range(PICTURES)]
    question = "which land does the tent stand on ?"
    turns: list[Turn] = []
    for _ in range(count):
        order = iter([pool[place] for place in rng.permutation(PICTURES)])
        parts: list[Part] = []
        for place, number in enumerate(TURNS):
            shown = [part for _ in range(number) for part in (next(order), "and then")]
            parts += ["look at these pages", *shown, question]
            turns.append(Turn(tuple(parts), place))
            parts.append("lake")
    return Talks(tuple(turns), tuple(pool))


def of_pages(count: int, seed: int) -> Talks:
    """Conversations over five pairs of a legend and a map: each turn asks about a pair that any turn so far showed."""
    rng = numpy.random.default_rng(seed)
    items = [two_page(seed, number, "emblema") for number in range(PICTURES // 2)]
    turns: list[Turn] = []
    for _ in range(count):
        order = [int(place) for place in rng.permutation(len(items))]
        parts: list[Part] = []
        shown = 0
        for place, number in enumerate(TURNS):
            for item in order[shown : shown + number // 2]:
                parts += pages_of(items[item])
            shown += number // 2
            # The bundled models were trained on the pair that stands last.
            asked = items[order[shown - 1]]
            index = int(rng.integers(len(asked.questions)))
            answer = asked.questions[index].answer
            parts += texts_of(asked, index)
            turns.append(Turn(tuple(parts), place, answer))
            parts.append(answer)
    return Talks(tuple(turns), tuple(page for item in items for page in pages_of(item)))


def first_turns(turns: Sequence[Turn], values: Sequence[float], *, later: bool) -> list[float]:
    """The values of first turns, or of all others."""
    return [value for turn, value in zip(turns, values, strict=True) if (turn.place > 0) == later]

"""dialogue-sentence and dialogue-word: several turns and several pictures, in MMDU's and SparklesEval's form.

MMDU puts pictures beside whole sentences, SparklesEval names them inside a sentence, word by word (MPIC section 5.1).
Both ask open questions that the papers have judged; here every answer is one word, so that it can be checked exactly.
"""

from __future__ import annotations

import numpy as np

from benchmarks.tasks.building import SINGLE_HOP, media_of, name, phrase, stream
from benchmarks.tasks.generate import Plan, make_episode
from benchmarks.tasks.items import Item, ItemQuestion, Part
from benchmarks.tasks.questions import facts
from benchmarks.tasks.world import Episode

TURNS = 4


def dialogue_sentence(seed: int, item: int, form: str) -> Item:
    """Four turns: legends and a map first, then a question, another map later, questions about both; legends slide."""
    random, code = stream("dialogue-sentence", seed, item), name("dialogue-sentence", seed, item)
    legends = int(random.integers(1, 3))
    plan = Plan("L" * legends + "MM", 8, (4, 4), int(random.integers(4, 9)), ())
    episode = make_episode(random, plan, seed, "dialogue-sentence", item)
    pages = [media_of(page) for page in episode.pages]
    later = int(random.integers(1, TURNS))
    questions = []
    first, second = len(pages) - 2, len(pages) - 1
    for turn in range(TURNS):
        kind = str(random.choice(["colour", "land", "land"]))
        known = (first,) if turn < later else (second,) if turn == later else (first, second)
        text, answer = ask(random, episode, kind, known)
        shown: list[Part] = [text]
        if turn == 0:
            shown = ["look at these pictures . ", *pages[:-1], " " + text]
        elif turn == later:
            shown = ["here is another picture . ", pages[-1], " " + text]
        questions.append(_question(code, turn, shown, answer, kind))
    return Item(code, "dialogue-sentence", form, (), tuple(questions), dialogue=True)


def dialogue_word(seed: int, item: int, form: str) -> Item:
    """Two turns: a legend and a map named inside one sentence, then another map inside another; the legend slides."""
    random, code = stream("dialogue-word", seed, item), name("dialogue-word", seed, item)
    plan = Plan("LMM", 8, (4, 4), int(random.integers(4, 9)), ())
    episode = make_episode(random, plan, seed, "dialogue-word", item)
    legend, first, second = (media_of(page) for page in episode.pages)
    kinds = ("land", str(random.choice(["colour", "land"])))
    one, two = (ask(random, episode, kind, (page,)) for page, kind in enumerate(kinds, start=1))
    turns: tuple[list[Part], list[Part]] = (
        ["by the legend IMAGE#1", legend, " and the map IMAGE#2", first, ", " + one[0]],
        ["and by the map IMAGE#3", second, ", " + two[0]],
    )
    questions = tuple(
        _question(code, turn, shown, answer, kind)
        for turn, (shown, answer, kind) in enumerate(zip(turns, (one[1], two[1]), kinds, strict=True))
    )
    return Item(code, "dialogue-word", form, (), questions, dialogue=True)


def ask(random: np.random.Generator, episode: Episode, kind: str, pages: tuple[int, ...]) -> tuple[str, str]:
    """A question of a kind about an icon on one of the pages, and its answer."""
    known = {subject: fact for subject, fact in facts(episode)[kind].items() if fact[1][-1] in pages}
    subject = list(known)[int(random.integers(len(known)))]
    return phrase(random, kind, subject), known[subject][0]


def _question(code: str, turn: int, shown: list[Part], answer: str, kind: str) -> ItemQuestion:
    return ItemQuestion(f"{code}-{turn}", tuple(shown), answer, multi_hop=kind not in SINGLE_HOP, kind=kind)

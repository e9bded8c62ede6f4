"""Long answers: every icon of several maps in alphabetical order, each with its land or its colour.

Which land an icon stands on needs the legends; its colour needs the map alone. The order is fixed, so that a list can
be held to the right one token by token. `reference` cannot answer such questions, `reference-lists` is trained to.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.tasks.building import ItemDraw
from benchmarks.tasks.episodes import Plan, facts, legend_page
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.tiles import ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import Episode, Legend, Question

LISTED = {"lands": "land", "colours": "colour"}
"""Kinds of list, and the kind of question that each of its entries answers."""
WORDINGS = ("name every icon and its {} .", "list every icon with its {} .", "list all icons , each with its {} .")
LEAST_ICONS = 16
"""Icons of an item: 32 tokens of answer at least."""
MAPS = 3
SIDE = 8


def listing(random: np.random.Generator, episode: Episode, kind: str) -> Question | None:
    """Return a question for a list of a kind of `LISTED`; None where there is no icon or one has no answer."""
    known = facts(episode)
    answers, every = known[LISTED[kind]], known["colour"]
    if not every or len(answers) < len(every):
        return None
    text = WORDINGS[int(random.integers(len(WORDINGS)))].format(LISTED[kind])
    answer = " ".join(f"{icon} {answers[icon][0]}" for icon in sorted(answers))
    return Question(kind, text, answer, tuple(range(len(episode.pages))))


def older_legend(random: np.random.Generator, episode: Episode, side: int) -> Legend:
    """Return a legend that gives half of an episode's colours other lands; before all its pages it changes nothing."""
    colours = [int(colour) for colour in random.permutation(list(episode.lands))[: max(1, len(episode.lands) // 2)]]
    lands = {colour: (episode.lands[colour] + int(random.integers(1, LAND_COUNT))) % LAND_COUNT for colour in colours}
    return legend_page(random, side, lands)


def lists_episode(seed: int, place: int) -> Episode:
    """Return one or two legends and three maps of 8 x 8 cells with 16 to 24 icons, and both lists as questions."""
    draw = ItemDraw("lists", seed, place)
    count = int(draw.random.integers(LEAST_ICONS, len(ICON_NAMES) + 1))
    icons = np.full(MAPS, count // MAPS) + (np.arange(MAPS) < count % MAPS)
    legends = int(draw.random.integers(1, 3))
    plan = Plan("L" * legends + "M" * MAPS, SIDE, tuple(map(int, icons)), int(draw.random.integers(4, 9)), ())
    episode = draw.episode(plan)
    asked = (listing(draw.random, episode, kind) for kind in LISTED)
    return replace(episode, questions=tuple(question for question in asked if question is not None))


def lists(draw: ItemDraw) -> TaskItem:
    """Return the episode as an item whose legends slide."""
    return draw.item_of(lists_episode(draw.seed, draw.place))

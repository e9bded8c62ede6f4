"""text-two-hop: two supporting passages and a question over both, in MuSiQue's form.

Kamera's other control: dense text is said to lose nothing under blind reuse. Each item has its hops as questions too.
"""

from __future__ import annotations

import numpy as np

from benchmarks.tasks.building import name, phrase, stream
from benchmarks.tasks.glyphs import COLOURS, ICONS
from benchmarks.tasks.items import Item, ItemQuestion, Media
from benchmarks.tasks.sentences import SENTENCES
from benchmarks.tasks.world import LANDS

TASK = "text-two-hop"


def text_two_hop(seed: int, item: int, form: str) -> Item:
    """A passage that gives colours their lands, which slides, and one that sets icons on colours."""
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    colours = [str(colour) for colour in random.permutation(list(COLOURS))[: int(random.integers(4, 9))]]
    lands = {colour: LANDS[int(random.integers(len(LANDS)))] for colour in colours}
    icons = [str(icon) for icon in random.permutation(list(ICONS))[: int(random.integers(5, 9))]]
    under = {icon: colours[int(random.integers(len(colours)))] for icon in icons}
    asked = icons[0]
    colour, land = under[asked], lands[under[asked]]
    first = [f"{each} does mean {lands[each]} ." for each in colours]
    second = [f"the {icon} stands on {under[icon]} ." for icon in sorted(icons)]
    passages = (
        Media("text", "the legend\n" + prose(random, first), 1.0),
        Media("text", "the map\n" + prose(random, second)),
    )
    questions = (
        ItemQuestion(code, (phrase(random, "land", asked),), land, multi_hop=True, kind="land"),
        ItemQuestion(f"{code}-0", (phrase(random, "colour", asked),), colour, multi_hop=False, kind="colour"),
        ItemQuestion(f"{code}-1", (phrase(random, "legend", colour),), land, multi_hop=False, kind="legend"),
    )
    return Item(code, TASK, form, passages, questions)


def prose(random: np.random.Generator, facts: list[str]) -> str:
    """The facts with a plain sentence behind every second one."""
    plain = [str(sentence) for sentence in random.choice(SENTENCES, len(facts), replace=False)]
    mixed = [fact if place % 2 == 0 else f"{fact} {plain[place]}" for place, fact in enumerate(facts)]
    return " ".join(mixed)

"""retrieval-image and reasoning-image: needles in a document of text and pictures, in MM-NIAH's form.

The document interleaves plain sentences with maps, a legend or two at its front. retrieval-image has one map with
icons among empty ones: find it and say what is under an icon (one hop), or which land that is (two). reasoning-image
has icons on several maps, and its questions look at all of them.
"""

from __future__ import annotations

import numpy as np

from benchmarks.tasks.building import choice, media_of, name, stream
from benchmarks.tasks.generate import Plan, make_episode
from benchmarks.tasks.items import Item, Part
from benchmarks.tasks.sentences import SENTENCES

RETRIEVAL = (("colour", 2), ("land", 3))
REASONING = (("colour", 1), ("land", 2), ("count", 1), ("which", 2))
LEAST_PAGES, MOST_PAGES = 5, 10


def retrieval_image(seed: int, item: int, form: str) -> Item:
    """One needle: a map with three to five icons among maps that have none."""
    random = stream("retrieval-image", seed, item)
    maps = int(random.integers(LEAST_PAGES, MOST_PAGES))
    icons = [0] * maps
    icons[int(random.integers(maps))] = int(random.integers(3, 6))
    return haystack(random, "retrieval-image", seed, item, form, tuple(icons), RETRIEVAL)


def reasoning_image(seed: int, item: int, form: str) -> Item:
    """Two to four needles of one or two icons each, which have to be taken together."""
    random = stream("reasoning-image", seed, item)
    maps = int(random.integers(LEAST_PAGES, MOST_PAGES))
    icons = np.zeros(maps, dtype=np.int64)
    needles = int(random.integers(2, 5))
    icons[random.permutation(maps)[:needles]] = random.integers(1, 3, needles)
    return haystack(random, "reasoning-image", seed, item, form, tuple(int(count) for count in icons), REASONING)


def haystack(
    random: np.random.Generator,
    task: str,
    seed: int,
    item: int,
    form: str,
    icons: tuple[int, ...],
    limits: tuple[tuple[str, int], ...],
) -> Item:
    """A document of legends, maps with so many icons each, and one to three sentences in front of every picture."""
    code = name(task, seed, item)
    legends = int(random.integers(1, 3))
    plan = Plan("L" * legends + "M" * len(icons), 8, icons, int(random.integers(4, 9)), limits)
    episode = make_episode(random, plan, seed, task, item)
    parts: list[Part] = []
    for page in episode.pages:
        parts += [" ".join(random.choice(SENTENCES, int(random.integers(1, 4)), replace=False)), media_of(page)]
    parts.append(str(random.choice(SENTENCES)))
    questions = tuple(
        choice(random, f"{code}-{place}", each.text, each.answer, each.kind, each.kind != "colour")
        for place, each in enumerate(episode.questions)
    )
    return Item(code, task, form, tuple(parts), questions)

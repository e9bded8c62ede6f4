"""album and album-binding: several pictures and multiple choice, in MuirBench's form.

album asks what stands in one of the pictures that stay (readout; Kamera's negative control: multi-image questions that
fall apart into one-picture ones). album-binding asks what needs a legend and a map, or all maps.
"""

from __future__ import annotations

from benchmarks.tasks.building import choice, from_episode, name, phrase, picture, stream
from benchmarks.tasks.generate import Plan, make_episode
from benchmarks.tasks.items import Item
from benchmarks.tasks.questions import facts
from benchmarks.tasks.world import Map

BINDING = (("colour", 2), ("land", 3), ("which", 1))


def album(seed: int, item: int, form: str) -> Item:
    """Four to six maps, no legend; the first half slides, and the questions are about the other half."""
    random, code = stream("album", seed, item), name("album", seed, item)
    maps = int(random.integers(4, 7))
    episode = make_episode(random, Plan("M" * maps, 8, (4,) * maps, 6, ()), seed, "album", item)
    known = facts(episode)["colour"]
    kept = [subject for subject, (_, pages) in known.items() if pages[0] >= maps // 2]
    chosen = [kept[place] for place in random.permutation(len(kept))[:4]]
    questions = tuple(
        choice(random, f"{code}-{place}", phrase(random, "colour", icon), known[icon][0], "colour", False)
        for place, icon in enumerate(chosen)
    )
    parts = tuple(picture(page, place < maps // 2) for place, page in enumerate(episode.pages) if isinstance(page, Map))
    return Item(code, "album", form, parts, questions)


def album_binding(seed: int, item: int, form: str) -> Item:
    """One or two legends, then three maps: questions across pictures beside questions about one."""
    random, code = stream("album-binding", seed, item), name("album-binding", seed, item)
    legends = int(random.integers(1, 3))
    plan = Plan("L" * legends + "MMM", 8, (4, 4, 4), int(random.integers(4, 9)), BINDING)
    return from_episode(random, make_episode(random, plan, seed, "album-binding", item), code, form, 4)

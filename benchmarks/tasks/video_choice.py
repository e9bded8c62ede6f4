"""video-choice: a clip and multiple choice, in the forms of Video-MME (four options) and EgoSchema (five, once).

The clip shows legends, then maps, two seconds each; the segments with legends slide.
"""

from __future__ import annotations

from benchmarks.tasks.building import from_episode, name, stream
from benchmarks.tasks.generate import Plan, make_episode
from benchmarks.tasks.items import Item

TASK = "video-choice"
LIMITS = (("colour", 1), ("land", 2))
ONE = (("land", 1),)


def video_choice(seed: int, item: int, form: str) -> Item:
    """One or two legends and two to five maps as scenes of a clip."""
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    legends, maps = int(random.integers(1, 3)), int(random.integers(2, 6))
    icons = tuple(int(count) for count in random.integers(3, 5, maps))
    single = form == "egoschema"
    plan = Plan("L" * legends + "M" * maps, 8, icons, int(random.integers(4, 9)), ONE if single else LIMITS, clip=True)
    return from_episode(random, make_episode(random, plan, seed, TASK, item), code, form, 5 if single else 4)

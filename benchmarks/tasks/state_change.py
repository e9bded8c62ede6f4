"""state-change: what is different now, and what was it before? In MileBench's form (StateChange)."""

from __future__ import annotations

from benchmarks.tasks.building import choice, name, phrase, picture, stream
from benchmarks.tasks.frames import make_place
from benchmarks.tasks.items import Item
from benchmarks.tasks.tiles import ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, Map

TASK = "state-change"


def state_change(seed: int, item: int, form: str) -> Item:
    """A legend and three to five frames of one place; from one of them on, the ground under one icon is another land.

    Two hops: which icon that is, and on which land it stood before; one hop: the colour under an icon that has not
    changed. All pictures but the last frame slide.
    """
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    count = int(random.integers(3, 6))
    place = make_place(random, 5)
    under = place.ground.icon_colours()
    changed, steady = (place.icons[int(step)] for step in random.permutation(len(place.icons))[:2])
    later = int(random.choice([colour for colour in place.lands if colour != under[changed]]))
    colours = place.ground.colours.copy()
    colours[place.ground.icons == changed] = later
    turn = int(random.integers(1, count))
    frames = [place.ground if step < turn else Map(colours, place.ground.icons) for step in range(count)]
    icons, lands = [ICON_NAMES[icon] for icon in place.icons], [place.land(colour) for colour in place.lands]
    subject = ICON_NAMES[changed]
    before = f"on which land did the {subject} stand before ?"
    questions = (
        choice(random, f"{code}-0", "under which icon did the land change ?", subject, "changed", True, icons, 3),
        choice(random, f"{code}-1", before, place.land(under[changed]), "before", True, lands),
        choice(
            random,
            f"{code}-2",
            phrase(random, "colour", ICON_NAMES[steady]),
            COLOUR_NAMES[under[steady]],
            "colour",
            False,
        ),
    )
    parts = (picture(place.legend, True), *(picture(shown, step < count - 1) for step, shown in enumerate(frames)))
    return Item(code, TASK, form, parts, questions)

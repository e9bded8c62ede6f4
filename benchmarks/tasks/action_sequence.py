"""action-sequence: where did it go after that? Frames of a walk, in MileBench's form (ActionSequence)."""

from __future__ import annotations

from benchmarks.tasks.building import choice, name, phrase, picture, stream
from benchmarks.tasks.frames import make_place, path, under
from benchmarks.tasks.items import Item
from benchmarks.tasks.tiles import ICON_NAMES

TASK = "action-sequence"


def action_sequence(seed: int, item: int, form: str) -> Item:
    """A legend and four to six frames: an icon walks over as many lands.

    Two questions ask for the land after another, which takes the legend and two frames; one asks for the colour under
    an icon that stays. The legend and the first half of the frames slide.
    """
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    steps = int(random.integers(4, 7))
    place = make_place(random, steps + 1)
    walk = path(random, list(place.lands), steps)
    frames = [place.frame(random, colour) for colour in walk]
    walker, lands = ICON_NAMES[place.walker], [place.land(colour) for colour in walk]
    asked = [int(step) for step in random.permutation(steps - 1)[:2]]
    subject, colour = under(place, random)
    questions = [
        choice(
            random,
            f"{code}-{number}",
            f"on which land does the {walker} stand after the {lands[step]} ?",
            lands[step + 1],
            "after",
            True,
            lands,
        )
        for number, step in enumerate(asked)
    ]
    questions.append(choice(random, f"{code}-2", phrase(random, "colour", subject), colour, "colour", False))
    parts = (picture(place.legend, True), *(picture(frame, step < steps // 2) for step, frame in enumerate(frames)))
    return Item(code, TASK, form, parts, tuple(questions))

"""action-prediction: what comes next? Frames of a walk that repeats itself, in MileBench's form (ActionPrediction)."""

from __future__ import annotations

from benchmarks.tasks.building import choice, name, phrase, picture, stream
from benchmarks.tasks.frames import make_place, path, under
from benchmarks.tasks.items import Item
from benchmarks.tasks.tiles import ICON_NAMES

TASK = "action-prediction"


def action_prediction(seed: int, item: int, form: str) -> Item:
    """A legend and frames in which an icon goes round two or three lands, cut off somewhere in the third round.

    The next land takes the legend and the frames of the earlier rounds; another question asks for the colour under an
    icon that stays. The legend and the first half of the frames slide.
    """
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    period = int(random.integers(2, 4))
    steps = 2 * period + int(random.integers(period))
    place = make_place(random, 5)
    cycle = path(random, list(place.lands), period)
    frames = [place.frame(random, cycle[step % period]) for step in range(steps)]
    answer = place.land(cycle[steps % period])
    lands = [place.land(colour) for colour in place.lands]
    subject, colour = under(place, random)
    text = f"on which land will the {ICON_NAMES[place.walker]} stand next ?"
    questions = (
        choice(random, f"{code}-0", text, answer, "next", True, lands),
        choice(random, f"{code}-1", phrase(random, "colour", subject), colour, "colour", False),
    )
    parts = (picture(place.legend, True), *(picture(frame, step < steps // 2) for step, frame in enumerate(frames)))
    return Item(code, TASK, form, parts, questions)

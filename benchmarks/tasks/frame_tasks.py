"""Tasks of frames, in MileBench's forms: pictures of one place in which something moves or changes.

Frames of a place have the same ground and icons picture after picture, and one icon that walks from land to land.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.building import choice, name, phrase, picture, stream
from benchmarks.tasks.episodes import legend_page, map_page
from benchmarks.tasks.items import TaskItem
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, COLOUR_NAMES, LANDS, Legend, Map

SIDE = 8
STATIONARY = 3
CUPS_SIDE = 8
COLUMNS = (1, 4, 6)
ROW = 4
CUP, BALL, ARROW = (ICON_NAMES.index(icon) for icon in ("cup", "ball", "arrow"))


@dataclass(frozen=True)
class FrameScene:
    """A legend, ground of its colours (each for another land), and icons that stay where they are.

    lands: colour index -> land index, all different; walker: icon index; icons: the icons that stay, by index.
    """

    legend: Legend
    ground: Map
    lands: dict[int, int]
    walker: int
    icons: tuple[int, ...]

    def frame(self, random: np.random.Generator, colour: int) -> Map:
        """Return the place with the walker on a random free cell of a colour."""
        rows, columns = np.nonzero((self.ground.colours == colour) & (self.ground.icons == BLANK))
        cell = int(random.integers(len(rows)))
        icons = self.ground.icons.copy()
        icons[rows[cell], columns[cell]] = self.walker
        return Map(self.ground.colours, icons)

    def land(self, colour: int) -> str:
        """Return name of a colour's land."""
        return LANDS[self.lands[colour]]


def make_place(random: np.random.Generator, colours: int) -> FrameScene:
    """Return a place of so many colours and lands."""
    listed = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:colours]]
    lands = dict(zip(listed, (int(land) for land in random.permutation(LAND_COUNT)), strict=False))
    icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))[: STATIONARY + 1]]
    while True:
        ground = map_page(random, SIDE, listed, icons[1:])
        if all(int(((ground.colours == colour) & (ground.icons == BLANK)).sum()) for colour in listed):
            return FrameScene(legend_page(random, SIDE, lands), ground, lands, icons[0], tuple(icons[1:]))


def path(random: np.random.Generator, colours: Sequence[int], steps: int) -> list[int]:
    """Return so many colours in a row, all different."""
    return [int(colour) for colour in random.permutation(list(colours))[:steps]]


def under(place: FrameScene, random: np.random.Generator) -> tuple[str, str]:
    """Return one of the icons that stay, and the colour under it."""
    icon = place.icons[int(random.integers(len(place.icons)))]
    return ICON_NAMES[icon], COLOUR_NAMES[place.ground.icon_colours()[icon]]


def action_sequence(seed: int, item: int, form: str) -> TaskItem:
    """Return a legend and four to six frames: an icon walks over as many lands.

    Two questions ask for the land after another, which takes the legend and two frames; one asks for the colour under
    an icon that stays. The legend and the first half of the frames slide.
    """
    random, code = stream("action-sequence", seed, item), name("action-sequence", seed, item)
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
    return TaskItem(code, "action-sequence", form, parts, tuple(questions))


def action_prediction(seed: int, item: int, form: str) -> TaskItem:
    """Return a legend and frames in which an icon goes round two or three lands, cut off somewhere in the third round.

    The next land takes the legend and the frames of the earlier rounds; another question asks for the colour under an
    icon that stays. The legend and the first half of the frames slide.
    """
    random, code = stream("action-prediction", seed, item), name("action-prediction", seed, item)
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
    return TaskItem(code, "action-prediction", form, parts, questions)


def object_shuffle(seed: int, item: int, form: str) -> TaskItem:
    """Return two to four exchanges between a first and a last cups_frame; all frames but the last slide."""
    random, code = stream("object-shuffle", seed, item), name("object-shuffle", seed, item)
    back, *grounds = (int(colour) for colour in random.permutation(COLOUR_COUNT)[: len(COLUMNS) + 1])
    others = [icon for icon in range(len(ICON_NAMES)) if icon not in (CUP, BALL, ARROW)]
    mark = (int(random.integers(2)), int(random.integers(CUPS_SIDE)), int(random.choice(others)))
    where = start = int(random.integers(len(COLUMNS)))
    frames = [cups_frame(back, grounds, (CUP,) * 3, mark, ball=start)]
    for _ in range(int(random.integers(2, 5))):
        pair = [int(place) for place in random.permutation(len(COLUMNS))[:2]]
        frames.append(cups_frame(back, grounds, tuple(ARROW if place in pair else CUP for place in range(3)), mark))
        where = pair[1 - pair.index(where)] if where in pair else where
    frames.append(cups_frame(back, grounds, (CUP,) * 3, mark))
    names = [COLOUR_NAMES[colour] for colour in grounds]
    questions = (
        choice(random, f"{code}-0", phrase(random, "colour", "ball"), names[where], "shuffled", True, names, 3),
        choice(random, f"{code}-1", phrase(random, "colour", ICON_NAMES[mark[2]]), COLOUR_NAMES[back], "colour", False),
    )
    parts = tuple(picture(shown, step < len(frames) - 1) for step, shown in enumerate(frames))
    return TaskItem(code, "object-shuffle", form, parts, questions)


def cups_frame(
    back: int, grounds: list[int], icons: tuple[int, ...], mark: tuple[int, int, int], ball: int = BLANK
) -> Map:
    """Return a map of one colour with three coloured columns, an icon on each, a mark apart, and the ball below one."""
    colours, placed = (
        np.full((CUPS_SIDE, CUPS_SIDE), back, dtype=np.int64),
        np.full((CUPS_SIDE, CUPS_SIDE), BLANK, dtype=np.int64),
    )
    for column, ground, icon in zip(COLUMNS, grounds, icons, strict=True):
        colours[ROW - 1 : ROW + 2, column] = ground
        placed[ROW, column] = icon
    placed[mark[0], mark[1]] = mark[2]
    if ball != BLANK:
        placed[ROW + 1, COLUMNS[ball]] = BALL
    return Map(colours, placed)


def state_change(seed: int, item: int, form: str) -> TaskItem:
    """Return a legend and frames of one place; from one of them on, the ground under one icon is another land.

    Two hops: which icon that is, and on which land it was before; one hop: the colour under an icon that has not
    changed. All pictures but the last frame slide.
    """
    random, code = stream("state-change", seed, item), name("state-change", seed, item)
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
    return TaskItem(code, "state-change", form, parts, questions)

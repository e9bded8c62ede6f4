"""Tasks of frames, in MileBench's forms: pictures of one place in which something moves or changes.

Frames of a place have the same ground and icons picture after picture, and one icon that walks from land to land.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.building import ItemDraw, picture
from benchmarks.tasks.episodes import legend_page, map_page
from benchmarks.tasks.items import Media, TaskItem
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, COLOUR_NAMES, LANDS, Legend, Map

SIDE = 8
STATIONARY = 3
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


def walked(random: np.random.Generator, place: FrameScene, steps: int) -> list[int]:
    """Return so many colours of a place in a row, all different."""
    return [int(colour) for colour in random.permutation(list(place.lands))[:steps]]


def under(draw: ItemDraw, place: FrameScene) -> tuple[str, str]:
    """Return one of the icons that stay, and the colour under it."""
    icon = place.icons[int(draw.random.integers(len(place.icons)))]
    return ICON_NAMES[icon], COLOUR_NAMES[place.ground.icon_colours()[icon]]


def frames_of(place: FrameScene, frames: list[Map], sliding: int) -> list[Media]:
    """Return a place's legend, and frames of which so many slide too."""
    return [picture(place.legend, True), *(picture(frame, step < sliding) for step, frame in enumerate(frames))]


def action_sequence(draw: ItemDraw) -> TaskItem:
    """Return a legend and four to six frames: an icon walks over as many lands.

    Two questions ask for the land after another, which takes the legend and two frames; one asks for the colour under
    an icon that stays. The legend and the first half of the frames slide.
    """
    random = draw.random
    steps = int(random.integers(4, 7))
    place = make_place(random, steps + 1)
    walk = walked(random, place, steps)
    frames = [place.frame(random, colour) for colour in walk]
    walker, lands = ICON_NAMES[place.walker], [place.land(colour) for colour in walk]
    asked = [int(step) for step in random.permutation(steps - 1)[:2]]
    subject, colour = under(draw, place)
    for step in asked:
        text = f"on which land does the {walker} stand after the {lands[step]} ?"
        draw.choose(text, lands[step + 1], "after", lands)
    draw.choose(draw.phrase("colour", subject), colour, "colour")
    return draw.item(frames_of(place, frames, steps // 2))


def action_prediction(draw: ItemDraw) -> TaskItem:
    """Return a legend and frames in which an icon goes round two or three lands, cut off somewhere in the third round.

    The next land takes the legend and the frames of the earlier rounds; another question asks for the colour under an
    icon that stays. The legend and the first half of the frames slide.
    """
    random = draw.random
    period = int(random.integers(2, 4))
    steps = 2 * period + int(random.integers(period))
    place = make_place(random, 5)
    cycle = walked(random, place, period)
    frames = [place.frame(random, cycle[step % period]) for step in range(steps)]
    lands = [place.land(colour) for colour in place.lands]
    subject, colour = under(draw, place)
    text = f"on which land will the {ICON_NAMES[place.walker]} stand next ?"
    draw.choose(text, place.land(cycle[steps % period]), "next", lands)
    draw.choose(draw.phrase("colour", subject), colour, "colour")
    return draw.item(frames_of(place, frames, steps // 2))


def object_shuffle(draw: ItemDraw) -> TaskItem:
    """Return two to four exchanges between a first and a last cups_frame; all frames but the last slide."""
    random = draw.random
    back, *grounds = (int(colour) for colour in random.permutation(COLOUR_COUNT)[: len(COLUMNS) + 1])
    others = [icon for icon in range(len(ICON_NAMES)) if icon not in (CUP, BALL, ARROW)]
    mark = (int(random.integers(2)), int(random.integers(SIDE)), int(random.choice(others)))
    where = start = int(random.integers(len(COLUMNS)))
    frames = [cups_frame(back, grounds, (CUP,) * 3, mark, ball=start)]
    for _ in range(int(random.integers(2, 5))):
        pair = [int(place) for place in random.permutation(len(COLUMNS))[:2]]
        frames.append(cups_frame(back, grounds, tuple(ARROW if place in pair else CUP for place in range(3)), mark))
        where = pair[1 - pair.index(where)] if where in pair else where
    frames.append(cups_frame(back, grounds, (CUP,) * 3, mark))
    names = [COLOUR_NAMES[colour] for colour in grounds]
    draw.choose(draw.phrase("colour", "ball"), names[where], "shuffled", names, 3)
    draw.choose(draw.phrase("colour", ICON_NAMES[mark[2]]), COLOUR_NAMES[back], "colour")
    return draw.item(picture(shown, step < len(frames) - 1) for step, shown in enumerate(frames))


def cups_frame(
    back: int, grounds: list[int], icons: tuple[int, ...], mark: tuple[int, int, int], ball: int = BLANK
) -> Map:
    """Return a map of one colour with three coloured columns, an icon on each, a mark apart, and the ball below one."""
    colours, placed = (np.full((SIDE, SIDE), value, dtype=np.int64) for value in (back, BLANK))
    for column, ground, icon in zip(COLUMNS, grounds, icons, strict=True):
        colours[ROW - 1 : ROW + 2, column] = ground
        placed[ROW, column] = icon
    placed[mark[0], mark[1]] = mark[2]
    if ball != BLANK:
        placed[ROW + 1, COLUMNS[ball]] = BALL
    return Map(colours, placed)


def state_change(draw: ItemDraw) -> TaskItem:
    """Return a legend and frames of one place; from one of them on, the ground under one icon is another land.

    Two hops: which icon that is, and on which land it was before; one hop: the colour under an icon that has not
    changed. All pictures but the last frame slide.
    """
    random = draw.random
    count = int(random.integers(3, 6))
    place = make_place(random, 5)
    before = place.ground.icon_colours()
    changed, steady = (place.icons[int(step)] for step in random.permutation(len(place.icons))[:2])
    later = int(random.choice([colour for colour in place.lands if colour != before[changed]]))
    colours = place.ground.colours.copy()
    colours[place.ground.icons == changed] = later
    turn = int(random.integers(1, count))
    frames = [place.ground if step < turn else Map(colours, place.ground.icons) for step in range(count)]
    icons, lands = [ICON_NAMES[icon] for icon in place.icons], [place.land(colour) for colour in place.lands]
    subject = ICON_NAMES[changed]
    draw.choose("under which icon did the land change ?", subject, "changed", icons, 3)
    draw.choose(f"on which land did the {subject} stand before ?", place.land(before[changed]), "before", lands)
    draw.choose(draw.phrase("colour", ICON_NAMES[steady]), COLOUR_NAMES[before[steady]], "colour")
    return draw.item(frames_of(place, frames, count - 1))

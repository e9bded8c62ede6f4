"""object-shuffle: under which cup is the ball now? In MileBench's form (ObjectShuffle).

The first frame shows the ball below one of three cups, each cup on ground of its own colour. Every following frame
shows arrows in place of the two cups that change places. The last frame shows three cups again: it looks the same
whatever happened, so that the answer is only in what the frame took from those before it.
"""

from __future__ import annotations

import numpy as np

from benchmarks.tasks.building import choice, name, phrase, picture, stream
from benchmarks.tasks.items import Item
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES
from benchmarks.tasks.world import BLANK, COLOUR_NAMES, Map

TASK = "object-shuffle"
SIDE = 8
COLUMNS = (1, 4, 6)
ROW = 4
CUP, BALL, ARROW = (ICON_NAMES.index(icon) for icon in ("cup", "ball", "arrow"))


def object_shuffle(seed: int, item: int, form: str) -> Item:
    """Two to four exchanges between a first and a last frame; all frames but the last slide."""
    random, code = stream(TASK, seed, item), name(TASK, seed, item)
    back, *grounds = (int(colour) for colour in random.permutation(COLOUR_COUNT)[: len(COLUMNS) + 1])
    others = [icon for icon in range(len(ICON_NAMES)) if icon not in (CUP, BALL, ARROW)]
    mark = (int(random.integers(2)), int(random.integers(SIDE)), int(random.choice(others)))
    where = start = int(random.integers(len(COLUMNS)))
    frames = [frame(back, grounds, (CUP,) * 3, mark, ball=start)]
    for _ in range(int(random.integers(2, 5))):
        pair = [int(place) for place in random.permutation(len(COLUMNS))[:2]]
        frames.append(frame(back, grounds, tuple(ARROW if place in pair else CUP for place in range(3)), mark))
        where = pair[1 - pair.index(where)] if where in pair else where
    frames.append(frame(back, grounds, (CUP,) * 3, mark))
    names = [COLOUR_NAMES[colour] for colour in grounds]
    questions = (
        choice(random, f"{code}-0", phrase(random, "colour", "ball"), names[where], "shuffled", True, names, 3),
        choice(random, f"{code}-1", phrase(random, "colour", ICON_NAMES[mark[2]]), COLOUR_NAMES[back], "colour", False),
    )
    parts = tuple(picture(shown, step < len(frames) - 1) for step, shown in enumerate(frames))
    return Item(code, TASK, form, parts, questions)


def frame(back: int, grounds: list[int], icons: tuple[int, ...], mark: tuple[int, int, int], ball: int = BLANK) -> Map:
    """A map of one colour with three coloured columns, an icon on each, a mark apart, and the ball below one."""
    colours, placed = np.full((SIDE, SIDE), back, dtype=np.int64), np.full((SIDE, SIDE), BLANK, dtype=np.int64)
    for column, ground, icon in zip(COLUMNS, grounds, icons, strict=True):
        colours[ROW - 1 : ROW + 2, column] = ground
        placed[ROW, column] = icon
    placed[mark[0], mark[1]] = mark[2]
    if ball != BLANK:
        placed[ROW + 1, COLUMNS[ball]] = BALL
    return Map(colours, placed)

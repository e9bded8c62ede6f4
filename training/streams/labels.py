"""What every cell of a stream means, for the losses on visual tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.streams import GeneratedStream
from benchmarks.tasks.tiles import ICON_NAMES, icon_tile, land_tile
from benchmarks.tasks.world import BLANK

NOTHING = len(ICON_NAMES)
UNSAID = -100
MOST = 4


@dataclass(frozen=True)
class Labels:
    """[frames, 4] each, cells in the order of a frame's tokens.

    land: of the stay. glyph: icon, NOTHING where none stands (the land's own cell too). colour: under it. begins: 1
    where a stay, or a thing's view, begins with this frame. before: land of the stay before in the first frame of a
    stay, UNSAID elsewhere. order: the how-manieth visit to the land, or view of the icon, this is, from 0 up to MOST;
    UNSAID in blank cells. tiles: tile numbers.
    """

    tiles: np.ndarray
    land: np.ndarray
    glyph: np.ndarray
    colour: np.ndarray
    begins: np.ndarray
    before: np.ndarray
    order: np.ndarray


def label(stream: GeneratedStream) -> Labels:
    """The labels of every cell of a stream."""
    shape = (len(stream), 4)
    land, glyph, colour = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    begins, before = np.zeros(shape, dtype=np.int64), np.full(shape, UNSAID, dtype=np.int64)
    order = np.full(shape, UNSAID, dtype=np.int64)
    visits, views = Counter[int](), Counter[int]()
    glyph[:] = NOTHING
    tiles = np.zeros(shape, dtype=np.int64)
    for number, stay in enumerate(stream.stays):
        span = slice(stay.begin, stay.end)
        land[span] = stay.land
        colour[span] = (stay.sign, *stay.ground)
        tiles[span, 0] = land_tile(stay.land, stay.sign)
        tiles[span, 1:] = icon_tile(BLANK, np.asarray(stay.ground))
        begins[stay.begin, 0] = 1
        order[span, 0] = min(visits[stay.land], MOST)
        visits[stay.land] += 1
        if number:
            before[stay.begin] = stream.stays[number - 1].land
        for thing in stay.things:
            view, cell = slice(thing.begin, thing.end), thing.slot + 1
            glyph[view, cell], colour[view, cell] = thing.icon, thing.colour
            tiles[view, cell] = icon_tile(thing.icon, thing.colour)
            begins[thing.begin, cell] = 1
            order[view, cell] = min(views[thing.icon], MOST)
            views[thing.icon] += 1
    return Labels(tiles, land, glyph, colour, begins, before, order)

"""Drawing cells: one 28 x 28 px tile for each glyph on each colour, drawn once and laid side by side.

Tiles are numbered: the white cell, then blank cells and icons by colour, then lands by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.tasks.glyphs import COLOURS, GLYPHS, ICONS, Shape

CELL = 28
SCALE = 4

ICON_NAMES = tuple(ICONS)
COLOUR_COUNT, LAND_COUNT = len(COLOURS), len(GLYPHS)
WHITE = 0
FIRST_LAND = 1 + COLOUR_COUNT * (1 + len(ICONS))
TILE_COUNT = FIRST_LAND + COLOUR_COUNT * LAND_COUNT


def icon_tile(icon: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Tile numbers of icons (-1: a blank cell) on colours."""
    return 1 + (np.asarray(icon, dtype=np.int64) + 1) * COLOUR_COUNT + colour


def land_tile(land: int, colour: int) -> int:
    """Tile number of a land's glyph on a colour."""
    return FIRST_LAND + land * COLOUR_COUNT + colour


def draw(shapes: Sequence[Shape], ground: tuple[int, int, int]) -> np.ndarray:
    """[28, 28, 3] uint8: the shapes on a ground colour, with a thin darker edge so that cells can be told apart."""
    picture = Image.new("RGB", (CELL * SCALE, CELL * SCALE), ground)
    pen = ImageDraw.Draw(picture)
    edge = tuple(int(part * 0.82) for part in ground)
    pen.rectangle((0, 0, CELL * SCALE - 1, CELL * SCALE - 1), outline=edge, width=SCALE)
    for kind, fill, numbers in shapes:
        points = [part * SCALE for part in numbers]
        if kind == "arc":
            pen.arc(points[:4], numbers[4], numbers[5], fill=fill, width=3 * SCALE)
        elif kind == "pieslice":
            pen.pieslice(points[:4], numbers[4], numbers[5], fill=fill)
        elif kind == "line":
            pen.line(points, fill=fill, width=3 * SCALE, joint="curve")
        else:
            getattr(pen, kind)(points, fill=fill)
    return np.asarray(picture.resize((CELL, CELL), Image.Resampling.BOX))


@cache
def bank() -> np.ndarray:
    """[TILE_COUNT, 28, 28, 3] uint8, every tile."""
    glyphs: list[Sequence[Shape]] = [[], *ICONS.values(), *GLYPHS.values()]
    drawn = [draw([], (248, 248, 244))] + [draw(shapes, colour) for shapes in glyphs for colour in COLOURS.values()]
    return np.stack(drawn)


def assemble(numbers: np.ndarray) -> Image.Image:
    """The picture of a [rows, columns] array of tile numbers."""
    rows, columns = numbers.shape
    pixels = bank()[numbers].transpose(0, 2, 1, 3, 4).reshape(rows * CELL, columns * CELL, 3)
    return Image.fromarray(pixels)

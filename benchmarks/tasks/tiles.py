"""What the world looks like: colours, and the glyphs of icons and lands, drawn as tiles of 28 x 28 px side by side.

A glyph is shapes on a canvas of one tile. A shape is (kind, fill, coordinates), drawn in order; an arc or a slice has
its box first, then its two angles in degrees. Tiles are numbered: the white cell, then blank cells and icons by colour,
then lands by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

K, W, G = (20, 20, 20), (255, 255, 255), (110, 110, 110)
Shape = tuple[str, tuple[int, int, int], tuple[float, ...]]
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (222, 52, 46),
    "orange": (250, 150, 40),
    "yellow": (250, 226, 70),
    "green": (64, 172, 76),
    "cyan": (92, 212, 222),
    "blue": (66, 104, 226),
    "purple": (140, 72, 176),
    "pink": (250, 160, 200),
    "brown": (146, 92, 52),
    "grey": (160, 160, 160),
}
ICONS: dict[str, Sequence[Shape]] = {
    "tent": [("polygon", K, (14, 4, 26, 24, 2, 24)), ("polygon", W, (14, 11, 19, 24, 9, 24))],
    "boat": [
        ("polygon", K, (2, 18, 26, 18, 21, 25, 7, 25)),
        ("polygon", W, (14, 3, 14, 16, 24, 16)),
        ("line", K, (13, 3, 13, 18)),
    ],
    "tree": [("rectangle", K, (12, 16, 16, 26)), ("ellipse", K, (5, 2, 23, 19)), ("ellipse", W, (9, 6, 14, 11))],
    "house": [
        ("polygon", K, (14, 2, 27, 13, 1, 13)),
        ("rectangle", W, (5, 13, 23, 25)),
        ("rectangle", K, (11, 17, 17, 25)),
    ],
    "star": [("polygon", K, (14, 2, 17, 11, 26, 11, 19, 16, 22, 25, 14, 20, 6, 25, 9, 16, 2, 11, 11, 11))],
    "moon": [("polygon", W, (18, 2, 11, 4, 6, 9, 5, 14, 6, 19, 11, 24, 18, 26, 14, 21, 12, 17, 11, 14, 12, 11, 14, 7))],
    "flag": [("line", K, (7, 3, 7, 26)), ("polygon", W, (9, 4, 25, 9, 9, 15))],
    "key": [
        ("ellipse", K, (2, 8, 13, 19)),
        ("ellipse", W, (5, 11, 10, 16)),
        ("rectangle", K, (12, 12, 26, 15)),
        ("rectangle", K, (20, 15, 23, 20)),
    ],
    "cup": [
        ("polygon", W, (4, 6, 20, 6, 17, 24, 7, 24)),
        ("arc", K, (15, 8, 26, 18, 270, 90)),
        ("line", K, (4, 6, 20, 6)),
    ],
    "fish": [
        ("ellipse", W, (2, 8, 20, 20)),
        ("polygon", W, (17, 14, 26, 7, 26, 21)),
        ("ellipse", K, (5, 11, 8, 14)),
    ],
    "heart": [
        ("ellipse", K, (3, 5, 15, 16)),
        ("ellipse", K, (13, 5, 25, 16)),
        ("polygon", K, (4, 13, 24, 13, 14, 25)),
    ],
    "bell": [
        ("pieslice", W, (5, 3, 23, 31, 180, 360)),
        ("rectangle", K, (3, 17, 25, 20)),
        ("ellipse", K, (11, 20, 17, 26)),
    ],
    "car": [
        ("polygon", W, (7, 7, 20, 7, 24, 14, 4, 14)),
        ("rectangle", K, (1, 13, 27, 20)),
        ("ellipse", W, (4, 17, 11, 24)),
        ("ellipse", W, (17, 17, 24, 24)),
    ],
    "crown": [("polygon", W, (3, 6, 9, 13, 14, 4, 19, 13, 25, 6, 23, 20, 5, 20)), ("rectangle", K, (5, 20, 23, 24))],
    "anchor": [
        ("line", K, (14, 7, 14, 24)),
        ("arc", K, (4, 6, 24, 25, 10, 170)),
        ("line", K, (8, 11, 20, 11)),
        ("ellipse", W, (11, 2, 17, 8)),
    ],
    "ladder": [
        ("line", K, (8, 2, 8, 26)),
        ("line", K, (20, 2, 20, 26)),
        ("line", W, (9, 7, 19, 7)),
        ("line", W, (9, 14, 19, 14)),
        ("line", W, (9, 21, 19, 21)),
    ],
    "mushroom": [
        ("rectangle", W, (11, 13, 17, 25)),
        ("pieslice", K, (2, 3, 26, 27, 180, 360)),
        ("ellipse", W, (8, 7, 13, 12)),
    ],
    "umbrella": [("pieslice", W, (2, 3, 26, 27, 180, 360)), ("line", K, (14, 14, 14, 25, 10, 25))],
    "hat": [("rectangle", K, (8, 4, 20, 18)), ("rectangle", K, (2, 18, 26, 22)), ("rectangle", W, (8, 13, 20, 16))],
    "candle": [("rectangle", W, (10, 11, 18, 26)), ("polygon", K, (14, 1, 18, 8, 14, 11, 10, 8))],
    "arrow": [("polygon", K, (2, 11, 15, 11, 15, 4, 26, 14, 15, 24, 15, 17, 2, 17))],
    "ball": [("ellipse", W, (3, 3, 25, 25)), ("line", K, (14, 3, 14, 25)), ("line", K, (3, 14, 25, 14))],
    "apple": [
        ("ellipse", K, (3, 9, 17, 26)),
        ("ellipse", K, (11, 9, 25, 26)),
        ("line", K, (14, 11, 17, 3)),
        ("ellipse", W, (17, 2, 25, 8)),
    ],
    "envelope": [("rectangle", W, (2, 6, 26, 22)), ("line", K, (2, 6, 14, 16, 26, 6))],
}
GLYPHS: dict[str, Sequence[Shape]] = {
    "forest": [
        ("polygon", K, (8, 2, 14, 20, 2, 20)),
        ("polygon", K, (20, 2, 26, 20, 14, 20)),
        ("rectangle", W, (7, 20, 10, 26)),
        ("rectangle", W, (19, 20, 22, 26)),
    ],
    "lake": [("line", W, (1, y, 7, y - 4, 14, y, 21, y - 4, 27, y)) for y in (9, 17, 25)],
    "desert": [
        ("line", K, (14, 3, 14, 26)),
        ("line", K, (6, 7, 6, 14, 14, 14)),
        ("line", K, (22, 10, 22, 18, 14, 18)),
        ("line", W, (3, 26, 25, 26)),
    ],
    "meadow": [
        ("ellipse", W, (9, 2, 19, 10)),
        ("ellipse", W, (9, 12, 19, 20)),
        ("ellipse", W, (3, 6, 13, 16)),
        ("ellipse", W, (15, 6, 25, 16)),
        ("ellipse", K, (11, 8, 17, 14)),
        ("line", K, (14, 19, 14, 27)),
    ],
    "swamp": [("line", K, (x, 14, x, 26)) for x in (6, 14, 22)]
    + [("ellipse", W, (x - 3, y, x + 3, y + 12)) for x, y in ((6, 5), (14, 2), (22, 5))],
    "snow": [
        ("line", W, (14, 1, 14, 27)),
        ("line", W, (3, 7, 25, 21)),
        ("line", W, (3, 21, 25, 7)),
        ("ellipse", K, (11, 11, 17, 17)),
    ],
    "rock": [
        ("polygon", G, (1, 25, 11, 3, 20, 25)),
        ("polygon", K, (12, 25, 20, 9, 27, 25)),
        ("polygon", W, (11, 3, 14, 10, 8, 10)),
    ],
    "field": [("line", K, (3, y, 25, y)) for y in (5, 11, 17, 23)]
    + [("rectangle", W, (x, 3, x + 2, 25)) for x in (6, 13, 20)],
}
CELL = 28
SCALE = 4
ICON_NAMES = tuple(ICONS)
COLOUR_COUNT, LAND_COUNT = len(COLOURS), len(GLYPHS)
WHITE = 0
FIRST_LAND = 1 + COLOUR_COUNT * (1 + len(ICONS))
TILE_COUNT = FIRST_LAND + COLOUR_COUNT * LAND_COUNT


def icon_tile(icon: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Return tile numbers of icons (-1: a blank cell) on colours."""
    return 1 + (np.asarray(icon, dtype=np.int64) + 1) * COLOUR_COUNT + colour


def land_tile(land: int, colour: int) -> int:
    """Return tile number of a land's glyph on a colour."""
    return FIRST_LAND + land * COLOUR_COUNT + colour


def draw(shapes: Sequence[Shape], ground: tuple[int, int, int]) -> np.ndarray:
    """Return [28, 28, 3] uint8: the shapes on a ground colour, with a thin darker edge that sets cells apart."""
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
    """Return [TILE_COUNT, 28, 28, 3] uint8, every tile."""
    glyphs: list[Sequence[Shape]] = [[], *ICONS.values(), *GLYPHS.values()]
    drawn = [draw([], (248, 248, 244))] + [draw(shapes, colour) for shapes in glyphs for colour in COLOURS.values()]
    return np.stack(drawn)


def assemble(numbers: np.ndarray) -> Image.Image:
    """Return the picture of a [rows, columns] array of tile numbers."""
    rows, columns = numbers.shape
    pixels = bank()[numbers].transpose(0, 2, 1, 3, 4).reshape(rows * CELL, columns * CELL, 3)
    return Image.fromarray(pixels)

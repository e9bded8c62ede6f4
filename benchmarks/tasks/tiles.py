"""What the world looks like: colours, and the glyphs of icons and lands, drawn as tiles of 28 x 28 px side by side.

A glyph is shapes on a canvas of one tile; `glyphs.toml` has them. Tiles are numbered: the white cell, then blank cells
and icons by colour, then lands by colour.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

GLYPHS = Path(__file__).with_name("glyphs.toml")
INKS = {"black": (20, 20, 20), "white": (255, 255, 255), "grey": (110, 110, 110)}
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
ICON_NAMES = (
    *("tent", "boat", "tree", "house", "star", "moon", "flag", "key", "cup", "fish", "heart", "bell", "car", "crown"),
    *("anchor", "ladder", "mushroom", "umbrella", "hat", "candle", "arrow", "ball", "apple", "envelope"),
)
LANDS = ("forest", "lake", "desert", "meadow", "swamp", "snow", "rock", "field")
CELL = 28
SCALE = 4
COLOUR_COUNT, LAND_COUNT = len(COLOURS), len(LANDS)
WHITE = 0
FIRST_LAND = 1 + COLOUR_COUNT * (1 + len(ICON_NAMES))
TILE_COUNT = FIRST_LAND + COLOUR_COUNT * LAND_COUNT


def icon_tile(icon: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Return tile numbers of icons (-1: a blank cell) on colours."""
    return 1 + (np.asarray(icon, dtype=np.int64) + 1) * COLOUR_COUNT + colour


def land_tile(land: int, colour: int) -> int:
    """Return tile number of a land's glyph on a colour."""
    return FIRST_LAND + land * COLOUR_COUNT + colour


def draw(shapes: Sequence[Sequence[Any]], ground: tuple[int, int, int]) -> np.ndarray:
    """Return [28, 28, 3] uint8: the shapes on a ground colour, with a thin darker edge that sets cells apart."""
    picture = Image.new("RGB", (CELL * SCALE, CELL * SCALE), ground)
    pen = ImageDraw.Draw(picture)
    edge = tuple(int(part * 0.82) for part in ground)
    pen.rectangle((0, 0, CELL * SCALE - 1, CELL * SCALE - 1), outline=edge, width=SCALE)
    for kind, ink, *numbers in shapes:
        fill, points = INKS[ink], [part * SCALE for part in numbers]
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
    held = tomllib.loads(GLYPHS.read_text(encoding="utf-8"))
    glyphs = [[], *(held["icons"][name] for name in ICON_NAMES), *(held["lands"][name] for name in LANDS)]
    drawn = [draw([], (248, 248, 244))] + [draw(shapes, colour) for shapes in glyphs for colour in COLOURS.values()]
    return np.stack(drawn)


def assemble(numbers: np.ndarray) -> Image.Image:
    """Return the picture of a [rows, columns] array of tile numbers."""
    rows, columns = numbers.shape
    pixels = bank()[numbers].transpose(0, 2, 1, 3, 4).reshape(rows * CELL, columns * CELL, 3)
    return Image.fromarray(pixels)

"""The world of the tasks: legends, maps, clips, questions and episodes, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from benchmarks.tasks import tiles

COLOUR_NAMES, LANDS = tuple(tiles.COLOURS), tiles.LANDS
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
KINDS = ("colour", "land", "legend", "count", "which")
BLANK = -1


@dataclass(frozen=True)
class Legend:
    """A page that says which land some colours mean: cells with a land's glyph on a colour, white cells elsewhere.

    colours: [rows, columns] colour index, BLANK where the cell is white; lands: colour index -> land index.
    """

    colours: np.ndarray
    lands: dict[int, int]

    def image(self) -> Image.Image:
        """Return the page as a picture, 28 x 28 px a cell."""
        return tiles.assemble(self.tile_numbers())

    def tile_numbers(self) -> np.ndarray:
        """Return [rows, columns] number of each cell's tile."""
        numbers = np.full(self.colours.shape, tiles.WHITE, dtype=np.int64)
        for colour, land in self.lands.items():
            numbers[self.colours == colour] = tiles.land_tile(land, colour)
        return numbers


@dataclass(frozen=True)
class Map:
    """A page of coloured cells, some with an icon. colours and icons: [rows, columns] indices, icons BLANK if none."""

    colours: np.ndarray
    icons: np.ndarray

    def image(self) -> Image.Image:
        """Return the page as a picture, 28 x 28 px a cell."""
        return tiles.assemble(self.tile_numbers())

    def tile_numbers(self) -> np.ndarray:
        """Return [rows, columns] number of each cell's tile."""
        return tiles.icon_tile(self.icons, self.colours)

    def icon_colours(self) -> dict[int, int]:
        """Return icon index -> index of the colour under it."""
        rows, columns = np.nonzero(self.icons != BLANK)
        return {int(self.icons[r, c]): int(self.colours[r, c]) for r, c in zip(rows, columns, strict=True)}


@dataclass(frozen=True)
class SceneClip:
    """Scenes shown one after another, each for `seconds` seconds; two frames of a scene are one segment."""

    scenes: tuple[Legend | Map, ...]
    seconds: int = 2

    def frames(self, rate: int = 1) -> list[Image.Image]:
        """Return all frames at `rate` frames a second."""
        pictures = [scene.image() for scene in self.scenes]
        return [picture for picture in pictures for _ in range(self.seconds * rate)]

    def image(self) -> Image.Image:
        """Return the first frame."""
        return self.scenes[0].image()


Page = Legend | Map | SceneClip


@dataclass(frozen=True)
class Question:
    """A question with a one-word answer, or a list. pages: indices of the episode's pages needed to answer it.

    kind: colour (single hop), land (multi hop), legend, count or which (aggregates); lands or colours of a list.
    """

    kind: str
    text: str
    answer: str
    pages: tuple[int, ...]


@dataclass(frozen=True)
class Episode:
    """Pages in prompt order and questions about them."""

    seed: int
    pages: tuple[Page, ...]
    questions: tuple[Question, ...]
    task: str = "maps"
    item: int = 0
    lands: dict[int, int] = field(default_factory=dict)

    def scenes(self) -> list[tuple[int, Legend | Map]]:
        """Return every legend and map in order, clips opened up, each with the index of its page."""
        opened: list[tuple[int, Legend | Map]] = []
        for index, page in enumerate(self.pages):
            opened += [(index, scene) for scene in (page.scenes if isinstance(page, SceneClip) else (page,))]
        return opened

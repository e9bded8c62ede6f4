"""Maps of which some cells change, and questions about cells that did and cells that did not."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.building import phrase, stream
from benchmarks.tasks.episodes import facts, legend_page, map_page
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, Episode, Legend, Map

LISTED, ICONS = 5, 8
"""Colours on the legend, and icons on a map."""
ASKED = 2
"""Questions about icons in changed cells, and about others, at most, of each kind."""
PLACES = ("region", "scattered")
"""Where cells change: side by side, as a window does, or anywhere."""


@dataclass(frozen=True)
class ChangedMap:
    """A legend, a stored map, and the same map with some cells changed.

    Attributes:
        questions: text, kind (colour or land), and whether it is about a changed cell.
    """

    legend: Legend
    base: Map
    changed: Map
    questions: tuple[tuple[str, str, bool], ...]


def draw_maps(seed: int, count: int, side: int, share: float, place: str) -> Iterator[ChangedMap]:
    """Yield maps of `side` x `side` cells of which a share differs from a stored one."""
    for item in range(count):
        random = stream(f"variants-{place}-{share:g}", seed, item)
        listed = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:LISTED]]
        legend = legend_page(random, side, {colour: int(random.integers(LAND_COUNT)) for colour in listed})
        icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
        base = map_page(random, side, listed, icons[:ICONS])
        differs = _differing(random, side, share, place)
        changed = _redrawn(random, base, differs, listed, icons[ICONS:])
        yield ChangedMap(legend, base, changed, tuple(_questions(random, legend, changed, differs)))


def _differing(random: np.random.Generator, side: int, share: float, place: str) -> np.ndarray:
    """Return which cells change, [side, side] bool."""
    count, differs = max(1, round(share * side * side)), np.zeros(side * side, dtype=bool)
    if place == "scattered":
        differs[random.permutation(side * side)[:count]] = True
        return differs.reshape(side, side)
    grid = differs.reshape(side, side)
    height = min(side, max(1, round(np.sqrt(count))))
    width = min(side, -(-count // height))
    top, left = int(random.integers(side - height + 1)), int(random.integers(side - width + 1))
    cells = [(row, column) for row in range(top, top + height) for column in range(left, left + width)][:count]
    for row, column in cells:
        grid[row, column] = True
    return grid


def _redrawn(random: np.random.Generator, base: Map, differs: np.ndarray, colours: list[int], icons: list[int]) -> Map:
    """Return the map with other colours and new icons in some cells, two icons at least where there is room."""
    ground, shown = base.colours.copy(), base.icons.copy()
    places = np.argwhere(differs)
    for row, column in places:
        others = [colour for colour in colours if colour != ground[row, column]]
        ground[row, column] = others[int(random.integers(len(others)))]
        shown[row, column] = BLANK
    new = min(len(places), len(icons), max(ASKED, round(ICONS * len(places) / differs.size)))
    for icon, (row, column) in zip(icons, places[random.permutation(len(places))[:new]], strict=False):
        shown[row, column] = icon
    return Map(ground, shown)


def _questions(
    random: np.random.Generator, legend: Legend, page: Map, differs: np.ndarray
) -> Iterator[tuple[str, str, bool]]:
    """Yield questions about icons in changed cells, and in others."""
    known = facts(Episode(0, (legend, page), ()))
    inside = {ICON_NAMES[int(icon)] for icon in page.icons[differs] if icon != BLANK}
    for kind in ("colour", "land"):
        for changed in (True, False):
            subjects = sorted(name for name in known[kind] if (name in inside) == changed)
            for place in random.permutation(len(subjects))[:ASKED]:
                yield phrase(random, kind, subjects[place]), kind, changed

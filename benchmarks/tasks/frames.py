"""Frames of one place: the same ground and icons picture after picture, and one icon that walks from land to land."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.generate import legend_page, map_page
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import BLANK, COLOUR_NAMES, LANDS, Legend, Map

SIDE = 8
STATIONARY = 3


@dataclass(frozen=True)
class Place:
    """A legend, ground of its colours (each for another land), and icons that stay where they are.

    lands: colour index -> land index, all different; walker: icon index; icons: the icons that stay, by index.
    """

    legend: Legend
    ground: Map
    lands: dict[int, int]
    walker: int
    icons: tuple[int, ...]

    def frame(self, random: np.random.Generator, colour: int) -> Map:
        """The place with the walker on a random free cell of a colour."""
        rows, columns = np.nonzero((self.ground.colours == colour) & (self.ground.icons == BLANK))
        cell = int(random.integers(len(rows)))
        icons = self.ground.icons.copy()
        icons[rows[cell], columns[cell]] = self.walker
        return Map(self.ground.colours, icons)

    def land(self, colour: int) -> str:
        """Name of a colour's land."""
        return LANDS[self.lands[colour]]


def make_place(random: np.random.Generator, colours: int) -> Place:
    """A place of so many colours and lands."""
    listed = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:colours]]
    lands = dict(zip(listed, (int(land) for land in random.permutation(LAND_COUNT)), strict=False))
    icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))[: STATIONARY + 1]]
    while True:
        ground = map_page(random, SIDE, listed, icons[1:])
        if all(int(((ground.colours == colour) & (ground.icons == BLANK)).sum()) for colour in listed):
            return Place(legend_page(random, SIDE, lands), ground, lands, icons[0], tuple(icons[1:]))


def path(random: np.random.Generator, colours: Sequence[int], steps: int) -> list[int]:
    """So many colours in a row, all different."""
    return [int(colour) for colour in random.permutation(list(colours))[:steps]]


def under(place: Place, random: np.random.Generator) -> tuple[str, str]:
    """One of the icons that stay, and the colour under it."""
    icon = place.icons[int(random.integers(len(place.icons)))]
    return ICON_NAMES[icon], COLOUR_NAMES[place.ground.icon_colours()[icon]]

"""Answers questions about a stream from what its frames show, cell by cell; knows neither stays nor the generator."""

from __future__ import annotations

import re
from itertools import groupby

import numpy as np

from benchmarks.tasks.tiles import COLOUR_COUNT, FIRST_LAND, ICON_NAMES
from benchmarks.tasks.world import COLOUR_NAMES, LANDS, NUMBERS


def lands_of(tiles: np.ndarray) -> list[str]:
    """The land that each frame shows."""
    return [LANDS[(int(frame[0, 0]) - FIRST_LAND) // COLOUR_COUNT] for frame in tiles]


def sights(tiles: np.ndarray, icon: str) -> list[tuple[int, str]]:
    """(frame, colour) of every frame that shows an icon."""
    found = []
    for number, frame in enumerate(tiles):
        for tile in frame.reshape(-1)[1:]:
            glyph, colour = divmod(int(tile) - 1, COLOUR_COUNT)
            if glyph and ICON_NAMES[glyph - 1] == icon:
                found.append((number, COLOUR_NAMES[colour]))
    return found


def runs(lands: list[str]) -> list[str]:
    """Lands in the order they were visited; the same land twice in a row never happens."""
    return [land for land, _ in groupby(lands)]


def solve(tiles: np.ndarray, text: str) -> str:
    """The answer, from the frames seen so far. AssertionError if they do not determine it."""
    lands = lands_of(tiles)

    def places(icon: str) -> list[str]:
        return runs([lands[number] for number, _ in sights(tiles, icon)])

    def matched(pattern: str) -> tuple[str, ...] | None:
        found = re.fullmatch(pattern.replace("?", r"\?"), text)
        return found.groups() if found else None

    if matched("in which land are we now ?") is not None:
        return lands[-1]
    if named := matched(r"what colour is under the (\w+) now ?"):
        return one([colour for number, colour in sights(tiles, named[0]) if number == len(tiles) - 1])
    if named := matched(r"in which land was the (\w+) ?"):
        return one(places(named[0]))
    if named := matched(r"what colour was under the (\w+) ?"):
        return one(colour for _, colour in sights(tiles, named[0]))
    if named := matched(r"in which land were the (\w+) and the (\w+) ?"):
        return one(set(places(named[0])) & set(places(named[1])))
    if named := matched(r"in which land was the (\w+) first ?"):
        return places(named[0])[0]
    if named := matched(r"in which land was the (\w+) last ?"):
        return places(named[0])[-1]
    if named := matched(r"which land came after the (\w+) ?"):
        order = runs(lands)
        return one(after for before, after in zip(order, order[1:], strict=False) if before == named[0])
    if named := matched(r"how many times was the (\w+) seen ?"):
        return NUMBERS[runs(lands).count(named[0])]
    raise AssertionError(f"no such question: {text}")


def one(found: object) -> str:
    """The only one of the answers found."""
    different = set(found)  # type: ignore[call-overload]
    assert len(different) == 1, different
    return str(different.pop())

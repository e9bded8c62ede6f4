"""How a stream is drawn: its stays, the lands that it visits often and seldom, and the things that come into view.

Some lands are common and returned to without end; the others, the rare ones, are visited one to four times. Some icons
are common and may be anywhere; the others have a role: shown in one stay only, in several, or two of them in one
land on different visits. Questions do not know the roles: they are worked out from what was shown.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.tasks.streams.world import SLOTS, GeneratedStream, Stay, Thing
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from emblema.errors import PromptError

STREAM_KINDS = ("ego", "movie", "live")
MOST_VISITS = 4


@dataclass(frozen=True, slots=True)
class StreamShape:
    """What tells the kinds apart.

    Attributes:
        stays: fewest and most frames of a stay; `bursts`: share of stays that are one or two frames long.
        views: fewest and most frames that a thing is in view, within its stay.
        filled: share of the slots' time that is filled with common icons where there is nothing else.
        signs: whether a land keeps the colour of its sign through the stream.
    """

    stays: tuple[int, int]
    views: tuple[int, int]
    bursts: float = 0.0
    filled: float = 0.5
    signs: bool = False


SHAPES: dict[str, StreamShape] = {
    "ego": StreamShape((10, 48), (6, 24), filled=0.4, signs=True),
    "movie": StreamShape((3, 10), (2, 10), filled=0.7),
    "live": StreamShape((2, 24), (1, 12), bursts=0.4, filled=0.5),
}


def make_stream(random: np.random.Generator, kind: str, frames: int, seed: int = 0, item: int = 0) -> GeneratedStream:
    """Return a stream of a kind and so many frames.

    Raises:
        PromptError: there is no such kind, or there is no frame.
    """
    if kind not in SHAPES:
        raise PromptError(f"unknown kind of stream {kind!r}: choose one of {', '.join(STREAM_KINDS)}")
    if frames < 1:
        raise PromptError(f"a stream of {frames} frames: give one or more")
    shape = SHAPES[kind]
    lengths = _lengths(random, shape, frames)
    lands = _lands(random, len(lengths))
    shown, common = _roles(random, lands)
    signs = random.integers(COLOUR_COUNT, size=LAND_COUNT)
    stays, begin = [], 0
    for number, (length, land) in enumerate(zip(lengths, lands, strict=True)):
        end = begin + length
        sign = int(signs[land] if shape.signs else random.integers(COLOUR_COUNT))
        ground = tuple(int(colour) for colour in random.integers(COLOUR_COUNT, size=SLOTS))
        things = _things(random, shape, begin, end, shown.get(number, ()), common)
        stays.append(Stay(land, sign, ground, begin, end, things))
        begin = end
    return GeneratedStream(kind, seed, item, tuple(stays))


def _lengths(random: np.random.Generator, shape: StreamShape, frames: int) -> list[int]:
    """Return frames of each stay; in a short stream stays are short, so that there are several."""
    least, most = shape.stays
    most = max(2, min(most, frames // 6))
    least = min(least, max(1, most // 2))
    lengths: list[int] = []
    left = frames
    while left > 0:
        length = int(random.integers(1, 3) if random.random() < shape.bursts else random.integers(least, most + 1))
        lengths.append(min(length, left))
        left -= lengths[-1]
    return lengths


def _lands(random: np.random.Generator, stays: int) -> list[int]:
    """Return the land of each stay, never the same twice in a row."""
    order = [int(land) for land in random.permutation(LAND_COUNT)]
    count = int(random.integers(3, 6))
    common, rare = order[:count], order[count:]
    lands = [-1] * stays
    for land in rare:
        wanted = int(random.integers(1, MOST_VISITS + 1))
        for place in random.permutation(stays):
            if wanted and lands[place] < 0 and land not in lands[max(0, place - 1) : place + 2]:
                lands[place], wanted = land, wanted - 1
    for place in range(stays):
        if lands[place] < 0:
            free = [land for land in common if land not in lands[max(0, place - 1) : place + 2]]
            lands[place] = free[int(random.integers(len(free)))]
    return lands


def _roles(random: np.random.Generator, lands: list[int]) -> tuple[dict[int, list[int]], list[int]]:
    """Return the icons with a role by the number of the stay that shows them, at most one a slot; and all others."""
    icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
    common, special = icons[:9], icons[9:]
    shown: dict[int, list[int]] = {}

    def free(chosen: list[int]) -> bool:
        return all(len(shown.get(number, ())) < SLOTS for number in chosen)

    def show(icon: int, chosen: list[int]) -> None:
        for number in chosen:
            shown.setdefault(number, []).append(icon)

    for _ in range(3):
        first, second = special.pop(), special.pop()
        met = _meeting(random, lands)
        if met and free([*met[0], *met[1]]):
            show(first, met[0])
            show(second, met[1])
    for _ in range(4):
        icon = special.pop()
        stays = [int(number) for number in random.permutation(len(lands))[: int(random.integers(2, 5))]]
        if free(stays):
            show(icon, stays)
    for icon in special:
        stays = [int(random.integers(len(lands)))]
        if free(stays):
            show(icon, stays)
    return shown, common


def _meeting(random: np.random.Generator, lands: list[int]) -> tuple[list[int], list[int]] | None:
    """Return two stays for each of two icons, so that one land is common to them, on different visits."""
    visits = {land: [number for number, each in enumerate(lands) if each == land] for land in set(lands)}
    several = [land for land, numbers in sorted(visits.items()) if len(numbers) > 1]
    if not several or len(visits) < 3:
        return None
    land = several[int(random.integers(len(several)))]
    first, second = (int(number) for number in random.permutation(visits[land])[:2])
    others = [int(each) for each in random.permutation([each for each in sorted(visits) if each != land])[:2]]
    apart = [int(random.choice(visits[each])) for each in others]
    return [first, apart[0]], [second, apart[1]]


def _things(
    random: np.random.Generator,
    shape: StreamShape,
    begin: int,
    end: int,
    chosen: list[int] | tuple[int, ...],
    common: list[int],
) -> tuple[Thing, ...]:
    """Return what comes into view in a stay: what has to, in slots of its own, and common icons where there is room."""
    least, most = shape.views
    slots = [int(slot) for slot in random.permutation(SLOTS)]
    others = [int(icon) for icon in random.permutation(common)]
    colours = random.integers(COLOUR_COUNT, size=len(others) + SLOTS)
    things: list[Thing] = []

    def view(icon: int, slot: int, first: int, last: int) -> int:
        length = min(last - first, int(random.integers(least, most + 1)))
        start = first + int(random.integers(last - first - length + 1))
        things.append(Thing(icon, int(colours[len(things)]), slot, start, start + length))
        return start + length

    for place, slot in enumerate(slots):
        if place < len(chosen):
            view(chosen[place], slot, begin, end)
            spans = [(begin, things[-1].begin), (things[-1].end, end)]
        else:
            spans = [(begin, end)]
        for first, last in spans:
            free = first
            while free < last and others:
                if random.random() < shape.filled:
                    free = view(others.pop(), slot, free, min(last, free + most))
                else:
                    free += int(random.integers(least, most + 1))
    return tuple(things)


def stream_of(kind: str, frames: int, seed: int, item: int) -> GeneratedStream:
    """Return one stream, drawn with random numbers of its own.

    Raises:
        PromptError: as `make_stream`.
    """
    random = np.random.default_rng([seed, zlib.crc32(kind.encode()), frames, item])
    return make_stream(random, kind, frames, seed, item)


def generate(kind: str, frames: int, seed: int, items: int) -> Iterator[GeneratedStream]:
    """Yield `items` fresh streams; the same seed gives the same streams, and fewer give the first of them.

    Raises:
        PromptError: as `make_stream`, or no stream is asked for.
    """
    if items < 1 or seed < 0:
        raise PromptError(f"{items} streams of seed {seed}: give one stream or more, and a seed of 0 or more")
    for item in range(items):
        yield stream_of(kind, frames, seed, item)

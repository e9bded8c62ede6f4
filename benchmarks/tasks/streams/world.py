"""The world of the streams: frames of 2 x 2 cells, stays in lands, things that come into view; all of it plain data.

A frame's top left cell shows the glyph of the land on a colour; the other three, the slots, show an icon on a coloured
cell, or a blank coloured cell. One token of the bundled models is one cell, so a frame is four tokens.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from benchmarks.tasks import tiles
from benchmarks.tasks.world import BLANK

SLOTS = 3
SIDE = 2
FRAME_SECONDS = 2.0
"""Seconds between frames: half a frame a second, as ReKV samples."""


@dataclass(frozen=True, slots=True)
class Thing:
    """An icon on a colour in one slot, in view from frame `begin` up to, not with, frame `end` of the stream."""

    icon: int
    colour: int
    slot: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Stay:
    """Frames `begin` up to `end` in one land.

    sign: colour under the land's glyph; ground: the colour of each slot where there is no thing. An icon comes into
    view at most once in a stay.
    """

    land: int
    sign: int
    ground: tuple[int, ...]
    begin: int
    end: int
    things: tuple[Thing, ...]

    def tiles(self, frame: int) -> np.ndarray:
        """Return [2, 2] tile numbers of a frame of the stream that lies in this stay."""
        icons, colours = [BLANK] * SLOTS, list(self.ground)
        for thing in self.things:
            if thing.begin <= frame < thing.end:
                icons[thing.slot], colours[thing.slot] = thing.icon, thing.colour
        shown = tiles.icon_tile(np.asarray(icons), np.asarray(colours))
        return np.asarray([tiles.land_tile(self.land, self.sign), *shown], dtype=np.int64).reshape(SIDE, SIDE)


@dataclass(frozen=True, slots=True)
class TimedQuestion:
    """A question about a stream, with a one-word answer.

    Attributes:
        kind: recent, far, repeated, ordered or counted.
        at: it is asked when this many frames have been seen.
        evidence: (begin, end) of the ranges of frames that together determine the answer.
    """

    kind: str
    text: str
    answer: str
    at: int
    evidence: tuple[tuple[int, int], ...]

    @property
    def seconds(self) -> float:
        """Time asked."""
        return self.at * FRAME_SECONDS


@dataclass(frozen=True)
class GeneratedStream:
    """Stays, one after another. Frames are drawn as they are asked for, so that a long stream costs nothing to hold.

    kind: ego, movie or live; noise: standard deviation of the pixels' noise, another in each frame.
    """

    kind: str
    seed: int
    item: int
    stays: tuple[Stay, ...]
    noise: float = 5.0
    _ends: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", tuple(stay.end for stay in self.stays))

    @property
    def id(self) -> str:
        """A name for files and tables."""
        return f"{self.kind}-{len(self)}-{self.seed}-{self.item:04d}"

    def __len__(self) -> int:
        return self.stays[-1].end

    def stay(self, frame: int) -> Stay:
        """Return the stay that a frame lies in."""
        return self.stays[bisect_right(self._ends, frame)]

    def tiles(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return [frames, 2, 2] tile numbers of a range of frames."""
        stop = len(self) if end is None else end
        shown = [self.stay(frame).tiles(frame) for frame in range(begin, stop)]
        return np.stack(shown) if shown else np.zeros((0, SIDE, SIDE), dtype=np.int64)

    def frame(self, number: int) -> Image.Image:
        """Return one frame as a picture of 56 x 56 px: its light and noise are its own, and the same every time."""
        clean = np.asarray(tiles.assemble(self.stay(number).tiles(number)), dtype=np.float32)
        random = np.random.default_rng([self.seed, self.item, number])
        pixels = clean * random.uniform(0.96, 1.04) + random.normal(0, self.noise, clean.shape)
        return Image.fromarray(np.clip(np.rint(pixels), 0, 255).astype(np.uint8))

    def frames(self, begin: int = 0, end: int | None = None) -> Iterator[Image.Image]:
        """Return frames in order, drawn as they are taken."""
        return (self.frame(number) for number in range(begin, len(self) if end is None else end))

"""Requests of a stage as plain data, drawn from a seed over pages of the generated world.

`rag` shows some of many pages in random order. `agent` slides a window of screenshots, with look-backs and resets.
`novelty` shows every picture once. `noise` sends one prompt of pictures of noise again and again.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from PIL import Image

from benchmarks.tasks.building import phrase, stream
from benchmarks.tasks.episodes import facts, legend_page, map_page
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import Episode, Legend, Map
from benchmarks.window.trace import Trace, TraceSettings, TraceStep, agent_trace, novelty_trace
from emblema.errors import PromptError

KINDS = ("rag", "agent", "novelty", "noise")
SHOWN, AFTER, GONE = "shown", "legend after its map", "legend dropped"
"""Where the facts of a question are."""
LISTED = 9
"""Colours that the legends of a world list together."""
LEGENDS = 10
"""One page of so many is a legend, two at least."""
LANDS_ASKED = 0.8
"""Share of the questions that need a legend and a map; the others need a map alone."""
AGENT = TraceSettings(look_back=8, resets=25, gone=0.3, listed=3)
"""An agent: three in ten questions are about a dropped legend, and two legends leave out most of what it said."""
TURNS_TOGETHER = 8
"""Turns of an agent that share most of their windows, for intervals."""
DRAWS = 1000
NOISE_QUESTION = "which land does the tent stand on ?"


class Drawn(Protocol):
    """A page that can be drawn."""

    def image(self) -> Image.Image: ...


@dataclass(frozen=True, slots=True)
class NoisePage:
    """A picture of noise, `side` pixels wide."""

    seed: int
    side: int

    def image(self) -> Image.Image:
        """Return the picture."""
        pixels = np.random.default_rng(self.seed).integers(0, 255, (self.side, self.side, 3), dtype=np.uint8)
        return Image.fromarray(pixels)


@dataclass(frozen=True, slots=True)
class Picture:
    """A page in a prompt, by its number; `slid`: it conditions the pages after it, and no text row attends it."""

    page: int
    slid: bool = False


Piece = str | Picture


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request: a user's message of texts and pictures.

    Attributes:
        answer: the right answer; of a dropped legend, what it said; empty where there is none.
        where: `SHOWN`, `AFTER` or `GONE`.
        group: requests of one group are not independent: an interval draws them together.
    """

    pieces: tuple[Piece, ...]
    answer: str
    where: str = SHOWN
    group: int = 0


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """What the requests of a stage look like.

    Attributes:
        kind: of `KINDS`.
        side: cells along a page's side, so that a page takes about its square in rows; of `noise` pixels.
        pages: pages of the world, for `rag`.
        shown: pictures of a prompt; an agent's window.
        slid: whether legends have slid out of what the question can read, for `rag`.
    """

    kind: str
    requests: int = 200
    side: int = 8
    pages: int = 30
    shown: int = 8
    slid: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PromptError(f"unknown traffic {self.kind!r}: choose one of {', '.join(KINDS)}")
        if self.requests < 1:
            raise PromptError(f"{self.requests} requests: give one or more")
        if not 2 <= self.shown <= self.pages - 2:
            raise PromptError(f"{self.shown} of {self.pages} pages: give two or more, of a world with two more pages")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order, and their pages by number; `inline`: pictures come with the prompt, else they are added."""

    shape: TrafficShape
    pages: tuple[Drawn, ...]
    requests: tuple[LoadRequest, ...]
    inline: bool


def traffic_of(shape: TrafficShape, seed: int) -> Traffic:
    """Return the requests of a shape and seed; fewer of them are the first of more."""
    if shape.kind == "noise":
        pages = tuple(NoisePage(seed + place, shape.side) for place in range(shape.shown))
        shown = [piece for place in range(shape.shown) for piece in (Picture(place), "and then")]
        request = LoadRequest((" ".join([NOISE_QUESTION] * 5), *shown, NOISE_QUESTION), "")
        return Traffic(shape, pages, (request,) * shape.requests, inline=True)
    if shape.kind == "rag":
        world = _World(shape, stream("traffic-rag", seed, shape.pages))
        return Traffic(shape, world.pages, tuple(_rag(world)), inline=False)
    settings = replace(AGENT, steps=shape.requests, window=shape.shown, side=shape.side)
    if shape.kind == "agent":
        trace, together = agent_trace(seed, settings), TURNS_TOGETHER
    else:
        plain = TraceSettings(steps=shape.requests, window=shape.shown, side=shape.side, gone=0.0)
        trace, together = novelty_trace(seed, plain), 1
    requests = tuple(_turn_of(trace, step, step.index // together) for step in trace.steps)
    return Traffic(shape, trace.pages, requests, inline=True)


class _World:
    """Pages of one world: legends that agree on what colours mean, and maps of one or two icons."""

    def __init__(self, shape: TrafficShape, random: np.random.Generator) -> None:
        self.shape, self.random = shape, random
        legends = max(2, shape.pages // LEGENDS)
        listed = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:LISTED]]
        lands = {colour: int(random.integers(LAND_COUNT)) for colour in listed}
        pages: list[Legend | Map] = []
        for place in range(legends):
            # More legends than colours list some colour again.
            share = listed[place::legends] or [listed[place % LISTED]]
            pages.append(legend_page(random, shape.side, {colour: lands[colour] for colour in share}))
        icons: list[int] = []
        for _ in range(shape.pages - legends):
            count = int(random.integers(1, 3))
            if len(icons) < count:
                icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
            pages.append(map_page(random, shape.side, listed, icons[:count]))
            icons = icons[count:]
        self.pages, self.legends = tuple(pages), legends
        # Nothing is done with this draw: the seeds of committed figures give the requests that they were measured on.
        random.permutation(shape.pages)

    def draw(self) -> tuple[int, ...]:
        """Return pages in random order, of which one or two are legends before a map that needs them."""
        for _ in range(DRAWS):
            legends = min(int(self.random.integers(1, 3)), self.shape.shown - 1)
            drawn = [*self._drawn(range(self.legends), legends)]
            drawn += self._drawn(range(self.legends, len(self.pages)), self.shape.shown - len(drawn))
            order = tuple(int(page) for page in self.random.permutation(drawn))
            if self.known(order)["land"]:
                return order
        raise PromptError(f"{self.shape.shown} of {self.shape.pages} pages: no order of them has anything to ask about")

    def _drawn(self, pages: Sequence[int], count: int) -> list[int]:
        alike = np.full(len(pages), 1 / len(pages))
        return [int(page) for page in self.random.choice(pages, count, replace=False, p=alike)]

    def known(self, order: tuple[int, ...]) -> dict[str, dict[str, str]]:
        """Return kind -> icon -> answer, of the icons that one of the pages alone shows."""
        pages = [self.pages[page] for page in order]
        shown = Counter(icon for page in pages if isinstance(page, Map) for icon in page.icon_colours())
        found = facts(Episode(0, tuple(pages), ()))
        once = {ICON_NAMES[icon] for icon, count in shown.items() if count == 1}
        return {
            kind: {icon: answer for icon, (answer, _) in found[kind].items() if icon in once}
            for kind in ("land", "colour")
        }

    def ask(self, order: tuple[int, ...]) -> tuple[str, str]:
        """Return a question about the pages, and its answer."""
        known = self.known(order)
        kind = "land" if self.random.random() < LANDS_ASKED else "colour"
        icon = str(self.random.choice(sorted(known[kind])))
        return phrase(self.random, kind, icon), known[kind][icon]


def _rag(world: _World) -> Iterator[LoadRequest]:
    for index in range(world.shape.requests):
        order = world.draw()
        question, answer = world.ask(order)
        shown = (Picture(page, world.shape.slid and isinstance(world.pages[page], Legend)) for page in order)
        yield LoadRequest((*shown, question), answer, group=index)


def _turn_of(trace: Trace, step: TraceStep, group: int) -> LoadRequest:
    """Return a turn of an agent, its window sent whole."""
    pieces: list[Piece] = []
    for shown in step.window:
        pieces += [shown.text, Picture(shown.picture)]
    where = SHOWN if step.question.where != "gone" else AFTER if _told_after(trace, step) else GONE
    return LoadRequest((*pieces, step.question.text), step.question.answer, where, group)


def _told_after(trace: Trace, step: TraceStep) -> bool:
    """Return whether a legend of the window lists the colour that a question about a dropped legend is about."""
    pages = [trace.pages[shown.picture] for shown in step.window]
    words = step.question.text.split()
    asked = pages[step.question.needs[0]]
    colours = {
        colour
        for icon, colour in (asked.icon_colours() if isinstance(asked, Map) else {}).items()
        if ICON_NAMES[icon] in words
    }
    return any(colours & set(page.lands) for page in pages if isinstance(page, Legend))

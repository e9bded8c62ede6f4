"""Requests of a stage as plain data, drawn from a seed over pages of the generated world.

`rag` shows some of many pages in random order. `agent` slides a window of screenshots, with look-backs and resets.
`novelty` shows every picture once. `same` sends one prompt of `rag` again and again. `talk` is conversations about the
pages of `rag`, each sent whole at each turn, with one more page and question.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.tasks.building import phrase, stream
from benchmarks.tasks.episodes import facts, legend_page, map_page
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import Episode, Legend, Map
from benchmarks.window.trace import Trace, TraceSettings, TraceStep, agent_trace, novelty_trace
from emblema.errors import PromptError

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
TURNS = 4
"""Turns of a conversation."""


@dataclass(frozen=True, slots=True)
class AssistantText:
    """What was said to the turn before, as a client sends it back."""

    text: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A page in a prompt, by its number; `slid`: it conditions the pages after it, and no text row attends it."""

    page: int
    slid: bool = False


Piece = str | Picture | AssistantText


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request: texts and pictures of a user, and replies in between.

    Attributes:
        follows: whether it is sent once the request before it is answered.
        dropped: whether it asks what a legend said that is no longer shown, nor any other of that colour.
        group: requests of one group are not independent: an interval draws them together.
    """

    pieces: tuple[Piece, ...]
    dropped: bool = False
    group: int = 0
    follows: bool = False


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """What the requests of a stage look like.

    Attributes:
        kind: rag, agent, novelty, same or talk.
        side: cells along a page's side, so that a page takes about its square in rows.
        pages: pages of the world, for `rag`, `same` and `talk`.
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
        if not 2 <= self.shown <= self.pages - 2:
            raise PromptError(f"{self.shown} of {self.pages} pages: give two or more, of a world with two more pages")
        if self.kind == "talk" and self.shown < TURNS:
            raise PromptError(f"{self.shown} pages in a conversation of {TURNS} turns: give {TURNS} or more")

    @property
    def promised(self) -> bool:
        """Whether it has the size that bars were promised of: 200 requests, of `rag` 8 of 30 pages."""
        return self.requests >= 200 and (self.kind != "rag" or (self.shown, self.pages) == (8, 30))


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order, and their pages by number; `inline`: pictures come with the prompt, else they are added."""

    pages: tuple[Legend | Map, ...]
    requests: tuple[LoadRequest, ...]
    inline: bool


def traffic_of(shape: TrafficShape, seed: int) -> Traffic:
    """Return the requests of a shape and seed; fewer of them are the first of more."""
    if shape.kind in ("rag", "same", "talk"):
        world = _World(shape, stream("traffic-rag", seed, shape.pages))
        if shape.kind == "same":
            return Traffic(world.pages, (next(_rag(world)),) * shape.requests, inline=True)
        draw = _talks if shape.kind == "talk" else _rag
        return Traffic(world.pages, tuple(draw(world)), inline=False)
    settings = replace(AGENT, steps=shape.requests, window=shape.shown, side=shape.side)
    if shape.kind == "agent":
        trace, together = agent_trace(seed, settings), TURNS_TOGETHER
    else:
        plain = TraceSettings(steps=shape.requests, window=shape.shown, side=shape.side, gone=0.0)
        trace, together = novelty_trace(seed, plain), 1
    requests = tuple(_turn_of(trace, step, step.index // together) for step in trace.steps)
    return Traffic(trace.pages, requests, inline=True)


class _World:
    """Pages of one world: legends that agree on what colours mean, and maps of one or two icons."""

    def __init__(self, shape: TrafficShape, random: np.random.Generator) -> None:
        self.shape, self.random, self.legends = shape, random, max(2, shape.pages // LEGENDS)
        listed = [int(colour) for colour in random.permutation(COLOUR_COUNT)[:LISTED]]
        lands = {colour: int(random.integers(LAND_COUNT)) for colour in listed}
        pages: list[Legend | Map] = []
        for place in range(self.legends):
            # More legends than colours list some colour again.
            share = listed[place :: self.legends] or [listed[place % LISTED]]
            pages.append(legend_page(random, shape.side, {colour: lands[colour] for colour in share}))
        icons: list[int] = []
        while len(pages) < shape.pages:
            count = int(random.integers(1, 3))
            if len(icons) < count:
                icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
            pages.append(map_page(random, shape.side, listed, icons[:count]))
            icons = icons[count:]
        self.pages = tuple(pages)
        # Nothing is done with this draw: the seeds of committed figures give the requests that they were measured on.
        random.permutation(shape.pages)

    def draw(self) -> tuple[tuple[int, ...], dict[str, dict[str, str]]]:
        """Return pages in random order, one or two of them legends before a map that needs them, and what they say."""
        for _ in range(DRAWS):
            legends = min(int(self.random.integers(1, 3)), self.shape.shown - 1)
            drawn = self._drawn(range(self.legends), legends)
            drawn += self._drawn(range(self.legends, len(self.pages)), self.shape.shown - legends)
            order = tuple(int(page) for page in self.random.permutation(drawn))
            known = self.known([self.pages[page] for page in order])
            if known["land"]:
                return order, known
        raise PromptError(f"{self.shape.shown} of {self.shape.pages} pages: no order of them has anything to ask about")

    def _drawn(self, pages: range, count: int) -> list[int]:
        alike = np.full(len(pages), 1 / len(pages))
        return [int(page) for page in self.random.choice(pages, count, replace=False, p=alike)]

    def known(self, pages: Sequence[Legend | Map]) -> dict[str, dict[str, str]]:
        """Return kind -> icon -> answer, of the icons that one of the pages alone shows."""
        shown = Counter(ICON_NAMES[icon] for page in pages if isinstance(page, Map) for icon in page.icon_colours())
        found = facts(Episode(0, tuple(pages), ()))
        return {
            kind: {icon: answer for icon, (answer, _) in found[kind].items() if shown[icon] == 1}
            for kind in ("land", "colour")
        }


def _rag(world: _World) -> Iterator[LoadRequest]:
    for index in range(world.shape.requests):
        order, known = world.draw()
        kind = "land" if world.random.random() < LANDS_ASKED else "colour"
        icon = str(world.random.choice(sorted(known[kind])))
        shown = (Picture(page, world.shape.slid and isinstance(world.pages[page], Legend)) for page in order)
        yield LoadRequest((*shown, phrase(world.random, kind, icon)), group=index)


def _talks(world: _World) -> Iterator[LoadRequest]:
    """Yield conversations turn by turn; a turn shows one page more than the one before, and asks about any of them."""
    for index in range(world.shape.requests):
        turn = index % TURNS
        if turn == 0:
            order, pieces, said = _talked_about(world), list[Piece](), ""
        count = world.shape.shown - TURNS + 1 + turn
        known = {
            kind: found for kind, found in world.known([world.pages[page] for page in order[:count]]).items() if found
        }
        kind = "land" if "land" in known and world.random.random() < LANDS_ASKED else "colour"
        icon = str(world.random.choice(sorted(known[kind])))
        fresh = order[:count] if turn == 0 else order[count - 1 : count]
        pieces += [*([AssistantText(said)] if turn else []), *map(Picture, fresh), phrase(world.random, kind, icon)]
        said = known[kind][icon]
        yield LoadRequest(tuple(pieces), group=index // TURNS, follows=turn > 0)


def _talked_about(world: _World) -> tuple[int, ...]:
    """Return pages in random order of which the first turn has something to ask."""
    for _ in range(DRAWS):
        order, _ = world.draw()
        if world.known([world.pages[page] for page in order[: world.shape.shown - TURNS + 1]])["colour"]:
            return order
    raise PromptError(f"a conversation over {world.shape.shown} pages has nothing to ask at first")


def _turn_of(trace: Trace, step: TraceStep, group: int) -> LoadRequest:
    """Return a turn of an agent, its window sent whole."""
    pieces: list[Piece] = []
    for shown in step.window:
        pieces += [shown.text, Picture(shown.picture)]
    dropped = step.question.where == "gone" and not _told_after(trace, step)
    return LoadRequest((*pieces, step.question.text), dropped, group)


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

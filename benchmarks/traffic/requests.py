"""Kinds of traffic as plain data: requests from a seed, over pages of the generated world.

`rag` shows k of n pages in random order. `agent` slides a window of screenshots, with look-backs and resets. `talks`
are conversations over ten pictures that many users draw from the same pages. `novelty` shows every picture once.
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

KINDS = ("rag", "agent", "talks", "novelty")
SHOWN, AFTER, GONE, FIRST, LATER = "shown", "legend after its map", "legend dropped", "first turn", "later turns"
"""Where the facts of a question are, or which turn of its conversation it is."""
LISTED = 9
"""Colours that the legends of a world list together."""
LEGENDS = 10
"""One page of so many is a legend, two at least."""
LISTED_TO_AN_AGENT = 3
"""Colours on a legend of an agent: two legends in the window leave out most of what dropped ones said."""
LANDS_ASKED = 0.8
"""Share of the questions that need a legend and a map; the others need a map alone."""
TURNS_TOGETHER = 8
"""Turns of an agent that share most of their windows, for intervals."""
DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Picture:
    """A page in a prompt, by its number; `slid`: it conditions the pages after it, and no text row attends it."""

    page: int
    slid: bool = False


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """What was answered to an earlier request, by its number."""

    request: int


Piece = str | Picture | EarlierAnswer


@dataclass(frozen=True, slots=True)
class Turn:
    """A message: its role and content."""

    role: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """One request.

    Attributes:
        turns: the whole conversation, sent at once.
        answer: the right answer; of a dropped legend, what it said.
        where: `SHOWN`, `AFTER`, `GONE`, `FIRST` or `LATER`.
        group: requests of one group are not independent: the interval draws them together.
    """

    turns: tuple[Turn, ...]
    answer: str
    where: str = SHOWN
    group: int = 0


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """What traffic looks like.

    Attributes:
        kind: of `KINDS`.
        requests: how many.
        side: cells along a page's side; a page takes about its square in rows.
        pages: pages of the world, for `rag` and `talks`.
        shown: pictures of a prompt; an agent's window.
        zipf: exponent of the pages' popularity; 0: all alike.
        turns: of a conversation, for `talks`.
        users: who talk at the same time.
        look_back, resets: of an agent, once every so many turns.
        gone: share of an agent's questions about a land whose legend was dropped.
        slid: whether legends have slid out of what the question can read, for `rag`.

    Raises:
        PromptError: one of them is out of range.
    """

    kind: str
    requests: int = 200
    side: int = 8
    pages: int = 30
    shown: int = 8
    zipf: float = 0.0
    turns: int = 5
    users: int = 8
    look_back: int = 8
    resets: int = 25
    gone: float = 0.3
    slid: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PromptError(f"unknown traffic {self.kind!r}: choose one of {', '.join(KINDS)}")
        if self.requests < 1 or not 0 <= self.zipf <= 10 or min(self.turns, self.users) < 1:
            raise PromptError(
                f"{self.requests} requests, exponent {self.zipf}, {self.turns} turns of {self.users} users: give one "
                "or more, and an exponent from 0 to 10"
            )
        if not 2 <= self.shown <= self.pages - 2:
            raise PromptError(f"{self.shown} of {self.pages} pages: give two or more, of a world with two more pages")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests in order, and their pages by number.

    Attributes:
        inline: whether pictures come with the prompt, as a client of OpenAI's interface sends them; else they are added
            before.
    """

    shape: TrafficShape
    pages: tuple[Legend | Map, ...]
    requests: tuple[TrafficRequest, ...]
    inline: bool


def traffic_of(shape: TrafficShape, seed: int) -> Traffic:
    """Return the traffic of a shape and seed; fewer requests are the first of more."""
    if shape.kind in ("agent", "novelty"):
        return _traced(shape, seed)
    world = _World(shape, stream(f"traffic-{shape.kind}", seed, shape.pages))
    requests = _rag(world) if shape.kind == "rag" else _talks(world)
    return Traffic(shape, world.pages, tuple(requests), inline=shape.kind == "talks")


class _World:
    """Pages with popularities: legends that agree on what colours mean, and maps of one or two icons."""

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
        weights = (1 + np.arange(shape.pages)) ** -shape.zipf
        self.weights = random.permutation(weights)

    def draw(self) -> tuple[int, ...]:
        """Return pages in random order, by popularity, of which one or two are legends before a map that needs them."""
        for _ in range(DRAWS):
            legends = min(int(self.random.integers(1, 3)), self.shape.shown - 1)
            drawn = [*self._drawn(range(self.legends), legends)]
            drawn += self._drawn(range(self.legends, len(self.pages)), self.shape.shown - len(drawn))
            order = tuple(int(page) for page in self.random.permutation(drawn))
            if self.known(order)["land"]:
                return order
        raise PromptError(f"{self.shape.shown} of {self.shape.pages} pages: no order of them has anything to ask about")

    def _drawn(self, pages: Sequence[int], count: int) -> list[int]:
        weights = self.weights[list(pages)]
        return [int(page) for page in self.random.choice(pages, count, replace=False, p=weights / weights.sum())]

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


def _rag(world: _World) -> Iterator[TrafficRequest]:
    for index in range(world.shape.requests):
        order = world.draw()
        question, answer = world.ask(order)
        shown = (Picture(page, world.shape.slid and isinstance(world.pages[page], Legend)) for page in order)
        yield TrafficRequest((Turn("user", (*shown, question)),), answer, group=index)


@dataclass(slots=True)
class _Talk:
    """A user's conversation so far."""

    number: int
    order: tuple[int, ...]
    turns: tuple[Turn, ...] = ()


def _talks(world: _World) -> Iterator[TrafficRequest]:
    """Yield turns of conversations, of all users in turns; a user whose conversation is over begins another."""
    shape, random = world.shape, world.random
    talks: list[_Talk] = [_Talk(user, world.draw()) for user in range(shape.users)]
    begun = shape.users
    for index in range(shape.requests):
        user = int(random.integers(shape.users))
        talk = talks[user]
        question, answer = world.ask(talk.order)
        opening = () if talk.turns else tuple(map(Picture, talk.order))
        asked = (*talk.turns, Turn("user", (*opening, question)))
        yield TrafficRequest(asked, answer, LATER if talk.turns else FIRST, talk.number)
        talk.turns = (*asked, Turn("assistant", (EarlierAnswer(index),)))
        if len(talk.turns) == 2 * shape.turns:
            talks[user] = _Talk(begun, world.draw())
            begun += 1


def _traced(shape: TrafficShape, seed: int) -> Traffic:
    """Return an agent's turns or pure novelty, every window sent whole as one message of texts and pictures."""
    settings = TraceSettings(
        steps=shape.requests, window=shape.shown, side=shape.side, look_back=shape.look_back, gone=shape.gone
    )
    if shape.kind == "agent":
        trace = agent_trace(seed, replace(settings, resets=shape.resets, listed=LISTED_TO_AN_AGENT))
    else:
        trace = novelty_trace(seed, replace(settings, gone=0.0))
    block = TURNS_TOGETHER if shape.kind == "agent" else 1
    requests = tuple(_turn_of(trace, step, step.index // block) for step in trace.steps)
    return Traffic(shape, trace.pages, requests, inline=True)


def _turn_of(trace: Trace, step: TraceStep, group: int) -> TrafficRequest:
    pieces: list[Piece] = []
    for shown in step.window:
        pieces += [shown.text, Picture(shown.picture)]
    where = SHOWN if step.question.where != "gone" else AFTER if _told_after(trace, step) else GONE
    return TrafficRequest((Turn("user", (*pieces, step.question.text)),), step.question.answer, where, group)


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

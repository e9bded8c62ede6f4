"""An agent's trace, as plain data: screenshots that slide through a window, look-backs, and a question at every step.

Screens are pages of the bundled world, by default of 8 x 8 cells, so 64 media tokens each. Now and then a legend says
which land some colours mean from here on; maps show icons on coloured cells, each icon on one picture of the window at
most. A step shows a new screen after a line of text; at a look-back an old screen that has left is shown once more
before it.
Answers follow from the window alone, in its order, as a model that reads the window from the start can know it.
Questions whose legend has left are asked too, and marked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from benchmarks.tasks.building import phrase, plain_sentences, stream
from benchmarks.tasks.episodes import facts, legend_page, map_page
from benchmarks.tasks.tiles import COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import LANDS, Episode, Legend, Map
from emblema.errors import PromptError

SIDE = 8
KINDS = ("land", "land", "land", "colour", "legend")
LEAST_WINDOW, MOST_WINDOW = 4, 32
LEAST_SIDE = 4
Name = Literal["agent", "novelty"]
Where = Literal["one", "binding", "gone"]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The shape of a trace.

    Attributes:
        steps: screens shown, one a step.
        window: pictures in the window.
        look_back: a look-back every so many steps on average, once something has left.
        legend: a legend every so many screens; half a window by default.
        listed: colours that a legend lists; it takes turns with all of them.
        changing: whether every legend gives its colours new lands; else a colour means the same throughout.
        gone: share of the steps that ask for a land whose legend has left, where there is one.
        resets: the whole window leaves every so many steps on average; never by default.
        side: cells along a page's side; a page is about its square in tokens.

    Raises:
        PromptError: one of them is out of range.
    """

    steps: int = 200
    window: int = 32
    look_back: int = 8
    legend: int | None = None
    listed: int = 5
    changing: bool = False
    gone: float = 0.1
    resets: int | None = None
    side: int = SIDE

    def __post_init__(self) -> None:
        if not LEAST_WINDOW <= self.window <= MOST_WINDOW:
            raise PromptError(f"a window of {self.window} pictures: give {LEAST_WINDOW} to {MOST_WINDOW}")
        least = {"steps": 1, "look_back": 2, "legend": 2, "listed": 2, "resets": 2, "side": LEAST_SIDE}
        for name, low in least.items():
            if (given := getattr(self, name)) is not None and given < low:
                raise PromptError(f"a trace with {name} {given}: give {low} or more")


@dataclass(frozen=True, slots=True)
class ShownPicture:
    """A picture that enters the window after its line of text; `picture` counts the trace's pictures."""

    step: int
    text: str
    picture: int
    back: bool = False


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """A question about the window with its one-word answer.

    Attributes:
        kind: colour, land or legend.
        where: `one` picture of the window answers it; `binding`: a map and a legend before it; `gone`: the legend
            has left the window, and only what the map absorbed from it can tell.
        needs: places in the window of the pictures needed that are still there.
    """

    kind: str
    text: str
    answer: str
    where: Where
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step: how many of the first pictures leave, what enters, the window then, and what is asked of it."""

    index: int
    leaving: int
    entering: tuple[ShownPicture, ...]
    window: tuple[ShownPicture, ...]
    question: TraceQuestion


@dataclass(frozen=True)
class Trace:
    """Pages by their number, and the steps."""

    name: Name
    seed: int
    settings: TraceSettings
    pages: tuple[Legend | Map, ...]
    steps: tuple[TraceStep, ...]

    @property
    def warm(self) -> int:
        """The first step of a full window, from which something leaves at every step."""
        return next((step.index for step in self.steps if step.leaving), len(self.steps))


class _TraceAuthor:
    """What the trace's author knows while it draws: pages so far, who is in the window, what a map absorbed."""

    def __init__(self, settings: TraceSettings, random: np.random.Generator) -> None:
        self.settings, self.random = settings, random
        self.pages: list[Legend | Map] = []
        self.window: deque[ShownPicture] = deque()
        self.left: list[int] = []
        self.absorbed: dict[int, dict[str, str]] = {}
        self.meaning = {colour: int(random.integers(LAND_COUNT)) for colour in range(COLOUR_COUNT)}
        self.turn = [int(colour) for colour in random.permutation(COLOUR_COUNT)]

    def draw(self) -> int:
        """Draw a new page and return its number."""
        if len(self.pages) % (self.settings.legend or self.settings.window // 2) == 0:
            listed, self.turn = self.turn[: self.settings.listed], self.turn[self.settings.listed :]
            if len(self.turn) < self.settings.listed:
                self.turn += [
                    int(colour) for colour in self.random.permutation(COLOUR_COUNT) if colour not in self.turn
                ]
            if self.settings.changing:
                self.meaning |= {colour: int(self.random.integers(LAND_COUNT)) for colour in listed}
            lands = {colour: self.meaning[colour] for colour in listed}
            page: Legend | Map = legend_page(self.random, self.settings.side, lands)
        else:
            known = sorted(self.known())
            page = map_page(self.random, self.settings.side, known or list(range(COLOUR_COUNT)), self.icons())
        self.pages.append(page)
        return len(self.pages) - 1

    def icons(self) -> list[int]:
        """Return icons of a new map: one or two that no picture shows, with some kept free for look-backs."""
        free = [icon for icon in range(len(ICON_NAMES)) if icon not in self.visible()]
        spare = len(free) - len(ICON_NAMES) // 4
        most = min(2, spare) if self.settings.window <= 16 else min(1, spare)
        return [int(icon) for icon in self.random.permutation(free)[: max(0, most)]]

    def visible(self) -> set[int]:
        """Return the icons on the pictures of the window."""
        maps = (self.pages[shown.picture] for shown in self.window)
        return {icon for page in maps if isinstance(page, Map) for icon in page.icon_colours()}

    def known(self) -> dict[int, int]:
        """Return colour -> land by the legends of the window, the last one counting."""
        found: dict[int, int] = {}
        for shown in self.window:
            page = self.pages[shown.picture]
            if isinstance(page, Legend):
                found |= page.lands
        return found

    def back(self) -> int | None:
        """Return a picture to look back at: it has left, and no picture of the window shows its icons."""
        inside, shown = self.visible(), {other.picture for other in self.window}
        recent = [picture for picture in dict.fromkeys(reversed(self.left)) if picture not in shown]
        for picture in (recent[int(place)] for place in self.random.permutation(len(recent[:24]))):
            page = self.pages[picture]
            if isinstance(page, Legend) or (page.icon_colours() and not inside & set(page.icon_colours())):
                return picture
        return None

    def leave(self, count: int) -> int:
        """Let the oldest pictures leave; return how many."""
        self.left += [self.window.popleft().picture for _ in range(count)]
        return count

    def enter(self, shown: ShownPicture) -> None:
        """Put a picture into the window, which has room."""
        page = self.pages[shown.picture]
        if isinstance(page, Map):
            known = self.known()
            self.absorbed[shown.picture] = {
                ICON_NAMES[icon]: LANDS[known[colour]]
                for icon, colour in page.icon_colours().items()
                if colour in known
            }
        self.window.append(shown)

    def ask(self, preferred: int | None) -> TraceQuestion:
        """Return a question about the window; about the page `preferred` where it has one."""
        found = facts(Episode(0, tuple(self.pages[shown.picture] for shown in self.window), ()))
        if self.random.random() < self.settings.gone and (lost := self._gone(found["land"])) is not None:
            return lost
        place = next((place for place, shown in enumerate(self.window) if shown.picture == preferred), None)
        for wanted in dict.fromkeys((place, None)):
            for kind in self.random.permutation(KINDS):
                question = self._question(str(kind), found[kind], wanted)
                if question is not None:
                    return question
        raise PromptError("a window with nothing to ask about: let legends come more often")

    def _question(
        self, kind: str, known: Mapping[str, tuple[str, tuple[int, ...]]], place: int | None
    ) -> TraceQuestion | None:
        subjects = [subject for subject, (_, needs) in known.items() if place is None or place in needs]
        if not subjects:
            return None
        subject = str(self.random.choice(subjects))
        answer, needs = known[subject]
        where: Where = "binding" if len(needs) > 1 else "one"
        return TraceQuestion(kind, phrase(self.random, kind, subject), answer, where, needs)

    def _gone(self, known: Mapping[str, object]) -> TraceQuestion | None:
        """Return a question about a land that a map absorbed from a legend that has left, if no other gives it."""
        lost = [
            (icon, land, place)
            for place, shown in enumerate(self.window)
            for icon, land in self.absorbed.get(shown.picture, {}).items()
            if icon not in known
        ]
        if not lost:
            return None
        icon, land, place = lost[int(self.random.integers(len(lost)))]
        return TraceQuestion("land", phrase(self.random, "land", icon), land, "gone", (place,))


def agent_trace(seed: int, settings: TraceSettings | None = None) -> Trace:
    """Return the trace of a seed: the same for the same seed and settings, and fewer steps are the first of it."""
    settings = TraceSettings() if settings is None else settings
    author = _TraceAuthor(settings, stream("agent-trace", seed, settings.window))
    steps = tuple(_steps(author))
    return Trace("agent", seed, settings, tuple(author.pages), steps)


def _steps(author: _TraceAuthor) -> Iterator[TraceStep]:
    random = author.random
    for index in range(author.settings.steps):
        resets = author.settings.resets
        restart = resets is not None and bool(author.window) and random.random() < 1 / resets
        leaving = author.leave(len(author.window) if restart else 0)
        looks = bool(author.left) and random.random() < 1 / author.settings.look_back
        found = author.back() if looks else None
        count = len(author.window) + (1 if found is None else 2)
        leaving += author.leave(max(0, count - author.settings.window))
        entering = []
        if found is not None:
            entering.append(ShownPicture(index, _line(random), found, back=True))
            author.enter(entering[-1])
        # The new picture is drawn for the window that it will be in.
        entering.append(ShownPicture(index, _line(random), author.draw()))
        author.enter(entering[-1])
        yield TraceStep(index, leaving, tuple(entering), tuple(author.window), author.ask(found))


def _line(random: np.random.Generator) -> str:
    lines = plain_sentences()
    return lines[int(random.integers(len(lines)))]


def novelty_trace(seed: int, settings: TraceSettings | None = None) -> Trace:
    """Return sustained novelty: every step fills the window with pictures never seen before."""
    settings = TraceSettings() if settings is None else settings
    pages: list[Legend | Map] = []
    steps = []
    for index in range(settings.steps):
        author = _TraceAuthor(settings, stream("novelty-trace", seed, index))
        for _ in range(settings.window):
            author.enter(ShownPicture(index, _line(author.random), author.draw()))
        question = author.ask(None)
        shown = tuple(ShownPicture(index, new.text, new.picture + len(pages)) for new in author.window)
        pages += author.pages
        steps.append(TraceStep(index, settings.window if index else 0, shown, shown, question))
    return Trace("novelty", seed, settings, tuple(pages), tuple(steps))

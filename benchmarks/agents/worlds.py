"""What an agent sees and is asked: a plain desktop, or pages of the tasks' world as screenshots, with right answers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image

from benchmarks.agents.desktop import Desktop
from benchmarks.agents.rules import KeptPicture
from benchmarks.tasks.building import phrase, plain_sentences
from benchmarks.tasks.episodes import facts, legend_page, map_page
from benchmarks.tasks.tiles import CELL, COLOUR_COUNT, ICON_NAMES, LAND_COUNT
from benchmarks.tasks.world import LANDS, Episode, Legend, Map

LEGEND_EVERY, LISTED, ICONS = 4, 3, 2
"""Pages from one legend to the next, colours on a legend, and icons on a map."""
RECENT = 12
"""Pages in which no icon comes twice."""
DROPPED_SHARE = 0.3
"""Share of the turns that ask for a dropped fact, where there is one."""
WORLDS = ("tasks", "desktop")
Known = dict[tuple[str, str], tuple[str, tuple[int, ...]]]
"""Kind and subject -> answer and places of the pages needed."""


@dataclass(frozen=True, slots=True)
class AgentQuestion:
    """What is asked at a turn.

    Attributes:
        answer: the right one; empty where none is known.
        dropped: whether no picture that is still sent tells it, and one that was sent did.
        said: what the agent says after it, as its client sends it back.
    """

    text: str
    answer: str = ""
    dropped: bool = False
    said: str = ""


class World(Protocol):
    """Screens and questions of one session."""

    def act(self) -> str:
        """Go on to the next screen; return what the tool answers."""

    def ask(self, kept: Sequence[KeptPicture], start: int) -> AgentQuestion:
        """Return a question of the newest turn; `start` is the conversation's first."""

    def image(self, picture: KeptPicture) -> Image.Image:
        """Return a screen."""


class DesktopWorld:
    """A plain desktop: nothing is known of the right answers."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        self.desktop = Desktop(random, size)
        self.screens: list[Image.Image] = []
        self.told = "the desktop"

    def act(self) -> str:
        """Keep the screen; return what led to it."""
        self.screens.append(self.desktop.image())
        return self.told

    def ask(self, kept: Sequence[KeptPicture], start: int) -> AgentQuestion:
        """Return the question that is always asked; what the agent says to it is done."""
        said, self.told = self.desktop.act()
        return AgentQuestion("what will you do next ?", said=said)

    def image(self, picture: KeptPicture) -> Image.Image:
        """Return a screen; of a cropped one, its upper left quarter."""
        screen = self.screens[picture.turn]
        half = screen.width // 2 // CELL * CELL
        return screen.crop((0, 0, half, half)) if picture.cropped else screen


class TaskWorld:
    """Legends and maps. A colour means one land throughout; every icon comes again after all others."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        self.random, self.side = random, size // CELL
        self.pages: list[Legend | Map] = []
        self.meaning = {colour: int(random.integers(LAND_COUNT)) for colour in range(COLOUR_COUNT)}
        self.colours = [int(colour) for colour in random.permutation(COLOUR_COUNT)]
        self.icons = [int(icon) for icon in random.permutation(len(ICON_NAMES))]
        self.asked = set[str]()

    def act(self) -> str:
        """Draw the next page; return a sentence that says nothing of it."""
        if len(self.pages) % LEGEND_EVERY == 0:
            listed, self.colours = self.colours[:LISTED], self.colours[LISTED:] + self.colours[:LISTED]
            lands = {colour: self.meaning[colour] for colour in listed}
            self.pages.append(legend_page(self.random, self.side, lands))
        else:
            shown, self.icons = self.icons[:ICONS], self.icons[ICONS:] + self.icons[:ICONS]
            self.asked -= {ICON_NAMES[icon] for icon in shown}
            self.pages.append(map_page(self.random, self.side, list(range(COLOUR_COUNT)), shown))
        return str(self.random.choice(plain_sentences()))

    def ask(self, kept: Sequence[KeptPicture], start: int) -> AgentQuestion:
        """Return a question that the pictures answer, of the newest if it can be, or one about a dropped fact."""
        pages = [self.page(picture) for picture in kept]
        known = self._clear(pages)
        if start == len(self.pages) - 1:
            self.asked.clear()
        lost = self._dropped(self.pages[max(start, len(self.pages) - RECENT) :], pages, known)
        dropped = bool(lost) and self.random.random() < DROPPED_SHARE
        newest = [key for key, (_, needs) in known.items() if len(pages) - 1 in needs]
        chosen = lost if dropped else {key: known[key][0] for key in newest or known}
        kind, subject = sorted(chosen)[int(self.random.integers(len(chosen)))]
        self.asked.add(subject)
        answer = chosen[kind, subject]
        said = str(self.random.choice(plain_sentences())) if dropped else answer
        return AgentQuestion(phrase(self.random, kind, subject), answer, dropped, said)

    def image(self, picture: KeptPicture) -> Image.Image:
        """Return a page as a picture."""
        return self.page(picture).image()

    def page(self, picture: KeptPicture) -> Legend | Map:
        """Return a page; of a cropped one, its upper left quarter."""
        page, half = self.pages[picture.turn], self.side // 2
        if not picture.cropped:
            return page
        colours = page.colours[:half, :half]
        if isinstance(page, Map):
            return Map(colours, page.icons[:half, :half])
        shown = set(map(int, colours.ravel()))
        return Legend(colours, {colour: land for colour, land in page.lands.items() if colour in shown})

    def _clear(self, pages: Sequence[Legend | Map]) -> Known:
        """Return what pages tell: of legends' colours, and of icons that one of the pages alone shows."""
        shown, found = _icons(pages), facts(Episode(0, tuple(pages), ()))
        return {
            (kind, subject): fact
            for kind in ("land", "colour", "legend")
            for subject, fact in found[kind].items()
            if kind == "legend" or shown[subject] == 1
        }

    def _dropped(
        self, recent: Sequence[Legend | Map], kept: Sequence[Legend | Map], known: Known
    ) -> dict[tuple[str, str], str]:
        """Return what recent pages told that the kept ones do not, of what nothing was asked since it was shown.

        No land that a kept legend tells is among them: that legend may list the same colour, too late for the map.
        """
        shown = _icons(kept)
        lands = {LANDS[land] for page in kept if isinstance(page, Legend) for land in page.lands.values()}
        return {
            (kind, subject): answer
            for (kind, subject), (answer, _) in self._clear(recent).items()
            if (kind, subject) not in known
            and subject not in self.asked
            and shown[subject] <= (kind == "land")
            and not (kind == "land" and answer in lands)
        }


def _icons(pages: Sequence[Legend | Map]) -> Counter[str]:
    """Return how many of the pages show each icon."""
    return Counter(ICON_NAMES[icon] for page in pages if isinstance(page, Map) for icon in page.icon_colours())


def world_of(name: str, random: np.random.Generator, size: int) -> World:
    """Return a world by its name, at its first screen."""
    return DesktopWorld(random, size) if name == "desktop" else TaskWorld(random, size)

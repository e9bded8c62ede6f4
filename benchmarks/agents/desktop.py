"""A desktop that changes a little at every turn: windows with lines of text, a cursor, dialogs; drawn from a seed."""

from dataclasses import dataclass, field

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.tasks.building import plain_sentences

ACTIONS = {"click": 0.35, "type": 0.25, "scroll": 0.2, "dialog": 0.1, "move": 0.1}
"""What is done at a turn, and how often."""
WINDOWS, LINES, WRITTEN = 3, 60, 4
"""Windows, lines of text in each, and lines that typing has room for."""
BAR, LINE = 14, 12
"""Pixels of a title bar's height, and of a line's."""
SCROLLED = 4
"""Lines that a turn of the wheel moves."""
PAPER, INK, GREY = (250, 250, 248), (30, 30, 34), (205, 208, 212)


@dataclass(slots=True)
class DesktopWindow:
    """A window: where it is in shares of the screen, its colour, its text, and how far that is scrolled."""

    x: float
    y: float
    colour: tuple[int, int, int]
    lines: list[str]
    scroll: int = 0
    typed: list[str] = field(default_factory=list)


class Desktop:
    """A desktop of `size` x `size` px; the last window is in front."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        self.random, self.size = random, size
        self.wallpaper = _colour(random, 60, 150)
        self.windows = [self._window() for _ in range(WINDOWS)]
        self.cursor, self.dialog = (0.5, 0.5), ""

    def act(self) -> tuple[str, str]:
        """Do something; return what the agent says that it does, and what its tool answers."""
        if self.dialog:
            self.dialog, self.cursor = "", (0.5, 0.58)
            return "press ok", "the dialog is closed"
        action = str(self.random.choice(list(ACTIONS), p=list(ACTIONS.values())))
        front = self.windows[-1]
        if action == "click":
            front = self.windows.pop(int(self.random.integers(WINDOWS)))
            self.windows.append(front)
            self.cursor = (front.x + float(self.random.uniform(0.02, 0.4)), front.y + 0.1)
            return f"click at {self._place()}", f"clicked {self._place()}"
        if action == "type":
            text = self._sentence()
            front.typed = [*front.typed, text][-WRITTEN:]
            return f"write : {text}", f"written : {text}"
        if action == "scroll":
            front.scroll = (front.scroll + SCROLLED) % LINES
            return "go down in the window", "went down"
        if action == "dialog":
            self.dialog = self._sentence()
            return "open the question", f"it says : {self.dialog}"
        front.x, front.y = (float(part) for part in self.random.uniform(0.02, 0.4, 2))
        return "move the window", f"moved to {self._place()}"

    def image(self) -> Image.Image:
        """Return the screen as it is."""
        picture = Image.new("RGB", (self.size, self.size), self.wallpaper)
        pen = ImageDraw.Draw(picture)
        for window in self.windows:
            self._draw(pen, window)
        pen.rectangle((0, self.size - BAR, self.size, self.size), fill=INK)
        for place, window in enumerate(sorted(self.windows, key=lambda window: window.lines[0])):
            pen.rectangle((4 + 40 * place, self.size - BAR + 3, 36 + 40 * place, self.size - 4), fill=window.colour)
        if self.dialog:
            box = (self.size * 0.2, self.size * 0.4, self.size * 0.8, self.size * 0.62)
            pen.rectangle(box, fill=GREY, outline=INK)
            self._write(pen, box[0] + 8, box[1] + 8, box[2], self.dialog)
            pen.rectangle((self.size * 0.45, self.size * 0.54, self.size * 0.55, self.size * 0.6), fill=PAPER)
        x, y = (share * self.size for share in self.cursor)
        pen.polygon((x, y, x, y + 12, x + 8, y + 8), fill=PAPER, outline=INK)
        return picture

    def _window(self) -> DesktopWindow:
        x, y = (float(part) for part in self.random.uniform(0.02, 0.4, 2))
        lines = [self._sentence() for _ in range(LINES)]
        return DesktopWindow(x, y, _colour(self.random, 90, 220), lines)

    def _draw(self, pen: ImageDraw.ImageDraw, window: DesktopWindow) -> None:
        left, top = window.x * self.size, window.y * self.size
        right, bottom = left + 0.56 * self.size, top + 0.5 * self.size
        pen.rectangle((left, top, right, bottom), fill=PAPER, outline=INK)
        pen.rectangle((left, top, right, top + BAR), fill=window.colour)
        self._write(pen, left + 4, top + 1, right, window.lines[0])
        field_top = bottom - LINE * WRITTEN - 4
        shown = int((field_top - top - BAR) // LINE)
        for place in range(shown):
            text = window.lines[(window.scroll + place) % LINES]
            self._write(pen, left + 4, top + BAR + 2 + LINE * place, right, text)
        pen.rectangle((left + 2, field_top, right - 2, bottom - 2), outline=GREY)
        for place, text in enumerate(window.typed):
            self._write(pen, left + 6, field_top + 1 + LINE * place, right, text)

    def _write(self, pen: ImageDraw.ImageDraw, x: float, y: float, right: float, text: str) -> None:
        """Write as much of a text as there is room for; a letter is 6 px wide."""
        pen.text((x, y), text[: max(0, int((right - x - 4) // 6))], fill=INK, font=ImageFont.load_default_imagefont())

    def _sentence(self) -> str:
        sentences = plain_sentences()
        return sentences[int(self.random.integers(len(sentences)))]

    def _place(self) -> str:
        return " , ".join(" ".join(str(int(share * self.size))) for share in self.cursor)


def _colour(random: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = (int(part) for part in random.integers(low, high, 3))
    return red, green, blue

"""A sitting on a terminal: one panel that is drawn again and again, answers above it."""

from collections import Counter
from types import TracebackType
from typing import Self

import numpy
from PIL import Image
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from emblema.cli.view import wording
from emblema.cli.view.colours import NONE, colour
from emblema.cli.view.glance import Answer, Glance, Stretch, clock, span, stretches
from emblema.cli.view.keyboard import Keyboard
from emblema.cli.view.thumbnails import Thumbnails

SHOWN = 6
"""Thumbnails under an answer, at most."""

CELLS = 14
"""Columns of one; two rows of pixels go into a line."""

TITLE = "[bold]{}[/bold] \u00b7 {}"


class PanelViewer:
    """Frames, clusters and memory in a panel; questions are typed into its last line at any time.

    Args:
        heading, about: the video, and how it is remembered.
        count: frames that will come, where that is known.
        typing: whether questions may be typed.
    """

    def __init__(
        self, console: Console, heading: str, about: str, count: int | None, thumbnails: Thumbnails, typing: bool
    ) -> None:
        self._typing = typing
        self._console, self._thumbnails, self._count = console, thumbnails, count
        self._title = TITLE.format(heading.replace("[", "("), about)
        self._glance: Glance | None = None
        self._saying = ""
        self._waiting = False
        self._keyboard = Keyboard()
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        if self._typing:
            self._keyboard.__enter__()
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)
        if self._typing:
            self._keyboard.__exit__(kind, error, trace)

    def seen(self, glance: Glance) -> None:
        self._glance = glance

    def trouble(self, text: str) -> None:
        self._console.print(Text(text, style="yellow"))

    def asking(self, question: str, at: float) -> None:
        self._console.print(Text.assemble((f"{clock(at):>8}  ", "dim"), (question, "bold")))

    def said(self, text: str) -> None:
        self._saying += text

    def answered(self, answer: Answer) -> None:
        self._saying = ""
        self._glance = answer.glance
        for line in (Text(wording.said(answer), "bold green"), Text(wording.answered(answer), "dim")):
            self._console.print(Padding(line, (0, 0, 0, 10)))
        most = max(1, min(SHOWN, (self._console.width - 10) // (CELLS + 2)))
        if found := stretches(answer, most):
            self._console.print(self._strip(found))

    def typed(self, wait: bool) -> str | None:
        if not self._typing:
            return None
        self._waiting = wait
        return self._keyboard.next(wait)

    def _panel(self) -> Panel:
        """Drawn by the thread that refreshes: it reads what was handed over, and never the stream."""
        glance = self._glance
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1)
        if glance is None:
            grid.add_row("frames", "none yet")
        else:
            device, host = wording.held(glance)
            grid.add_row("frames", wording.frames(glance, self._count))
            grid.add_row("", _ribbon(glance, self._count or glance.frames, max(10, self._console.width - 14)))
            grid.add_row("clusters", wording.clusters(glance))
            grid.add_row("device", device)
            grid.add_row("host", host)
        if self._typing or self._saying:
            grid.add_row(Text("ask", style="bold cyan"), self._line())
        return Panel(grid, title=self._title, title_align="left", border_style="dim")

    def _line(self) -> Text:
        if self._saying:
            return Text(self._saying, style="green")
        hint = "type a question; an empty line ends" if self._waiting else "type a question at any time; quit ends"
        typed = self._keyboard.line
        return Text.assemble(typed, ("\u258c", "blink")) if typed else Text.assemble(("\u258c", "blink"), (hint, "dim"))

    def _strip(self, found: list[Stretch]) -> Table:
        """Thumbnails side by side, each with its time and share."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=9)
        for _ in found:
            grid.add_column(width=CELLS)
        pictures = [self._thumbnails.get(one.frame) for one in found]
        if self._console.color_system in ("truecolor", "256"):
            grid.add_row("", *(_blocks(one) for one in pictures))
        labels = (Group(Text(span(one)), Text(f"{one.share:.0%} of layers", "dim")) for one in found)
        grid.add_row("", *labels)
        return grid


def _ribbon(glance: Glance, expected: int, columns: int) -> Text:
    """The stream from left to right: each cell in the colour of the cluster that most of its frames are in."""
    count, ribbon = glance.frames, Text(no_wrap=True)
    filled = round(columns * count / max(1, count, expected))
    for column in range(filled):
        low = column * count // filled
        inside = glance.homes[low : max(low + 1, (column + 1) * count // filled)]
        ribbon.append("\u2588", style=colour(Counter(inside).most_common(1)[0][0]))
    return ribbon.append("\u2500" * (columns - filled), style="dim")


def _blocks(picture: Image.Image | None) -> Text:
    """A picture as half blocks, two pixels above each other in a cell."""
    if picture is None:
        return Text("\n".join([" " * CELLS] * 3), style=f"on {NONE}")
    lines = max(2, min(8, round(CELLS * picture.height / picture.width / 2)))
    pixels = numpy.asarray(picture.resize((CELLS, 2 * lines), Image.Resampling.BOX)).tolist()
    text = Text()
    for line in range(lines):
        for column in range(CELLS):
            above, below = (_hex(*pixels[2 * line + half][column]) for half in (0, 1))
            text.append("\u2580", style=f"{above} on {below}")
        if line + 1 < lines:
            text.append("\n")
    return text


def _hex(red: int, green: int, blue: int) -> str:
    return f"#{red:02x}{green:02x}{blue:02x}"

"""A run on a terminal: one panel that is drawn again and again, answers above it."""

from collections import Counter
from typing import Any, Self

import numpy
from PIL import Image
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from emblema.cli.view import text
from emblema.cli.view.keyboard import Keyboard
from emblema.cli.view.status import Scene, StreamAnswer, StreamStatus
from emblema.cli.view.thumbnails import Thumbnails
from emblema.stream.standing import AnswerChange

SHOWN = 6
"""Thumbnails under an answer, at most."""

CELLS = 14
"""Columns of one; two rows of pixels go into a line."""

TITLE = "[bold]{}[/bold] \u00b7 {}"


class PanelViewer:
    """Frames, clusters and memory in a panel; questions are typed into its last line at any time.

    Args:
        heading, about: the video, and how it is remembered.
        expected: frames that will come, where that is known.
        typing: whether questions may be typed.
    """

    def __init__(
        self, console: Console, heading: str, about: str, expected: int | None, thumbnails: Thumbnails, typing: bool
    ) -> None:
        self._console, self._thumbnails, self._expected, self._typing = console, thumbnails, expected, typing
        self._title = TITLE.format(heading.replace("[", "("), about)
        self._status: StreamStatus | None = None
        self._answering = ""
        self._waiting = False
        self._keyboard = Keyboard()
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=8, transient=False)

    def __enter__(self) -> Self:
        if self._typing:
            self._keyboard.__enter__()
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)
        if self._typing:
            self._keyboard.__exit__(*error)

    def show_status(self, status: StreamStatus) -> None:
        self._status = status

    def show_trouble(self, trouble: str) -> None:
        self._console.print(Text(trouble, style="yellow"))

    def show_question(self, question: str, at: float) -> None:
        self._console.print(Text.assemble((f"{text.clock(at):>8}  ", "dim"), (question, "bold")))

    def show_piece(self, piece: str) -> None:
        self._answering += piece

    def show_answer(self, answer: StreamAnswer) -> None:
        self._answering = ""
        self._status = answer.status
        for line in (Text(text.reply(answer), "bold green"), Text(text.cost(answer), "dim")):
            self._console.print(Padding(line, (0, 0, 0, 10)))
        most = max(1, min(SHOWN, (self._console.width - 10) // (CELLS + 2)))
        if scenes := answer.scenes(most):
            self._console.print(self._strip(scenes))

    def show_change(self, change: AnswerChange) -> None:
        self._console.print(Text(text.change(change), "bold magenta"))

    def next_question(self, wait: bool) -> str | None:
        if not self._typing:
            return None
        self._waiting = wait
        return self._keyboard.next(wait)

    def _panel(self) -> Panel:
        """Draw the panel, on the thread that refreshes: it reads what was handed over, and never the stream."""
        status = self._status
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1)
        if status is None:
            grid.add_row("frames", "none yet")
        else:
            grid.add_row("frames", text.frames(status, self._expected))
            grid.add_row("", _ribbon(status, self._expected or status.frames, max(10, self._console.width - 14)))
            grid.add_row("clusters", text.clusters(status))
            grid.add_row("device", text.memory(status.bytes.device))
            grid.add_row("host", text.memory(status.bytes.host))
        if self._typing or self._answering:
            grid.add_row(Text("ask", style="bold cyan"), self._line())
        return Panel(grid, title=self._title, title_align="left", border_style="dim")

    def _line(self) -> Text:
        if self._answering:
            return Text(self._answering, style="green")
        hint = "type a question; an empty line ends" if self._waiting else "type a question at any time; quit ends"
        typed = self._keyboard.line
        return Text.assemble(typed, ("\u258c", "blink")) if typed else Text.assemble(("\u258c", "blink"), (hint, "dim"))

    def _strip(self, scenes: list[Scene]) -> Table:
        """Return thumbnails side by side, each with its time and share."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=9)
        for _ in scenes:
            grid.add_column(width=CELLS)
        if self._console.color_system in ("truecolor", "256"):
            grid.add_row("", *(_blocks(self._thumbnails.get(scene.frame)) for scene in scenes))
        labels = (Group(Text(text.span(scene)), Text(f"{scene.share:.0%} of layers", "dim")) for scene in scenes)
        grid.add_row("", *labels)
        return grid


def _ribbon(status: StreamStatus, expected: int, columns: int) -> Text:
    """Return the stream from left to right: each cell in the colour of the cluster that most of its frames are in."""
    count, ribbon = status.frames, Text(no_wrap=True)
    filled = round(columns * count / max(1, count, expected))
    for column in range(filled):
        low = column * count // filled
        inside = status.clusters[low : max(low + 1, (column + 1) * count // filled)]
        ribbon.append("\u2588", style=text.colour(Counter(inside).most_common(1)[0][0]))
    return ribbon.append("\u2500" * (columns - filled), style="dim")


def _blocks(picture: Image.Image | None) -> Text:
    """Return a picture as half blocks, two pixels above each other in a cell."""
    if picture is None:
        return Text("\n".join([" " * CELLS] * 3), style=f"on {text.NO_CLUSTER}")
    lines = max(2, min(8, round(CELLS * picture.height / picture.width / 2)))
    pixels = numpy.asarray(picture.resize((CELLS, 2 * lines), Image.Resampling.BOX)).tolist()
    drawn = Text()
    for line in range(lines):
        for column in range(CELLS):
            above, below = ("#{:02x}{:02x}{:02x}".format(*pixels[2 * line + half][column]) for half in (0, 1))
            drawn.append("\u2580", style=f"{above} on {below}")
        if line + 1 < lines:
            drawn.append("\n")
    return drawn

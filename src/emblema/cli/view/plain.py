"""A run as lines: answers on one console, notes on another."""

import sys
import time
from typing import TYPE_CHECKING

from emblema.cli.view import text
from emblema.cli.view.status import StreamAnswer, StreamStatus
from emblema.stream.standing import AnswerChange

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 10.0
"""Seconds between two lines about the frames."""


class PlainViewer:
    """Prints lines.

    Args:
        out: where questions and answers go; None: they are not printed.
        notes: where the rest goes.
        expected: frames that will come, where that is known.
        prompting: whether questions are asked for after the frames.
    """

    def __init__(self, out: "Console | None", notes: "Console", expected: int | None, prompting: bool) -> None:
        self._out, self._notes, self._expected, self._prompting = out, notes, expected, prompting
        self._next = time.monotonic() + EVERY

    def show_status(self, status: StreamStatus) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._note(f"{text.frames(status, self._expected)}; {text.clusters(status)}")

    def show_trouble(self, trouble: str) -> None:
        self._notes.print(f"emblema: {trouble}", soft_wrap=True, markup=False)

    def show_question(self, question: str, at: float) -> None:
        self._print(f"{text.clock(at)}  {question}")

    def show_piece(self, piece: str) -> None:
        """Print nothing: the answer comes whole."""

    def show_answer(self, answer: StreamAnswer) -> None:
        self._print(text.reply(answer))
        self._note(text.cost(answer))
        if moments := text.moments(answer):
            self._note(f"moments: {moments}")

    def show_change(self, change: AnswerChange) -> None:
        self._print(text.change(change))

    def next_question(self, wait: bool) -> str | None:
        if not (wait and self._prompting):
            return None
        self._notes.print("ask (an empty line ends): ", end="")
        line = sys.stdin.readline()
        return line.strip() if line else None

    def _print(self, line: str) -> None:
        if self._out is not None:
            self._out.print(line, soft_wrap=True, markup=False)

    def _note(self, line: str) -> None:
        self._notes.print(line, style="dim", soft_wrap=True, markup=False)

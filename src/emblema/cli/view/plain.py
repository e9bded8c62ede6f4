"""A sitting as lines: answers on one console, notes on another."""

import sys
import time
from typing import TYPE_CHECKING

from emblema.cli.view import wording
from emblema.cli.view.glance import Answer, Glance, clock

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 10.0
"""Seconds between two lines about the frames."""


class PlainViewer:
    """Lines.

    Args:
        out: where questions and answers go; None: they are shown by others.
        notes: where the rest goes.
        count: frames that will come, where that is known.
        prompting: whether somebody is asked for questions.
    """

    def __init__(self, out: "Console | None", notes: "Console", count: int | None, prompting: bool) -> None:
        self._out, self._notes, self._count, self._prompting = out, notes, count, prompting
        self._next = time.monotonic() + EVERY

    def seen(self, glance: Glance) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._say(f"{wording.frames(glance, self._count)}; {wording.clusters(glance)}")

    def trouble(self, text: str) -> None:
        self._notes.print(f"emblema: {text}", soft_wrap=True, markup=False)

    def asking(self, question: str, at: float) -> None:
        self._print(f"{clock(at)}  {question}")

    def said(self, text: str) -> None:
        """The answer comes whole."""

    def answered(self, answer: Answer) -> None:
        self._print(wording.said(answer))
        self._say(wording.answered(answer))
        if found := wording.moments(answer):
            self._say(f"moments: {found}")

    def typed(self, wait: bool) -> str | None:
        if not (wait and self._prompting):
            return None
        self._notes.print("ask (an empty line ends): ", end="")
        line = sys.stdin.readline()
        return line.strip() if line else None

    def _print(self, text: str) -> None:
        if self._out is not None:
            self._out.print(text, soft_wrap=True, markup=False)

    def _say(self, text: str) -> None:
        self._notes.print(text, style="dim", soft_wrap=True, markup=False)

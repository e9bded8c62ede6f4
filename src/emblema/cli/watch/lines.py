"""A run as lines: answers on one console, notes on another; questions are typed as lines at any time."""

import queue
import sys
import threading
import time
from typing import TYPE_CHECKING

from emblema.cli.watch import text
from emblema.cli.watch.answer import StreamAnswer
from emblema.stream.standing import AnswerChange
from emblema.stream.stream import Stream

if TYPE_CHECKING:
    from rich.console import Console

EVERY = 10.0
"""Seconds between two lines about the frames."""


class LineViewer:
    """Prints lines, and reads questions from the standard input.

    Args:
        out: where questions and answers go; None: they are not printed.
        notes: where the rest goes.
        expected: frames that will come, where that is known.
        typing: whether questions may be typed.
    """

    def __init__(self, out: "Console | None", notes: "Console", expected: int | None, typing: bool) -> None:
        self._out, self._notes, self._expected, self._typing = out, notes, expected, typing
        self._next = time.monotonic() + EVERY
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        if typing:
            self._note("type a question at any time; an empty line ends it after the video, quit at once")
            threading.Thread(target=self._read, name="emblema-questions", daemon=True).start()

    def show_frames(self, stream: Stream, speed: float) -> None:
        if stream.frames and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY
            self._note(text.frames(stream, speed, self._expected))

    def show_trouble(self, trouble: str) -> None:
        self._notes.print(f"emblema: {trouble}", soft_wrap=True, markup=False)

    def show_question(self, question: str, at: float) -> None:
        self._print(f"{text.clock(at)}  {question}")

    def show_answer(self, answer: StreamAnswer) -> None:
        self._print(text.reply(answer))
        self._note(text.cost(answer))
        if moments := text.moments(answer):
            self._note(f"moments: {moments}")

    def show_change(self, change: AnswerChange) -> None:
        self._print(text.change(change))

    def next_question(self, wait: bool) -> str | None:
        while self._typing:
            try:
                # With a timeout, so that Ctrl-C is noticed.
                line = self._lines.get(timeout=0.1) if wait else self._lines.get_nowait()
            except queue.Empty:
                if not wait:
                    return None
                continue
            self._typing = line is not None
            return line
        return None

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line.strip())
        self._lines.put(None)

    def _print(self, line: str) -> None:
        if self._out is not None:
            self._out.print(line, soft_wrap=True, markup=False)

    def _note(self, line: str) -> None:
        self._notes.print(line, style="dim", soft_wrap=True, markup=False)

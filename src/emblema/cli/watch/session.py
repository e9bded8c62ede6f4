"""One run of `emblema stream`: frames go into a stream, and questions are asked of it."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from types import FrameType
from typing import Any

from PIL import Image

from emblema.cli.watch.answer import StreamAnswer
from emblema.cli.watch.lines import LineViewer
from emblema.errors import CapacityError, EmblemaError, MediaError
from emblema.stream.standing import AnswerChange, StandingQuestions
from emblema.stream.stream import Stream

LEAVING = ("quit", "exit", "q")

FOLLOWING = "+"
"""Begins a question that follows the answer before it."""


class WatchSession:
    """Frames in, questions out, in the order of the stream's time.

    Args:
        stream: takes frames and questions; this thread owns it.
        viewer: shows what happens, and gives questions that are typed.
        questions: asked after all frames.
        most: tokens of an answer.
        standing: asked after frames were taken in.

    Attributes:
        answers: in the order in which they were given.
        changes: of the answers to standing questions, in order.
        cut: why frames ended before their time; empty otherwise.
        interrupted: whether Ctrl-C ended it.
    """

    def __init__(
        self,
        stream: Stream,
        viewer: LineViewer,
        questions: Sequence[str],
        most: int,
        standing: StandingQuestions,
    ) -> None:
        self.stream = stream
        self.answers: list[StreamAnswer] = []
        self.changes: list[AnswerChange] = []
        self.cut, self.interrupted = "", False
        self._viewer, self._questions, self._most = viewer, questions, most
        self._standing: StandingQuestions | None = standing
        self._encoding, self._encoded = 0.0, 0

    @property
    def speed(self) -> float:
        """Frames that were taken in each second of doing so; 0 without any."""
        return self._encoded / self._encoding if self._encoding else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return what became of the stream as plain values that JSON can hold."""
        stream = self.stream
        return {
            "method": stream.method,
            "settings": asdict(stream.settings),
            "frames": stream.frames,
            "seconds": self._last_time,
            "skipped": stream.skipped,
            "cut": self.cut or None,
            "encoding": {"frames": self._encoded, "seconds": self._encoding, "frames_per_second": self.speed},
            "bytes": {"device": dict(stream.bytes.device), "host": dict(stream.bytes.host)},
            "counts": dict(stream.counts),
            "answers": [answer.to_json() for answer in self.answers],
            "changes": [change.to_json() for change in self.changes],
        }

    def run(self, frames: Iterator[tuple[float, Image.Image] | None], begin: float) -> None:
        """Go on until frames and questions end.

        Args:
            frames: times in seconds and pictures; None where none has come for a while.
            begin: seconds that are added to the times.

        Raises:
            EmblemaError: the first frames cannot be taken, or a question given beforehand cannot be answered.
        """
        try:
            if self._watch(frames, begin):
                for question in self._questions:
                    self._ask(question.strip())
                while (typed := self._viewer.next_question(wait=True)) and typed not in LEAVING:
                    self._try(typed)
        except KeyboardInterrupt:
            self.interrupted = True

    @property
    def _last_time(self) -> float:
        return self.stream.log.times[-1] if self.stream.frames else 0.0

    def _watch(self, frames: Iterator[tuple[float, Image.Image] | None], begin: float) -> bool:
        """Take all frames in; return whether to go on after them."""
        try:
            for item in frames:
                if item is not None:
                    with self._timing():
                        self.stream.push(item[1], at=begin + item[0])
                    self._check()
                while (typed := self._viewer.next_question(wait=False)) is not None:
                    if typed in LEAVING:
                        return False
                    self._try(typed)
            self._finish()
        except (MediaError, CapacityError) as error:
            self._finish()
            if not self.stream.frames:
                raise
            self.cut = " ".join(str(error).split())
            self._viewer.show_trouble(f"no more frames: {self.cut}")
        return True

    def _finish(self) -> None:
        """Take in the frames that wait for a block of their own."""
        if self.stream.waiting:
            with self._timing():
                self.stream.advance()
        if self.stream.frames:
            self._check()

    def _check(self) -> None:
        """Ask the standing questions that are due, and show what changed."""
        self._viewer.show_frames(self.stream, self.speed)
        try:
            with finishing():
                changes = self._standing.check() if self._standing is not None else []
        except EmblemaError as error:
            self._standing = None
            self._viewer.show_trouble(f"no more standing questions: {' '.join(str(error).split())}")
            return
        for change in changes:
            self.changes.append(change)
            self._viewer.show_change(change)

    @contextmanager
    def _timing(self) -> Iterator[None]:
        before, began = self.stream.frames, time.perf_counter()
        with finishing():
            yield
        self._encoding += time.perf_counter() - began
        self._encoded += self.stream.frames - before

    def _try(self, question: str) -> None:
        """Answer a question that was typed; one that cannot be answered does not end the run."""
        if not question:
            return
        try:
            self._ask(question)
        except EmblemaError as error:
            self._viewer.show_trouble(" ".join(str(error).split()))

    def _ask(self, question: str) -> None:
        """Ask; a question that begins with + follows the answer before it."""
        after = self.answers[-1].reply if question.startswith(FOLLOWING) and self.answers else None
        asked = question if after is None else question.removeprefix(FOLLOWING).strip()
        self._viewer.show_question(question, self._last_time)
        with finishing():
            reply = self.stream.ask(asked, after=after, max_new_tokens=self._most)
        answer = StreamAnswer(self._last_time, question, reply)
        self.answers.append(answer)
        self._viewer.show_answer(answer)


@contextmanager
def finishing() -> Iterator[None]:
    """Let Ctrl-C wait until the block has ended, so that the stream stays whole; a second one does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt

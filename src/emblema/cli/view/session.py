"""One sitting: frames go into a stream, questions are asked of it when their time has come."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

from PIL import Image

from emblema.cli.view.glance import Answer, Glance, glance_at
from emblema.cli.view.thumbnails import Thumbnails
from emblema.errors import CapacityError, EmblemaError, MediaError
from emblema.stream.reply import StreamReply
from emblema.stream.stream import Stream

LEAVING = ("quit", "exit", "q")

EVERY = 0.2
"""Seconds between glances."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A question to be asked when so many seconds have been seen; None: behind all frames."""

    at: float | None
    text: str


class Viewer(Protocol):
    """Who shows a sitting, and who types questions."""

    def seen(self, glance: Glance) -> None:
        """Frames were taken in."""

    def trouble(self, text: str) -> None:
        """No more frames come, or a typed question is refused, and why."""

    def asking(self, question: str, at: float) -> None:
        """A question is asked."""

    def said(self, text: str) -> None:
        """A piece of its answer."""

    def answered(self, answer: Answer) -> None:
        """The answer is complete."""

    def typed(self, wait: bool) -> str | None:
        """The next question that was typed; None if there is none, or none will come any more."""


class Sitting:
    """Frames in, questions out, in the order of the stream's time.

    Attributes:
        answers: in the order in which they were given.
        cut: why frames ended before their time; empty otherwise.
        interrupted: whether Ctrl-C ended it.
    """

    def __init__(
        self, stream: Stream, viewer: Viewer, layers: int, timed: Sequence[Timed], most: int, thumbnails: Thumbnails
    ) -> None:
        self.answers: list[Answer] = []
        self.cut, self.interrupted = "", False
        self._stream, self._viewer, self._layers, self._most = stream, viewer, layers, most
        self._thumbnails = thumbnails
        self._timed = sorted((one for one in timed if one.at is not None), key=lambda one: one.at or 0)
        self._later = [one for one in timed if one.at is None]
        self._encoding, self._encoded = 0.0, 0
        self._now, self._next = stream.log.times[-1] if stream.frames else 0.0, 0.0

    def run(self, frames: Iterator[tuple[float, Image.Image]], fps: float) -> None:
        """Go through it until frames and questions end.

        Raises:
            EmblemaError: the first frames cannot be taken, or a question given beforehand cannot be answered.
        """
        try:
            if self._watch(frames, fps):
                for one in (*self._timed, *self._later):
                    self._ask(one.text)
                self._listen()
        except KeyboardInterrupt:
            self.interrupted = True

    def glance(self) -> Glance:
        """The stream as it stands."""
        return glance_at(self._stream, self._layers, self._encoding, self._encoded)

    def _watch(self, frames: Iterator[tuple[float, Image.Image]], fps: float) -> bool:
        """Whether to go on behind the frames."""
        stream, viewer = self._stream, self._viewer
        behind = stream.log.times[-1] + 1 / fps if stream.frames else 0.0
        try:
            for when, picture in frames:
                self._ask_due(behind + when)
                self._thumbnails.add(stream.frames + stream.waiting, picture)
                before = stream.frames
                with self._timing():
                    stream.push(picture, at=behind + when)
                self._now = behind + when
                if stream.frames != before and time.monotonic() > self._next:
                    viewer.seen(self.glance())
                    self._next = time.monotonic() + EVERY
                while (text := viewer.typed(wait=False)) is not None:
                    if text in LEAVING:
                        return False
                    self._try(text)
            self._finish()
        except (MediaError, CapacityError) as error:
            self._finish()
            if not stream.frames:
                raise
            self.cut = " ".join(str(error).split())
            viewer.trouble(f"no more frames: {self.cut}")
        return True

    def _finish(self) -> None:
        if self._stream.waiting:
            with self._timing():
                self._stream.advance()
        if self._stream.frames:
            self._viewer.seen(self.glance())

    @contextmanager
    def _timing(self) -> Iterator[None]:
        before, began = self._stream.frames, time.perf_counter()
        with finishing():
            yield
        self._encoding += time.perf_counter() - began
        self._encoded += self._stream.frames - before

    def _ask_due(self, now: float) -> None:
        """Questions whose time lies before the frame that comes next."""
        while self._timed and (self._timed[0].at or 0) < now:
            self._ask(self._timed.pop(0).text)

    def _listen(self) -> None:
        while (text := self._viewer.typed(wait=True)) and text not in LEAVING:
            self._try(text)

    def _try(self, text: str) -> None:
        """Answer a question that somebody typed; one that cannot be is no reason to end."""
        if not text:
            return
        try:
            self._ask(text)
        except EmblemaError as error:
            self._viewer.trouble(" ".join(str(error).split()))

    def _ask(self, text: str) -> None:
        stream = self._stream
        self._viewer.asking(text, self._now)
        with finishing():
            pieces = stream.ask(text, stream=True, max_new_tokens=self._most)
        reply: StreamReply | None = None
        while reply is None:
            with finishing():
                piece = next(pieces)
            self._viewer.said(str(piece))
            reply = piece.reply
        glance = self.glance()
        answer = Answer(glance.seconds, text, reply, glance, tuple(stream.log.times))
        self.answers.append(answer)
        self._viewer.answered(answer)


@contextmanager
def finishing() -> Iterator[None]:
    """Ctrl-C waits until the block has ended, so that the stream stays whole; a second one does not wait."""
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

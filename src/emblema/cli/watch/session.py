"""One run of `emblema stream`: frames go into a stream, and questions are asked of it at their times."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from PIL import Image

from emblema.cli.watch import text
from emblema.cli.watch.lines import LineViewer
from emblema.cli.watch.status import StreamAnswer, StreamStatus
from emblema.errors import CapacityError, EmblemaError, MediaError
from emblema.stream.standing import AnswerChange, StandingQuestions
from emblema.stream.stream import Stream

LEAVING = ("quit", "exit", "q")

FOLLOWING = "+"
"""Begins a question that follows the answer before it."""

EVERY = 0.2
"""Seconds between two updates of what is shown."""


@dataclass(frozen=True, slots=True)
class ScheduledQuestion:
    """A question to be asked when so many seconds have been seen; None: after all frames."""

    at: float | None
    text: str


class WatchSession:
    """Frames in, questions out, in the order of the stream's time.

    Args:
        stream: takes frames and questions; this thread owns it.
        questions: those given beforehand.
        most: tokens of an answer.
        between: seconds; questions see only what came then.
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
        questions: Sequence[ScheduledQuestion],
        most: int,
        between: tuple[float, float] | None,
        standing: StandingQuestions,
    ) -> None:
        self.answers: list[StreamAnswer] = []
        self.changes: list[AnswerChange] = []
        self.cut, self.interrupted = "", False
        self._stream, self._viewer = stream, viewer
        self._most, self._between = most, between
        self._standing: StandingQuestions | None = standing
        timed = [(question.at, question.text) for question in questions if question.at is not None]
        self._timed = sorted(timed, key=lambda question: question[0])
        self._later = [question.text for question in questions if question.at is None]
        self._encoding, self._encoded = 0.0, 0
        self._now, self._next = self._last_time, 0.0
        self._origin = stream.log.times[0] if stream.frames else None

    @property
    def _last_time(self) -> float:
        return self._stream.log.times[-1] if self._stream.frames else 0.0

    @property
    def status(self) -> StreamStatus:
        """The stream now."""
        return StreamStatus.of(self._stream, self._encoding, self._encoded)

    def to_json(self) -> dict[str, Any]:
        """Return what became of the stream as plain values that JSON can hold."""
        status = self.status
        counts, bytes = status.counts, status.bytes
        return {
            "method": self._stream.method,
            "settings": asdict(self._stream.settings),
            "frames": status.frames,
            "seconds": status.seconds,
            "skipped": self._stream.skipped,
            "cut": self.cut or None,
            "encoding": {"frames": status.encoded, "seconds": status.encoding, "frames_per_second": status.speed},
            "bytes": {"device": dict(bytes.device), "host": dict(bytes.host)},
            "counts": dict(counts),
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
                for question in (*(question for _, question in self._timed), *self._later):
                    self._ask(question)
                while (typed := self._viewer.next_question(wait=True)) and typed not in LEAVING:
                    self._try(typed)
        except KeyboardInterrupt:
            self.interrupted = True

    def _watch(self, frames: Iterator[tuple[float, Image.Image] | None], begin: float) -> bool:
        """Take all frames in; return whether to go on after them."""
        stream, viewer = self._stream, self._viewer
        try:
            for item in frames:
                if item is not None:
                    self._take(begin + item[0], item[1])
                while (typed := viewer.next_question(wait=False)) is not None:
                    if typed in LEAVING:
                        return False
                    self._try(typed)
            self._finish()
        except (MediaError, CapacityError) as error:
            self._finish()
            if not stream.frames:
                raise
            self.cut = " ".join(str(error).split())
            viewer.show_trouble(f"no more frames: {self.cut}")
        return True

    def _take(self, now: float, picture: Image.Image) -> None:
        """Take a frame in, after the questions that come before it."""
        stream = self._stream
        self._origin = now if self._origin is None else self._origin
        while self._timed and self._timed[0][0] + self._offset < now:
            self._ask(self._timed.pop(0)[1])
        before = stream.frames
        with self._timing():
            stream.push(picture, at=now)
        self._now = now
        self._check()
        if stream.frames != before and time.monotonic() > self._next:
            self._viewer.show_status(self.status)
            self._next = time.monotonic() + EVERY

    @property
    def _offset(self) -> float:
        """Seconds at which times that people give begin: those on the wall are counted from the first frame."""
        return self._origin if self._origin is not None and self._origin >= text.WALL_CLOCK else 0.0

    def _finish(self) -> None:
        if self._stream.waiting:
            with self._timing():
                self._stream.advance()
        if self._stream.frames:
            self._check()
            self._viewer.show_status(self.status)

    def _check(self) -> None:
        """Ask the standing questions that are due, and tell what changed."""
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
        before, began = self._stream.frames, time.perf_counter()
        with finishing():
            yield
        self._encoding += time.perf_counter() - began
        self._encoded += self._stream.frames - before

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
        self._viewer.show_question(question, self._now)
        between = None if self._between is None else [self._offset + seconds for seconds in self._between]
        with finishing():
            reply = self._stream.ask(asked, between=between, after=after, max_new_tokens=self._most)
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

"""Standing questions: asked of a stream again and again; a change of the answer is reported once."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emblema.errors import StreamError
from emblema.stream.reply import Moment, StreamReply
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class StandingQuestion:
    """A question that is asked again and again.

    Attributes:
        text: the question.
        every: seconds of the stream between two asks; None asks after every complete block.
        hold: asks in a row that have to give the same answer before it counts.
        cooldown: seconds of the stream after a report in which there is no other one.
        window: latest frames that it sees; None sees all.
        most: tokens of an answer.
    """

    text: str
    every: float | None = None
    hold: int = 2
    cooldown: float = 0.0
    window: int | None = None
    most: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise StreamError("a standing question is empty: write what you want to know")
        for name, seconds in (("every", self.every), ("cooldown", self.cooldown)):
            if seconds is not None and not (isinstance(seconds, int | float) and 0 <= seconds < math.inf):
                raise StreamError(f"{name} is {seconds!r}: give seconds, 0 or more")
        for name, count in (("hold", self.hold), ("most", self.most), ("window", self.window)):
            if count is not None and (type(count) is not int or count < 1):
                raise StreamError(f"{name} is {count!r}: it must be a whole number, 1 or more")


@dataclass(frozen=True, slots=True)
class AnswerChange:
    """A new answer to a standing question.

    Attributes:
        question, answer: as asked, and as answered.
        former: the answer reported before; None for the first.
        since: time of the stream, in seconds, at which the answer was given first.
        at: time at which it counted.
        moments: frames retrieved for the answer then.
    """

    question: str
    answer: str
    former: str | None
    since: float
    at: float
    moments: tuple[Moment, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return asdict(self)


class AnswerTracker:
    """Decides which answers are changes: hysteresis by asks in a row, and a cool-down after each report.

    Two answers are the same if they differ in white space and in the case of letters alone. A change during the
    cool-down is reported after it, if the answer is still the same then.
    """

    def __init__(self, question: StandingQuestion) -> None:
        self._question = question
        self._reported: tuple[str, float] | None = None
        self._former: str | None = None
        self._candidate, self._count, self._since = "", 0, 0.0

    def take(self, answer: str, at: float, moments: tuple[Moment, ...] = ()) -> AnswerChange | None:
        """Take the answer given at a time; return the change that is to be reported, if it is one."""
        question, text = self._question, " ".join(answer.split())
        key = text.casefold()
        if self._reported is not None and key == self._reported[0]:
            self._count = 0
            return None
        if not self._count or key != self._candidate:
            self._candidate, self._count, self._since = key, 0, at
        self._count += 1
        cooling = self._reported is not None and at < self._reported[1] + question.cooldown
        if self._count < question.hold or cooling:
            return None
        change = AnswerChange(question.text, text, self._former, self._since, at, moments)
        self._reported, self._former, self._count = (key, at), text, 0
        return change


class StandingQuestions:
    """Standing questions of one stream. The thread that owns the stream calls `check` after frames were taken in.

    Args:
        stream: that is asked.
        questions: in the order in which they are asked.
    """

    def __init__(self, stream: Stream, questions: Sequence[StandingQuestion]) -> None:
        self._stream = stream
        self._questions = [(question, AnswerTracker(question)) for question in questions]
        self._block = stream.frames // stream.settings.block
        self._asked: list[float | None] = [None] * len(self._questions)

    def check(self) -> list[AnswerChange]:
        """Ask what is due; return the changes.

        Raises:
            StreamError: another thread owns the stream, or it is closed.
            PromptError: a question does not fit into the model's context.
        """
        stream = self._stream
        block, self._block = self._block, stream.frames // stream.settings.block
        changes = []
        for index, (question, tracker) in enumerate(self._questions):
            if not self._is_due(index, question, self._block > block):
                continue
            now = self._asked[index] = stream.log.times[-1]
            reply: StreamReply = stream.ask(question.text, window=question.window, max_new_tokens=question.most)
            change = tracker.take(reply.text, now, reply.moments)
            if change is not None:
                changes.append(change)
        return changes

    def _is_due(self, index: int, question: StandingQuestion, block_ended: bool) -> bool:
        if question.every is None or not self._stream.frames:
            return block_ended
        asked = self._asked[index]
        return asked is None or self._stream.log.times[-1] >= max(
            asked + question.every, math.nextafter(asked, math.inf)
        )

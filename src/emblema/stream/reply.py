"""What a stream answers: a reply, what it cost, and the pieces of a streamed one."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """What an answer cost.

    Attributes:
        method: the memory that was asked.
        frames: frames that the question could see.
        retrieved: frames outside the recent window that were selected in one layer or more.
        question_tokens: rows computed for the question.
        ttft_seconds: from the call to the first token, frames that were waiting to be encoded included.
        counts: what the memory counted for this answer: transfers, their bytes, cuts and more.
        completion_tokens: tokens made, the end token included.
    """

    method: str
    frames: int
    retrieved: int
    question_tokens: int
    ttft_seconds: float
    counts: Mapping[str, float]
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """A frame that was selected for a question: its number, its time in seconds, and its share of the layers."""

    frame: int
    at: float
    share: float


@dataclass(frozen=True, slots=True)
class EvidenceSpan:
    """A stretch of time that was retrieved, in seconds, and the most layers that retrieved one frame of it, a share."""

    start: float
    end: float
    share: float


@dataclass(frozen=True, slots=True)
class StreamReply:
    """A finished answer.

    Attributes:
        text: the answer.
        token_ids: its tokens.
        finish_reason: `stop` at an end token or stop string, `length` at the most that was allowed.
        usage: what it cost.
        moments: frames outside the recent window that were retrieved for it, in order.
        conversation: tokens after the frames, those of the answer included: what a question `after` it follows.
        remark: words of the question that the model does not know, and that an answer is empty; see `Reply`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    usage: StreamUsage
    moments: tuple[Moment, ...] = field(default=(), repr=False)
    conversation: tuple[int, ...] = field(default=(), repr=False)
    remark: str | None = None

    def evidence(self, gap: float = 0.0) -> tuple[EvidenceSpan, ...]:
        """Return the moments as stretches of time, in order.

        Frames that follow one another are in one stretch, and those that are at most `gap` seconds apart.
        """
        spans: list[EvidenceSpan] = []
        last: Moment | None = None
        for moment in self.moments:
            if last is not None and (moment.frame == last.frame + 1 or moment.at - last.at <= gap):
                span = spans.pop()
                spans.append(EvidenceSpan(span.start, moment.at, max(span.share, moment.share)))
            else:
                spans.append(EvidenceSpan(moment.at, moment.at, moment.share))
            last = moment
        return tuple(spans)


class StreamPiece(str):
    """A piece of a streamed answer; the last carries the whole reply."""

    reply: StreamReply | None

    def __new__(cls, text: str, reply: StreamReply | None = None) -> "StreamPiece":
        piece = super().__new__(cls, text)
        piece.reply = reply
        return piece

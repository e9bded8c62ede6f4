"""A question that was answered while a stream was watched, as data and as JSON for other programs."""

from dataclasses import asdict, dataclass
from typing import Any

from emblema.stream.reply import StreamReply


@dataclass(frozen=True, slots=True)
class StreamAnswer:
    """A question that was answered.

    Attributes:
        at: seconds of the stream that had been seen.
    """

    at: float
    question: str
    reply: StreamReply

    def to_json(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        reply = self.reply
        return {
            "at": self.at,
            "question": self.question,
            "answer": reply.text,
            "finish_reason": reply.finish_reason,
            "remark": reply.remark,
            **asdict(reply.usage),
            "moments": [asdict(moment) for moment in reply.moments],
        }

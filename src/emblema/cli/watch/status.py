"""What can be seen of a stream at one time, and of an answer; as data, and as JSON for other programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from emblema.stream.method import MemoryBytes
from emblema.stream.reply import StreamReply
from emblema.stream.stream import Stream


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream at one time.

    Attributes:
        seconds: time of its last frame.
        frames: frames seen.
        encoding: seconds that this process took to take frames in.
        encoded: frames taken in meanwhile.
        counts: what the memory counts.
        bytes: what the stream takes.
    """

    seconds: float
    frames: int
    encoding: float
    encoded: int
    counts: Mapping[str, float]
    bytes: MemoryBytes

    @property
    def speed(self) -> float:
        """Frames taken in each second."""
        return self.encoded / self.encoding if self.encoding else 0.0

    @classmethod
    def of(cls, stream: Stream, encoding: float, encoded: int) -> "StreamStatus":
        """Read a stream; only for the thread that owns it."""
        seconds = stream.log.times[-1] if stream.frames else 0.0
        return cls(seconds, stream.frames, encoding, encoded, stream.counts, stream.bytes)


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

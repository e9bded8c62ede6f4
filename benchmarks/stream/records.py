"""What a stream answered under an arm, on record: a line each, so that a killed run goes on, and runs can be joined."""

from dataclasses import asdict, dataclass
from typing import Self

from benchmarks.recordfile import digest, fields_of
from benchmarks.stream.wanted import Pass, Wanted


@dataclass(frozen=True, slots=True)
class Answer:
    """One question.

    Attributes:
        kind: of the question.
        at: frames seen when it was asked.
        right: whether the answer is the right one; `token`: its first token.
        ttft, cpu: seconds to the first token, by the clock and of the processor.
        retrieved: frames outside the window that one layer or more was handed.
    """

    kind: str
    at: int
    right: bool
    token: int
    ttft: float
    cpu: float
    retrieved: int


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One stream under one arm.

    Attributes:
        key: see `key_of`.
        model: its name.
        kind, seed, item, frames: of the stream.
        arm, method, budget: what it was asked under.
        encode_seconds, encode_cpu: for all frames, by the clock and of the processor.
        counts: what the memory counted.
        device, host: bytes at the end, by what they are for.
        answers: in the order of the questions.
    """

    key: str
    model: str
    kind: str
    seed: int
    item: int
    frames: int
    arm: str
    method: str
    budget: int
    encode_seconds: float
    encode_cpu: float
    counts: dict[str, float]
    device: dict[str, int]
    host: dict[str, int]
    answers: tuple[Answer, ...]

    @property
    def stream(self) -> str:
        """The stream's name: questions about one stream are not independent of one another."""
        return f"{self.kind}-{self.frames}-{self.seed}-{self.item}"

    @classmethod
    def read(cls, line: str) -> Self:
        """The record of a line.

        Raises:
            ValueError: it is none.
            TypeError: likewise.
        """
        held = fields_of(line, cls)
        answers = tuple(Answer(**answer) for answer in held.pop("answers"))
        return cls(**held, answers=answers)


def key_of(fingerprint: str, one: Pass, wanted: Wanted) -> str:
    """What a record depends on: the model's weights, the stream, when and how much it is asked, and the memory."""
    asked = (wanted.times_of(one.place.frames), wanted.each)
    memory = wanted.arm(one.arm).identity(wanted.settings, one.budget)
    return digest(fingerprint, asdict(one.place), asked, memory)

"""What a soaking process says: a line for every round of questions, one when it has saved and when it went on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Event = Literal["round", "saved", "resumed", "end"]


@dataclass(frozen=True, slots=True)
class Round:
    """The frames since the last round, and the questions behind them.

    Attributes:
        process: 0 before the kill, 1 behind it.
        frames: seen so far.
        kind: of the stretch that they lie in.
        encoded: frames since the last round, and `encode_cpu`, `encode_wall`: seconds that they took.
        ttft_cpu, ttft_wall: seconds to the first token over the whole stream, one for each question.
        device, host: bytes by place.
        clusters: semantic ones, of one layer; visual: visual ones.
        resident: bytes of the process in memory.
        counted: of those, what the stream says that it holds.
        right: question kind to whether the answer was right, the stretch alone in sight.
    """

    process: int
    frames: int
    kind: str
    encoded: int
    encode_cpu: float
    encode_wall: float
    ttft_cpu: tuple[float, ...]
    ttft_wall: tuple[float, ...]
    device: Mapping[str, int]
    host: Mapping[str, int]
    clusters: float
    visual: int
    resident: int
    counted: int
    right: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Answered:
    """The fixed questions: token ids and retrieved frames of each, when so many frames had been seen."""

    frames: int
    tokens: tuple[tuple[int, ...], ...] = ()
    moments: tuple[tuple[int, ...], ...] = ()

    def same(self, other: "Answered") -> int:
        """How many answers are the same, and from the same frames."""
        own, others = (zip(one.tokens, one.moments, strict=True) for one in (self, other))
        return sum(one == two for one, two in zip(own, others, strict=False))


@dataclass
class Said:
    """All that counts of what the processes of a soak said.

    Attributes:
        rounds: those that were not lost with the process.
        lost: frames that the killed process had seen since it saved.
        before, after: the fixed questions, before the kill and behind it.
        saved_bytes: of the file.
        seconds: that the soak took.
    """

    rounds: list[Round] = field(default_factory=list)
    lost: int = 0
    before: Answered = field(default_factory=lambda: Answered(0))
    after: Answered = field(default_factory=lambda: Answered(0))
    saved_bytes: int = 0
    seconds: float = 0.0


def line_of(event: Event, said: Round | Answered | None = None) -> str:
    """What a process prints."""
    return json.dumps({"event": event, "said": None if said is None else asdict(said)})


def read_line(line: str) -> tuple[Event, Any]:
    """What a process printed."""
    found = json.loads(line)
    event, said = found["event"], found["said"]
    if event == "round":
        return event, Round(**{**said, "ttft_cpu": tuple(said["ttft_cpu"]), "ttft_wall": tuple(said["ttft_wall"])})
    if event in ("saved", "resumed"):
        return event, Answered(said["frames"], *(tuple(map(tuple, said[name])) for name in ("tokens", "moments")))
    return event, None

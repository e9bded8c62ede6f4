"""What a soak is made of: stretches of every kind in turns, and questions about them; and what its processes print."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from benchmarks.recordfile import parsed
from benchmarks.tasks.streams import (
    QUESTION_KINDS,
    STREAM_KINDS,
    GeneratedStream,
    TimedQuestion,
    questions_of,
    stream_of,
)
from emblema.errors import PromptError
from emblema.stream.settings import AblationSettings, StreamSettings, change_settings

# Frames that retrieve while they are encoded score all clusters each: what a frame costs would grow with their number.
SETTINGS = StreamSettings(positions="packed", ablation=AblationSettings(retrieve_while_encoding=False))
SoakEvent = Literal["round", "saved", "resumed", "end"]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """A soak.

    Attributes:
        model: what is loaded.
        device: where it runs.
        frames: frames of the stream; the process is killed after half of them.
        every: frames between one round of questions and the next.
        stretch: frames of one kind, before those of the next begin.
        seed: of stretches and questions.
        minutes: end after about so long, wherever it is then; None for no such end. Loading does not count.
        settings: of the stream.

    Raises:
        PromptError: there are too few frames for a quarter to have a round of questions.
    """

    model: str
    device: str | None = None
    frames: int = 20_000
    every: int = 200
    stretch: int = 500
    seed: int = 0
    minutes: float | None = None
    settings: StreamSettings = SETTINGS

    def __post_init__(self) -> None:
        if self.every < 1 or self.stretch < 1 or self.seed < 0:
            raise PromptError("frames between rounds and in a stretch are 1 or more, and a seed is 0 or more")
        if self.frames < 4 * self.every:
            raise PromptError(f"a soak of {self.frames} frames: give {4 * self.every} or more")
        if self.minutes is not None and self.minutes <= 0:
            raise PromptError(f"a soak of {self.minutes} minutes: give more than none")

    @property
    def half(self) -> int:
        """Frames after which the stream is saved."""
        return self.frames // self.every // 2 * self.every

    def stretch_of(self, frame: int) -> tuple[GeneratedStream, int]:
        """Return the stretch that a frame lies in, and the frame that it begins with."""
        item, begin = frame // self.stretch, frame - frame % self.stretch
        kind = STREAM_KINDS[item % len(STREAM_KINDS)]
        return stream_of(kind, self.stretch, self.seed, item), begin

    def questions(self, seen: int, each: int) -> tuple[str, int, tuple[TimedQuestion, ...]]:
        """Return, after so many frames, the latest stretch's kind, its frames so far, and `each` of every question."""
        stream, begin = self.stretch_of(seen - 1)
        limits = dict.fromkeys(QUESTION_KINDS, each)
        return stream.kind, seen - begin, questions_of(stream, (seen - begin,), limits)

    def reported(self, label: str) -> dict[str, Any]:
        """Return the options as they are reported, the model by its name."""
        usual = StreamSettings().flat()
        changes = {name: value for name, value in self.settings.flat().items() if value != usual[name]}
        own = {name: value for name, value in asdict(self).items() if name not in ("model", "settings")}
        return {"model": label, **{name: value for name, value in {**own, **changes}.items() if value is not None}}

    def line(self) -> str:
        """Return the plan as a line for another process."""
        return json.dumps({**asdict(self), "settings": self.settings.flat()})

    @classmethod
    def read(cls, line: str) -> Self:
        """Return the plan that `line` wrote."""
        facts: dict[str, Any] = json.loads(line)
        return cls(**{**facts, "settings": change_settings(StreamSettings(), facts["settings"])})


@dataclass(frozen=True, slots=True)
class SoakRound:
    """The frames since the last round, and the questions after them.

    Attributes:
        process: 0 before the kill, 1 after it.
        frames: seen so far.
        kind: of the stretch that they lie in.
        encoded: frames since the last round, and `encode_cpu`, `encode_wall`: seconds that they took.
        ttft_cpu, ttft_wall: seconds to the first token over the whole stream, one for each question.
        device, host: bytes by place.
        clusters: semantic ones, of one layer; visual: visual ones.
        resident: bytes of the process in memory.
        counted: of those, what the stream says that it holds.
        gaps: of those, bytes between buffers that the allocator keeps free; 0 where the system does not say.
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
    gaps: int
    right: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class FixedAnswers:
    """The fixed questions: token ids and retrieved frames of each, when so many frames had been seen."""

    frames: int
    tokens: tuple[tuple[int, ...], ...] = ()
    moments: tuple[tuple[int, ...], ...] = ()

    def same(self, other: "FixedAnswers") -> int:
        """Return how many answers are the same, and from the same frames."""
        pairs = (zip(answers.tokens, answers.moments, strict=True) for answers in (self, other))
        return sum(own == theirs for own, theirs in zip(*pairs, strict=False))


@dataclass
class SoakLog:
    """All that counts of what the processes of a soak printed.

    Attributes:
        rounds: those that were not lost with the process.
        lost: frames that the killed process had seen since it saved.
        before, after: the fixed questions, before the kill and after it.
        saved_bytes: of the file.
        seconds: that the soak took.
    """

    rounds: list[SoakRound] = field(default_factory=list)
    lost: int = 0
    before: FixedAnswers = field(default_factory=lambda: FixedAnswers(0))
    after: FixedAnswers = field(default_factory=lambda: FixedAnswers(0))
    saved_bytes: int = 0
    seconds: float = 0.0


def event_line(event: SoakEvent, found: SoakRound | FixedAnswers | None = None) -> str:
    """Return what a process prints."""
    return json.dumps({"event": event, "found": None if found is None else asdict(found)})


def read_event(line: str) -> tuple[SoakEvent, Any]:
    """Return what a process printed."""
    printed = json.loads(line)
    event, found = printed["event"], printed["found"]
    if event == "end":
        return event, None
    return event, parsed(SoakRound if event == "round" else FixedAnswers, found)

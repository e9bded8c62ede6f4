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
SETTINGS = StreamSettings(
    positions="packed", host_bytes=1_000_000_000, ablation=AblationSettings(retrieve_while_encoding=False)
)
SoakEvent = Literal["round", "saved", "resumed", "end"]


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """A soak.

    Attributes:
        model: what is loaded.
        device: where it runs.
        frames: frames of the stream.
        kills: how often the process is killed: its frames are shared out evenly.
        every: frames between one round of questions and the next.
        compare: frames between one comparison with a fresh stream and the next. The last round of each process is
            one too.
        short, fresh: frames of the fresh stream at which it is asked, and up to which it is then encoded.
        stretch: frames of one kind, before those of the next begin.
        seed: of stretches and questions.
        minutes: end after about so long, wherever it is then; None for no such end. Loading does not count.
        settings: of the stream.

    Raises:
        PromptError: there are too few frames for a quarter to have a round of questions.
    """

    model: str
    device: str | None = None
    frames: int = 100_000
    kills: int = 2
    every: int = 200
    compare: int = 5_000
    short: int = 256
    fresh: int = 1_000
    stretch: int = 500
    seed: int = 0
    minutes: float | None = None
    settings: StreamSettings = SETTINGS

    def __post_init__(self) -> None:
        if min(self.every, self.stretch, self.compare) < 1 or min(self.seed, self.kills) < 0:
            raise PromptError("frames between rounds and in a stretch are 1 or more, a seed and kills 0 or more")
        least = max(4, self.kills + 1) * self.every
        if self.frames < least:
            raise PromptError(f"a soak of {self.frames} frames: give {least} or more")
        if not 1 <= self.short < self.fresh:
            raise PromptError("a fresh stream is asked after 1 frame or more, and goes on then")
        if self.minutes is not None and self.minutes <= 0:
            raise PromptError(f"a soak of {self.minutes} minutes: give more than none")

    @property
    def latest(self) -> int:
        """Frames of a fresh stream that are timed: its last ones, as many as come between two rounds."""
        return min(self.every, self.fresh - self.short)

    def stop(self, process: int) -> int:
        """Return the frames after which a process is killed, or the last one ends."""
        return self.frames // self.every * (process + 1) // (self.kills + 1) * self.every

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
        process: 0 before the first kill, 1 before the second, and so on.
        frames: seen so far.
        kind: of the stretch that they lie in.
        encoded: frames since the last round, and `encode_cpu`: CPU seconds that they took.
        ttft_cpu: CPU seconds to the first token over the whole stream, one for each question.
        device, host: bytes by place.
        visual: visual clusters.
        resident: bytes of the process in memory.
        counted: of those, what the stream says that it holds.
        gaps: of those, bytes between buffers that the allocator keeps free; 0 where the system does not say.
        right: question kind to whether the answer was right, the stretch alone in sight; None if there is no such
            question.
        short_cpu: `ttft_cpu` of a fresh stream, asked the same in turns with this one; none where not compared.
        fresh_encoded, fresh_cpu: the latest frames that were encoded of it, and `encode_cpu` of these.
    """

    process: int
    frames: int
    kind: str
    encoded: int
    encode_cpu: float
    ttft_cpu: tuple[float, ...]
    device: Mapping[str, int]
    host: Mapping[str, int]
    visual: int
    resident: int
    counted: int
    gaps: int
    right: Mapping[str, bool | None]
    short_cpu: tuple[float, ...] = ()
    fresh_encoded: int = 0
    fresh_cpu: float = 0.0


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
        rounds: those that were not lost with a process.
        lost: frames that killed processes had seen since they saved.
        before, after: the fixed questions, before each kill and after it.
        saved_bytes: of the files, at the last kill.
        seconds: that the soak took.
    """

    rounds: list[SoakRound] = field(default_factory=list)
    lost: int = 0
    before: list[FixedAnswers] = field(default_factory=list)
    after: list[FixedAnswers] = field(default_factory=list)
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

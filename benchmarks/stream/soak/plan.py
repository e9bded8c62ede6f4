"""What a soak is made of: stretches of every kind in turns, drawn as they are needed, and questions about them."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchmarks.tasks.streams import (
    QUESTION_KINDS,
    STREAM_KINDS,
    GeneratedStream,
    TimedQuestion,
    make_stream,
    questions_of,
    random_of,
)
from emblema.errors import PromptError
from emblema.stream.settings import AblationSettings, StreamSettings, change_settings

# Frames that retrieve while they are encoded score all clusters each: what a frame costs would grow with their number.
SETTINGS = StreamSettings(positions="packed", ablation=AblationSettings(retrieve_while_encoding=False))


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """A soak.

    Attributes:
        model: what is loaded.
        device: where it runs.
        frames: frames of the stream; the process is killed behind half of them.
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
        """Frames behind which the stream is saved."""
        return self.frames // self.every // 2 * self.every

    def stretch_of(self, frame: int) -> tuple[GeneratedStream, int]:
        """The stretch that a frame lies in, and the frame that it begins with."""
        item, begin = frame // self.stretch, frame - frame % self.stretch
        kind = STREAM_KINDS[item % len(STREAM_KINDS)]
        random = random_of(kind, self.stretch, self.seed, item)
        return make_stream(random, kind, self.stretch, self.seed, item), begin

    def questions(self, seen: int, each: int) -> tuple[str, int, tuple[TimedQuestion, ...]]:
        """When so many frames have been seen: the latest stretch's kind, its frames so far, `each` of every kind."""
        stream, begin = self.stretch_of(seen - 1)
        limits = dict.fromkeys(QUESTION_KINDS, each)
        return stream.kind, seen - begin, questions_of(stream, (seen - begin,), limits)

    def told(self, label: str) -> dict[str, Any]:
        """The options as they are reported, the model by its name."""
        usual = StreamSettings().flat()
        changes = {name: value for name, value in self.settings.flat().items() if value != usual[name]}
        own = {name: value for name, value in asdict(self).items() if name not in ("model", "settings")}
        return {"model": label, **{name: value for name, value in {**own, **changes}.items() if value is not None}}

    def written(self) -> str:
        """As a line for another process."""
        return json.dumps({**asdict(self), "settings": self.settings.flat()})

    @classmethod
    def read(cls, line: str) -> Self:
        """What `written` wrote."""
        facts: dict[str, Any] = json.loads(line)
        return cls(**{**facts, "settings": change_settings(StreamSettings(), facts["settings"])})

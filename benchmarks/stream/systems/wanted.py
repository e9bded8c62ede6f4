"""What the systems parts are measured on."""

from dataclasses import dataclass, field, replace

from benchmarks.tasks.streams import STREAM_KINDS
from emblema.errors import PromptError
from emblema.stream.settings import StreamSettings

QUICK_BUDGET = 16


@dataclass(frozen=True, slots=True)
class SystemsWanted:
    """How much to measure.

    Attributes:
        seed: of the streams.
        kinds: of the streams; parts that need one take the first.
        lengths: frames at which time is taken, rising.
        frames: frames of the streams whose bytes, cuts, transfers and encoding are counted.
        looked: frames of the streams whose attention is looked at.
        rounds: questions behind every time that is reported.
        settings: of all streams; a memory without an end has native positions whatever these say.
        workers: processes at once.
        model: what a worker loads; None for the folder that the engine's own model came from.
    """

    seed: int = 0
    kinds: tuple[str, ...] = STREAM_KINDS
    lengths: tuple[int, ...] = (64, 256, 1024, 4096)
    frames: int = 1024
    looked: int = 256
    rounds: int = 16
    settings: StreamSettings = field(default_factory=StreamSettings)
    workers: tuple[int, ...] = (1, 2, 4)
    model: str | None = None

    def __post_init__(self) -> None:
        numbers = (*self.lengths, *self.workers, self.frames, self.looked, self.rounds)
        if not (self.lengths and self.workers and self.kinds) or min(numbers) < 1 or self.seed < 0:
            raise PromptError(
                "give lengths, workers and kinds, frames and rounds of 1 or more, and a seed of 0 or more"
            )
        if list(self.lengths) != sorted(set(self.lengths)):
            raise PromptError(f"the lengths {self.lengths} do not rise: give each once, the shortest first")
        unknown = [kind for kind in self.kinds if kind not in STREAM_KINDS]
        if unknown:
            raise PromptError(f"there is no stream of kind {unknown[0]!r}: choose from {', '.join(STREAM_KINDS)}")

    @classmethod
    def quick(cls, seed: int = 0, settings: StreamSettings | None = None) -> "SystemsWanted":
        """Enough to see that all of it works; the budget is small, so that short streams have to choose."""
        chosen = replace(settings or StreamSettings(), budget=QUICK_BUDGET)
        return cls(seed, lengths=(64, 128), frames=128, looked=96, rounds=3, settings=chosen, workers=(1, 2))

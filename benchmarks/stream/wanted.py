"""What to measure of accuracy: which streams, asked when, under which arms."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.stream.arms import ABLATIONS, FULL, METHODS, OURS, Arm, arms, arms_named
from benchmarks.tasks.streams import QUESTION_KINDS, STREAM_KINDS
from emblema.errors import PromptError
from emblema.stream.settings import StreamSettings

ACCURACY_PARTS = ("accuracy", "budgets", "lengths", "ablation")
SEEDS = (201, 202, 203)
FITS = 1024
"""Frames up to which full attention is measured."""


@dataclass(frozen=True, slots=True)
class Place:
    """One generated stream: its kind, seed, number and frames."""

    kind: str
    seed: int
    item: int
    frames: int


@dataclass(frozen=True, slots=True)
class Pass:
    """A stream under an arm, at a budget."""

    place: Place
    arm: str
    budget: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to measure.

    Attributes:
        kinds, seeds: of streams; `items` of each kind and seed in the comparison at equal budget.
        others: likewise for the other parts.
        frames: of the streams that are compared at equal budget.
        lengths: frames of streams where accuracy is told by length.
        budget: frames retrieved in each layer; `budgets`: where accuracy is told by budget.
        methods, ablations: arms.
        times: how often a stream is asked, evenly over its second half, the last time at its end.
        each: questions of each kind each time, at the most.
        settings: shared by all arms.
        parts: of `ACCURACY_PARTS`.
    """

    kinds: tuple[str, ...] = STREAM_KINDS
    seeds: tuple[int, ...] = SEEDS
    items: int = 3
    others: int = 1
    frames: int = 512
    lengths: tuple[int, ...] = (64, 128, 256, 512, 1024)
    budget: int = 64
    budgets: tuple[int, ...] = (8, 16, 32, 64)
    methods: tuple[str, ...] = METHODS
    ablations: tuple[str, ...] = tuple(arm.name for arm in ABLATIONS)
    times: int = 5
    each: int = 3
    settings: StreamSettings = field(default_factory=StreamSettings)
    parts: tuple[str, ...] = ACCURACY_PARTS

    def __post_init__(self) -> None:
        unknown = next((kind for kind in self.kinds if kind not in STREAM_KINDS), None)
        if unknown is not None:
            raise PromptError(f"unknown kind of stream {unknown!r}: choose of {', '.join(STREAM_KINDS)}")
        counts = (
            self.items,
            self.others,
            self.frames,
            *self.lengths,
            self.budget,
            *self.budgets,
            self.times,
            self.each,
        )
        if not (self.kinds and self.seeds) or min(counts) < 1 or min(self.seeds) < 0:
            raise PromptError(
                "give one kind and seed or more, seeds of 0 or more, and 1 or more of all that is counted "
                "(items, frames, lengths, budgets, times, questions)"
            )
        arms_named((*self.methods, *self.ablations))

    @property
    def limits(self) -> dict[str, int]:
        """Questions of each kind each time."""
        return dict.fromkeys(QUESTION_KINDS, self.each)

    def times_of(self, frames: int) -> tuple[int, ...]:
        """Frames seen when a stream is asked, rising."""
        first = -(-frames // 2)
        steps = max(1, self.times - 1)
        found = {first + (frames - first) * step // steps for step in range(self.times)}
        return tuple(sorted(found)) if self.times > 1 else (frames,)

    def passes(self, part: str) -> tuple[Pass, ...]:
        """Everything that a part goes by, a stream's arms together."""
        return tuple(
            Pass(Place(kind, seed, item, frames), arm.name, budget)
            for frames, budget, items, chosen in self._cells(part)
            for seed in self.seeds
            for item in range(items)
            for kind in self.kinds
            for arm in chosen
            if arm.method != FULL or frames <= FITS
        )

    def _cells(self, part: str) -> Iterator[tuple[int, int, int, tuple[Arm, ...]]]:
        """Frames, budget, items and arms."""
        known, others = arms_named(self.methods), min(self.items, self.others)
        if part == "accuracy":
            yield self.frames, self.budget, self.items, known
        elif part == "budgets":
            pair = tuple(arm for arm in known if arm.name in (OURS, "rekv"))
            yield from ((self.frames, budget, others, pair) for budget in self.budgets)
        elif part == "lengths":
            yield from ((frames, self.budget, others, known) for frames in self.lengths)
        elif part == "ablation":
            beside = tuple(arm for arm in known if arm.name in (OURS, "rekv"))
            yield self.frames, self.budget, others, (*beside, *arms_named(self.ablations))
        else:
            raise PromptError(f"there is no part {part!r}: choose of {', '.join(ACCURACY_PARTS)}")

    def arm(self, name: str) -> Arm:
        """An arm by name."""
        return arms()[name]

"""Which streams are asked when, under which methods, and under Mosaic with one thing changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.tasks.streams import STREAM_KINDS
from emblema.stream.settings import StreamSettings, change_settings

OURS, FULL, REKV = "mosaic", "full", "rekv"
STOCK = (REKV, "livevlm", "streammem", "sliding", "nocache")
BASELINES = (*STOCK, "rekv-attention", "rekv-orders")
ACCURACY_PARTS = ("search", "accuracy", "lengths", "ablation")
SEEDS = (201, 202, 203)
SEARCH_SEEDS = (801, 802)
"""Of the streams that the baselines' settings are searched on: no other part has them."""
FITS = 1024
"""Frames up to which full attention is measured."""


@dataclass(frozen=True, slots=True)
class StreamArm:
    """A method of `benchmarks.stream.methods`, and what is changed of the settings that all arms share.

    Attributes:
        words: what is changed.
    """

    name: str
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""

    def settings(self, shared: StreamSettings) -> StreamSettings:
        """Return the arm's settings; full attention has native positions in any case, as it has no end."""
        own = change_settings(shared, self.changes)
        return replace(own, positions="native") if self.method == FULL else own


NEAR = {"window": 48, "budget": 32}
"""Half of the budget in the window."""
SEARCHED: tuple[StreamArm, ...] = (
    *(StreamArm(name, name) for name in (*BASELINES, "rekv-one-part", "livevlm-orders")),
    *(StreamArm(f"{name}-near", name, NEAR) for name in (REKV, "livevlm", "streammem", "rekv-orders")),
    StreamArm("sliding-all", "sliding", {"window": 80}),
)
"""What the search for the baselines' best settings goes through."""

ABLATIONS: tuple[StreamArm, ...] = (
    StreamArm("mosaic-paper", "mosaic-paper", {}, "all as in the paper"),
    StreamArm("mosaic-paper-visual", "mosaic-paper-visual", {}, "as in the paper, visual clusters alone"),
    StreamArm("mosaic-paper-semantic", "mosaic-paper-semantic", {}, "as in the paper, semantic clusters alone"),
)
ARMS: Mapping[str, StreamArm] = {
    **{name: StreamArm(name, name) for name in (OURS, FULL)},
    **{arm.name: arm for arm in (*SEARCHED, *ABLATIONS)},
}
"""Every arm by name."""


@dataclass(frozen=True, slots=True)
class StreamId:
    """One generated stream: its kind, seed, number and frames."""

    kind: str
    seed: int
    item: int
    frames: int

    @property
    def name(self) -> str:
        """Its name: questions about one stream are not independent of one another."""
        return f"{self.kind}-{self.frames}-{self.seed}-{self.item}"


@dataclass(frozen=True, slots=True)
class StreamPass:
    """A stream under an arm."""

    stream: StreamId
    arm: str


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """What to measure.

    Attributes:
        kinds, seeds: of streams; `items` of each kind and seed in the comparison at equal budget.
        others: likewise for the other parts.
        frames: of the streams that are compared at equal budget.
        lengths: frames of streams in the table by length.
        methods, ablations: arms.
        times: how often a stream is asked, evenly over its second half, the last time at its end.
        each: questions of each kind each time, at the most.
        settings: shared by all arms.
    """

    kinds: tuple[str, ...] = STREAM_KINDS
    seeds: tuple[int, ...] = SEEDS
    items: int = 3
    others: int = 1
    frames: int = 512
    lengths: tuple[int, ...] = (512, 1024)
    methods: tuple[str, ...] = (OURS, *BASELINES, FULL)
    ablations: tuple[str, ...] = tuple(arm.name for arm in ABLATIONS)
    times: int = 5
    each: int = 3
    settings: StreamSettings = field(default_factory=StreamSettings)

    def quick(self) -> "AccuracyOptions":
        """Return a little of everything, of the same kinds and arms."""
        settings = replace(self.settings, budget=8)
        return replace(
            self, seeds=self.seeds[:1], items=1, frames=64, lengths=(32, 64), times=2, each=1, settings=settings
        )

    @property
    def reported(self) -> dict[str, Any]:
        """The options as they are reported."""
        named = ("kinds", "seeds", "items", "others", "frames", "lengths", "times", "each")
        return {name: getattr(self, name) for name in named}

    def times_of(self, frames: int) -> tuple[int, ...]:
        """Return frames seen when a stream is asked, rising."""
        first = -(-frames // 2)
        steps = max(1, self.times - 1)
        found = {first + (frames - first) * step // steps for step in range(self.times)}
        return tuple(sorted(found)) if self.times > 1 else (frames,)

    def passes(self, part: str) -> tuple[StreamPass, ...]:
        """Return everything that a part goes by, a stream's arms together."""
        lengths = self.lengths if part == "lengths" else (self.frames,)
        return tuple(
            StreamPass(StreamId(kind, seed, item, frames), arm.name)
            for frames in lengths
            for seed in (SEARCH_SEEDS if part == "search" else self.seeds)
            for item in range(self.items if part == "accuracy" else min(self.items, self.others))
            for kind in self.kinds
            for arm in self._arms(part)
            if arm.method != FULL or frames <= FITS
        )

    def _arms(self, part: str) -> tuple[StreamArm, ...]:
        known = tuple(ARMS[name] for name in self.methods)
        if part == "search":
            return tuple(arm for arm in SEARCHED if arm.method.startswith(self.methods))
        if part == "ablation":
            return (*(arm for arm in known if arm.name in (OURS, REKV)), *(ARMS[name] for name in self.ablations))
        return known

"""Which streams are asked when, under which methods, and under Mosaic with one thing changed."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.tasks.streams import STREAM_KINDS
from emblema.errors import PromptError
from emblema.stream.settings import StreamSettings, change_settings

OURS, FULL, REKV = "mosaic", "full", "rekv"
STOCK = (REKV, "livevlm", "streammem", "sliding", "nocache")
SHARED = ("sinks", "window", "block", "positions", "batched")
"""Settings that every method goes by, the budget apart."""
ALONE = 1e-9
"""A width, as a share of the variance, that no cluster of two frames keeps to."""
ACCURACY_PARTS = ("search", "accuracy", "lengths", "ablation")
SEEDS = (201, 202, 203)
SEARCH_SEEDS = (801, 802)
"""Of the streams that the baselines' settings are searched on: no other part has them."""
FITS = 1024
"""Frames up to which full attention is measured."""


@dataclass(frozen=True, slots=True)
class StreamArm:
    """A method, and what is changed of the settings that all arms share.

    Attributes:
        words: what is changed.
    """

    name: str
    method: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""

    def settings(self, shared: StreamSettings, budget: int) -> StreamSettings:
        """Return the arm's settings; full attention has native positions in any case, as it has no end."""
        own = change_settings(shared, {"budget": budget, **self.changes})
        return replace(own, positions="native") if self.method == FULL else own

    def identity(self, shared: StreamSettings, budget: int) -> dict[str, Any]:
        """Return what its answers depend on: equal for two arms that are the same."""
        settings = self.settings(shared, budget).flat()
        if self.method == OURS:
            return {"method": self.method, **settings}
        kept = {name: settings[name] for name in SHARED}
        own = {name: value for name, value in self.changes.items() if name not in (*SHARED, "budget")}
        return {"method": self.method, **kept, **own, "budget": None if self.method == FULL else settings["budget"]}


def _ours(name: str, words: str, **changes: Any) -> StreamArm:
    return StreamArm(f"{OURS}-{name}", OURS, changes, words)


def _clusters(name: str, words: str, **changes: Any) -> StreamArm:
    """Return an arm that retrieves whole clusters and shows the others by representatives, as the paper has it."""
    return _ours(name, words, **{"retrieval": "clusters", "representatives": True, **changes})


BY_HEAD: tuple[StreamArm, ...] = (
    StreamArm("rekv-attention", REKV, {"scoring": "attention", "parts": 4}, "four mean keys a frame, by attention"),
    StreamArm("rekv-orders", REKV, {"scoring": "orders", "parts": 4}, "four mean keys a frame, by Mosaic's ranks"),
)
"""ReKV with Mosaic's keys and scores: what is left are postings, and that frames retrieve while they are encoded."""
BASELINES = (*STOCK, *(arm.name for arm in BY_HEAD))
METHODS = (OURS, *BASELINES, FULL)

SEARCHED: tuple[StreamArm, ...] = (
    *(StreamArm(name, name) for name in STOCK),
    *BY_HEAD,
    StreamArm("rekv-one-part", REKV, {"scoring": "orders", "parts": 1}, "one mean key a frame, by Mosaic's ranks"),
    StreamArm("livevlm-orders", "livevlm", {"scoring": "orders", "parts": 4}, "retrieves as rekv-orders"),
    *(
        StreamArm(f"{name}-near", name, {"window": 48, "budget": 32}, "half of the budget in the window")
        for name in (REKV, "livevlm", "streammem")
    ),
    StreamArm("rekv-orders-near", REKV, {"scoring": "orders", "parts": 4, "window": 48, "budget": 32}, "both"),
    StreamArm("sliding-all", "sliding", {"window": 80}, "the whole budget in the window"),
)
"""What the search for the baselines' best settings goes through."""

ABLATIONS: tuple[StreamArm, ...] = (
    _ours("one-part", "one mean key a frame", parts=1),
    _ours("representatives", "other clusters are seen as one row", representatives=True),
    _clusters("clusters", "whole clusters retrieved, the others seen as one row"),
    _clusters("clusters-alone", "whole clusters retrieved, the others not seen", representatives=False),
    _clusters("visual", "visual clusters alone", levels="visual"),
    _clusters("semantic", "semantic clusters alone, each layer's own", levels="semantic"),
    _clusters("flat", "each frame is a cluster", tau_small=ALONE, tau_large=ALONE),
    _clusters("unweighted", "clusters; a representative counts for one row", weighted=False),
    _clusters("eager", "clusters; cut at once when too wide", splitting="eager"),
    _clusters("relaxing", "clusters; large ones may be wider (equation 5)", direction="relaxing"),
    _clusters("cosine", "clusters; vectors of length one", geometry="cosine"),
    _clusters("pooled", "clusters chosen by a pooled query (V-C)", scoring="pooled"),
    _clusters("paper", "all as in the paper", direction="relaxing", parts=1, scoring="pooled", geometry="cosine"),
    _ours("window-only", "frames retrieve nothing while they are encoded", retrieve_while_encoding=False),
)
ARMS: Mapping[str, StreamArm] = {
    **{name: StreamArm(name, name) for name in (OURS, *STOCK, FULL)},
    **{arm.name: arm for arm in (*BY_HEAD, *SEARCHED, *ABLATIONS)},
}
"""Every arm by name."""


def arms_named(names: tuple[str, ...]) -> tuple[StreamArm, ...]:
    """Return arms in the order of their names.

    Raises:
        PromptError: there is none of that name.
    """
    unknown = next((name for name in names if name not in ARMS), None)
    if unknown is not None:
        raise PromptError(f"there is no arm {unknown!r}: choose of {', '.join(ARMS)}")
    return tuple(ARMS[name] for name in names)


@dataclass(frozen=True, slots=True)
class StreamId:
    """One generated stream: its kind, seed, number and frames."""

    kind: str
    seed: int
    item: int
    frames: int


@dataclass(frozen=True, slots=True)
class StreamPass:
    """A stream under an arm, at a budget."""

    stream: StreamId
    arm: str
    budget: int


@dataclass(frozen=True, slots=True)
class AccuracyOptions:
    """What to measure.

    Attributes:
        kinds, seeds: of streams; `items` of each kind and seed in the comparison at equal budget.
        others: likewise for the other parts.
        frames: of the streams that are compared at equal budget.
        lengths: frames of streams in the table by length.
        budget: frames retrieved in each layer.
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
    budget: int = 64
    methods: tuple[str, ...] = METHODS
    ablations: tuple[str, ...] = tuple(arm.name for arm in ABLATIONS)
    times: int = 5
    each: int = 3
    settings: StreamSettings = field(default_factory=StreamSettings)

    def __post_init__(self) -> None:
        unknown = next((kind for kind in self.kinds if kind not in STREAM_KINDS), None)
        if unknown is not None:
            raise PromptError(f"unknown kind of stream {unknown!r}: choose of {', '.join(STREAM_KINDS)}")
        if not (self.kinds and self.seeds) or min(self.items, self.others, *self.lengths) < 1 or min(self.seeds) < 0:
            raise PromptError("give kinds, seeds of 0 or more, and streams and lengths of 1 or more")
        arms_named((*self.methods, *self.ablations))

    def quick(self) -> "AccuracyOptions":
        """Return a little of everything, of the same kinds, arms and settings."""
        return replace(
            self, seeds=self.seeds[:1], items=1, others=1, frames=64, lengths=(32, 64), budget=8, times=2, each=1
        )

    @property
    def reported(self) -> dict[str, Any]:
        """The options as they are reported."""
        named = ("kinds", "seeds", "items", "others", "frames", "lengths", "budget", "times", "each")
        shared = ("sinks", "window", "block", "positions")
        return {name: getattr(self if name in named else self.settings, name) for name in (*named, *shared)}

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
            StreamPass(StreamId(kind, seed, item, frames), arm.name, self.budget)
            for frames in lengths
            for seed in (SEARCH_SEEDS if part == "search" else self.seeds)
            for item in range(self.items if part == "accuracy" else min(self.items, self.others))
            for kind in self.kinds
            for arm in self._arms(part)
            if arm.method != FULL or frames <= FITS
        )

    def _arms(self, part: str) -> tuple[StreamArm, ...]:
        known = arms_named(self.methods)
        if part == "search":
            methods = {arm.method for arm in known}
            return tuple(arm for arm in SEARCHED if arm.method in methods)
        if part == "ablation":
            return (*(arm for arm in known if arm.method in (OURS, REKV)), *arms_named(self.ablations))
        return known

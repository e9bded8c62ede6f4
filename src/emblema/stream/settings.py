"""What a user sets on a stream, and what the ablations of Mosaic change."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import exp, inf
from typing import Any, Literal, get_args

from emblema.errors import StreamError

Positions = Literal["native", "packed"]
Drop = Literal["block", "oldest", "newest"]
Splitting = Literal["deferred", "eager"]
Direction = Literal["relaxing", "tightening"]
Guess = Literal["queries", "frames"]
Levels = Literal["both", "visual", "semantic"]
Scoring = Literal["pooled", "attention", "orders"]
Retrieval = Literal["frames", "clusters"]
Geometry = Literal["euclidean", "cosine"]
LARGEST: dict[Retrieval, int] = {"frames": 512, "clusters": 8}
"""Frames of a semantic cluster at most: where it is retrieved as a whole it has to fit into a budget."""


@dataclass(frozen=True, slots=True)
class AblationSettings:
    """Design choices of Mosaic, for ablations. The defaults are what measured best; see `docs/stream.md`.

    Attributes:
        batched: run a block of frames in one forward; else frame by frame. Holds for every method.
        representatives: show the centroids of clusters that were not retrieved.
        weighted: add the log of a cluster's number of rows to its centroid's logit.
        retrieve_while_encoding: let frames retrieve clusters too, not only questions.
        retrieval: retrieve single `frames`, or whole `clusters` in two stages (the paper).
        pool: frames, or as many keys of each head, that postings find before some are retrieved: so many times the
            budget. Up to twice as many are all compared.
        breadth: choose visual clusters until they hold this many times the budget.
        scoring: by what frames or clusters are chosen: the product of a `pooled` query with their mean keys (the paper,
            ReKV), the most `attention` that any query would give to one of their keys, or their places in all queries'
            `orders` (single frames alone). None: the method's own, which are orders for frames, attention for clusters,
            and pooled for ReKV.
        parts: runs of rows of a frame that have a mean key each; at most one for each row.
        prefetch: let layer l copy clusters for layer l + 1 on a thread; None: on devices with memory of their own.
        guess: prefetch by the layer's own `queries` against the next layer's centroids, or by the `frames` that it
            retrieved.
        levels: where clusters may grow too wide: on `both` levels, on the `visual` level (layers follow it), or on
            the `semantic` level (all frames are one visual cluster).
        splitting: cut a cluster that grew too wide while it is on the host when it is fetched (`deferred`) or at once
            (`eager`).
        tau_small, tau_large: variance allowed to a small and to a large cluster, as a share of its level's variance.
        scale: frames after which the threshold has moved by 63 % of the way (the paper's lambda).
        geometry: compare states, and take a cluster's variance, by their `euclidean` distance, or at length one
            (`cosine`).
        direction: `relaxing` lets large clusters be wider (Mosaic, equation 5), `tightening` small ones (its text).
        largest: frames in a semantic cluster, at most; None for 512, or 8 where clusters are retrieved.
        first: frames in the first partition.
        clusters: clusters of a level at most, when a block ends; old ones are merged where there are more. None for
            any number.
    """

    batched: bool = True
    representatives: bool = False
    weighted: bool = True
    retrieve_while_encoding: bool = True
    retrieval: Retrieval = "frames"
    pool: float = 4.0
    breadth: float = 3.0
    scoring: Scoring | None = None
    parts: int = 4
    prefetch: bool | None = None
    guess: Guess = "queries"
    levels: Levels = "both"
    splitting: Splitting = "deferred"
    tau_small: float = 0.07
    tau_large: float = 0.2
    scale: float = 8.0
    geometry: Geometry = "euclidean"
    direction: Direction = "tightening"
    largest: int | None = None
    first: int = 16
    clusters: int | None = 1024

    def __post_init__(self) -> None:
        _check_counts(self, {"first": 1, "parts": 1})
        if self.clusters is not None:
            _check_counts(self, {"clusters": 1})
        if self.largest is not None:
            _check_counts(self, {"largest": 2})
        choices = {
            "retrieval": Retrieval,
            "guess": Guess,
            "levels": Levels,
            "splitting": Splitting,
            "geometry": Geometry,
            "direction": Direction,
        }
        _check_choices(self, choices if self.scoring is None else {**choices, "scoring": Scoring})
        if self.scoring == ("orders" if self.retrieval == "clusters" else "pooled"):
            raise StreamError(f"scoring {self.scoring!r} does not go with the retrieval of {self.retrieval}")
        for name in ("pool", "breadth", "tau_small", "tau_large", "scale"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise StreamError(f"{name} is {value!r}: it must be a number above 0")
        if self.pool < 1:
            raise StreamError(f"pool is {self.pool!r}: it must be 1 or more")
        if self.tau_small > self.tau_large:
            raise StreamError("tau_small is above tau_large: swap them, and choose who gets which by direction")

    @property
    def summarised(self) -> bool:
        """Whether clusters have summaries on the device: where they are retrieved as a whole, or shown."""
        return self.retrieval == "clusters" or self.representatives

    @property
    def most(self) -> int:
        """Frames in a semantic cluster, at most."""
        return LARGEST[self.retrieval] if self.largest is None else self.largest

    def threshold(self, frames: int) -> float:
        """Return the variance allowed to a cluster of so many frames, as a share of its level's (Mosaic, eq. 5)."""
        nearest = exp(-frames / self.scale)
        relaxed = self.tau_large - (self.tau_large - self.tau_small) * nearest
        return relaxed if self.direction == "relaxing" else self.tau_large + self.tau_small - relaxed


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of one stream, for every method.

    Attributes:
        sinks: first frames of the stream, always visible (StreamingVLM); the turn's opening always is.
        window: latest frames, visible to the next frames and to questions.
        block: frames that are encoded together; each sees the memory as it was before the block.
        budget: frames retrieved in each layer; None retrieves everything.
        positions: `native` positions grow with the stream; `packed` moves visible frames next to one another, by exact
            relocation from the rows as first written, so that a stream of any length stays in the model's range.
        queue: frames that may wait to be encoded.
        drop: what to do with a frame that another thread pushes to a full queue: let it wait (`block`), drop the
            `oldest` that waits, or drop it (`newest`).
        skip: leave out frames that differ by less than this share from the last one kept; None keeps all.
        host_bytes: bytes of frames' rows and codes that memory holds, about; older ones go to the engine's folder.
            None holds all that came since the stream was opened or loaded.
        keep_seconds: frames that came longer before the latest one are forgotten; None forgets none.
        keep_bytes: the oldest frames are forgotten once rows and codes would take more, in memory and on disk together;
            None forgets none. Window and block stay.
        save_as: a name under which the stream saves itself to the engine's folder as blocks end; None if it does not. A
            stream that is loaded goes on under the name that it was loaded by.
        save_blocks, save_seconds: it does so when so many blocks, or frames of so many seconds, came since it last did,
            whichever is sooner; None for the one that does not count.
        ablation: design choices of the method.
    """

    sinks: int = 1
    window: int = 16
    block: int = 8
    budget: int | None = 64
    positions: Positions = "native"
    queue: int = 64
    drop: Drop = "block"
    skip: float | None = None
    host_bytes: int | None = None
    keep_seconds: float | None = None
    keep_bytes: int | None = None
    save_as: str | None = None
    save_blocks: int | None = 16
    save_seconds: float | None = None
    ablation: AblationSettings = field(default_factory=AblationSettings)

    def __post_init__(self) -> None:
        _check_counts(self, {"sinks": 0, "window": 0, "block": 1, "queue": 1})
        for name in ("budget", "host_bytes", "keep_bytes", "save_blocks"):
            if getattr(self, name) is not None:
                _check_counts(self, {name: 1})
        _check_choices(self, {"positions": Positions, "drop": Drop})
        if self.skip is not None and not (isinstance(self.skip, int | float) and 0 < self.skip < 1):
            raise StreamError(f"skip is {self.skip!r}: it must be a share between 0 and 1, or None")
        for name in ("keep_seconds", "save_seconds"):
            age = getattr(self, name)
            if age is not None and not (isinstance(age, int | float) and not isinstance(age, bool) and 0 < age < inf):
                raise StreamError(f"{name} is {age!r}: it must be a number of seconds above 0, or None")
        if self.save_as is not None and self.save_blocks is None and self.save_seconds is None:
            raise StreamError("save_as needs save_blocks or save_seconds: say how often the stream saves itself")
        if self.positions == "packed" and self.budget is None:
            raise StreamError("packed positions need a budget: what is seen has to have an end")

    def lines_together(self, frame_bytes: int) -> int | None:
        """Return how many frames of so many bytes memory gives up together; None if it never does."""
        if not self.releases:
            return None
        least = min(bound for bound in (self.host_bytes, self.keep_bytes, 2**40) if bound is not None)
        return min(64, max(1, least // (8 * frame_bytes)))

    @property
    def releases(self) -> bool:
        """Whether memory gives up frames."""
        return (self.host_bytes, self.keep_seconds, self.keep_bytes) != (None, None, None)

    def flat(self) -> dict[str, Any]:
        """Return all settings by name, those of the ablation among them; `change_settings` takes them back."""
        named = asdict(self)
        ablation = named.pop("ablation")
        return {**named, **ablation}


def change_settings(settings: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Return settings with some of them changed by name, those of the ablation too.

    Raises:
        StreamError: there is no setting of a name, or a value is not right.
    """
    own, inner = ({setting.name for setting in fields(kind)} for kind in (StreamSettings, AblationSettings))
    unknown = sorted(changes.keys() - own - inner)
    if unknown:
        raise StreamError(f"there is no setting {unknown[0]!r}: choose from {', '.join(sorted(own | inner))}")
    ablation = replace(
        changes.get("ablation", settings.ablation), **{name: changes[name] for name in changes.keys() & inner}
    )
    return replace(settings, **{**{name: changes[name] for name in changes.keys() & own}, "ablation": ablation})


def _check_counts(settings: object, least: Mapping[str, int]) -> None:
    for name, bound in least.items():
        value = getattr(settings, name)
        if type(value) is not int or value < bound:
            raise StreamError(f"{name} is {value!r}: it must be a whole number, {bound} or more")


def _check_choices(settings: object, choices: Mapping[str, Any]) -> None:
    for name, kind in choices.items():
        value, known = getattr(settings, name), get_args(kind)
        if value not in known:
            raise StreamError(f"{name} is {value!r}: choose {', '.join(known[:-1])} or {known[-1]}")

"""How a stream remembers: what is always seen, what is retrieved, and how clusters are kept in order."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import exp
from typing import Any, Literal, get_args

from emblema.errors import StreamError

Positions = Literal["native", "packed"]
Splitting = Literal["deferred", "eager"]
Direction = Literal["relaxing", "tightening"]
Guess = Literal["queries", "frames"]
Levels = Literal["both", "visual", "semantic"]
Scoring = Literal["pooled", "attention"]
Drop = Literal["block", "oldest", "newest"]


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Settings of one stream; those up to `drop` hold for every method.

    Attributes:
        sinks: first frames of the stream, seen for ever (StreamingVLM); the turn's opening always is.
        window: latest frames, seen by the next ones and by questions.
        block: frames that are encoded together and see the memory as it was when the first of them came.
        budget: frames retrieved in each layer; None retrieves everything that was ever seen.
        positions: `native` lets them grow with the stream; `packed` sets what is seen one behind the other, by exact
            relocation from rows as first written, so that a stream of any length stays in the model's range.
        batched: whether a block runs in one forward, or frame by frame; the rows are the same to rounding.
        queue: frames that may wait to be encoded.
        drop: what happens to a frame that another thread pushes to a full queue: it waits (`block`), the `oldest` that
            waits is dropped, or the `newest`, which is itself.
        representatives: whether centroids of clusters that were not retrieved are seen.
        weighted: whether a centroid counts for as many rows as it stands for (the log of their number on its logit).
        retrieve_while_encoding: whether frames retrieve clusters, beside window and representatives.
        breadth: visual clusters are chosen until they hold so many times the budget.
        scoring: what clusters are chosen by: the product of a `pooled` query with their mean keys (the paper's), or the
            most `attention` that any of the queries would give to one of their frames.
        parts: runs of rows that a frame's mean key is kept for, one by one; a frame of fewer rows has one for each.
        prefetch: whether layer l picks clusters for layer l + 1, copied on a thread meanwhile; None: where the device
            has memory of its own.
        guess: by what it picks them: its `queries` against the next layer's representatives, or the `frames` that it
            retrieved itself.
        levels: where clusters may grow too wide: on `both` levels, at the `visual` one alone, so that layers follow it,
            or at the `semantic` one alone, so that all frames are one visual cluster.
        splitting: what happens to a cluster that grew too wide while it is on the host: `deferred` until it is
            fetched for a question or a frame, or `eager`.
        tau_small, tau_large: width that a cluster may have when it is small and when it is large, as a share of the
            variance of all states of its layer.
        scale: frames after which the threshold has moved by 63 % of the way (the paper's lambda).
        direction: `relaxing` lets large clusters be wider (Mosaic's equation 5), `tightening` small ones (its text).
        largest: frames a cluster may have; one that is full counts as too wide.
        first: frames that the first partition is made of.
        waiting: frames a layer's buffer on the device may hold; beyond it the oldest becomes a cluster on the host.
    """

    sinks: int = 1
    window: int = 16
    block: int = 8
    budget: int | None = 64
    positions: Positions = "native"
    batched: bool = True
    queue: int = 64
    drop: Drop = "block"
    representatives: bool = True
    weighted: bool = True
    retrieve_while_encoding: bool = True
    breadth: float = 3.0
    scoring: Scoring = "attention"
    parts: int = 4
    prefetch: bool | None = None
    guess: Guess = "queries"
    levels: Levels = "both"
    splitting: Splitting = "deferred"
    tau_small: float = 0.07
    tau_large: float = 0.2
    scale: float = 8.0
    direction: Direction = "tightening"
    largest: int = 8
    first: int = 16
    waiting: int = 8

    def __post_init__(self) -> None:
        least = {"sinks": 0, "window": 0, "block": 1, "queue": 1, "largest": 2, "first": 1, "waiting": 0, "parts": 1}
        for name, bound in least.items():
            _whole(name, getattr(self, name), bound)
        if self.budget is not None:
            _whole("budget", self.budget, 1)
        for name, choices in (("positions", Positions), ("splitting", Splitting), ("direction", Direction)):
            _one_of(name, getattr(self, name), get_args(choices))
        _one_of("drop", self.drop, get_args(Drop))
        _one_of("levels", self.levels, get_args(Levels))
        _one_of("scoring", self.scoring, get_args(Scoring))
        _one_of("guess", self.guess, get_args(Guess))
        for name in ("breadth", "tau_small", "tau_large", "scale"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
                raise StreamError(f"{name} is {value!r}: it must be a number above 0")
        if self.tau_small > self.tau_large:
            raise StreamError("tau_small is above tau_large: swap them, and choose who gets which by direction")
        if self.positions == "packed" and self.budget is None:
            raise StreamError("packed positions need a budget: what is seen has to have an end")

    def threshold(self, frames: int) -> float:
        """The width allowed to a cluster of so many frames, as a share of its layer's variance (Mosaic, equation 5)."""
        nearest = exp(-frames / self.scale)
        relaxed = self.tau_large - (self.tau_large - self.tau_small) * nearest
        return relaxed if self.direction == "relaxing" else self.tau_large + self.tau_small - relaxed


def changed(settings: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Settings with some of them changed.

    Raises:
        StreamError: there is no setting of a name, or a value is not right.
    """
    known = {field.name for field in fields(StreamSettings)}
    unknown = sorted(changes.keys() - known)
    if unknown:
        raise StreamError(f"there is no setting {unknown[0]!r}: choose from {', '.join(sorted(known))}")
    return replace(settings, **changes)


def _whole(name: str, value: object, least: int) -> None:
    if type(value) is not int or value < least:
        raise StreamError(f"{name} is {value!r}: it must be a whole number, {least} or more")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise StreamError(f"{name} is {value!r}: choose {', '.join(choices[:-1])} or {choices[-1]}")

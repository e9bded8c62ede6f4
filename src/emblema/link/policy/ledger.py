"""What is known of every lane, by model and kind of content: one tenant's, as contents differ from tenant to tenant."""

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emblema.errors import StoreError
from emblema.link.policy.decisions import Lane
from emblema.link.policy.judgement import Verdict, unmeasured
from emblema.link.policy.policy import Policy
from emblema.link.policy.standing import KEPT, LaneStats, Sample, agreement_of, divergence_of

VERSION = 1
MOST = 4096
"""Standings in one file, at most."""

Name = tuple[str, str, Lane]


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane's standing, to be shown."""

    model: str
    kind: str
    lane: Lane
    open: bool
    kl: float
    agreement: float
    samples: int
    measured: int
    turns: int


class FidelityLog:
    """Standings by model, kind and lane, and each model's rank plateau. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._standings: dict[Name, LaneStats] = {}
        self._plateaus: dict[str, int] = {}

    def record(self, model: str, kind: str, lane: Lane, sample: Sample, policy: Policy) -> bool:
        """Take a measurement in; whether it closed or opened the lane."""
        with self._lock:
            standing = self._standings.get((model, kind, lane))
            if standing is None:
                start = LaneStats(not unmeasured(kind, lane, policy).open)
                standing = self._standings[model, kind, lane] = start
            return standing.add(sample, policy, dear=lane is Lane.SURVIVOR)

    def verdict(self, model: str, kind: str, lane: Lane, policy: Policy) -> Verdict:
        """Whether a lane may be taken."""
        with self._lock:
            standing = self._standings.get((model, kind, lane))
            return unmeasured(kind, lane, policy) if standing is None else standing.verdict(kind, lane, policy)

    def plateau(self, model: str) -> int | None:
        """The rank from which on a model's patches were measured not to gain."""
        with self._lock:
            return self._plateaus.get(model)

    def set_plateau(self, model: str, rank: int) -> None:
        """Keep a measured plateau."""
        with self._lock:
            self._plateaus[model] = rank

    def plateaus(self) -> dict[str, int]:
        """Every model's plateau."""
        with self._lock:
            return dict(self._plateaus)

    def lines(self) -> list[LaneReport]:
        """Everything that was measured, by model, kind and lane."""
        with self._lock:
            return [_line(name, one) for name, one in sorted(self._standings.items()) if one.samples]

    def to_json(self) -> dict[str, Any]:
        """The ledger as plain data."""
        with self._lock:
            standings = [
                {
                    "model": model,
                    "kind": kind,
                    "lane": str(lane),
                    "closed": one.closed,
                    "since": one.since,
                    "measured": one.measured,
                    "turns": one.turns,
                    "bounds": list(one.bounds),
                    "samples": [[sample.kl, sample.agrees] for sample in one.samples],
                }
                for (model, kind, lane), one in sorted(self._standings.items())
            ]
            return {"version": VERSION, "standings": standings[:MOST], "plateaus": dict(self._plateaus)}

    @classmethod
    def from_json(cls, data: Any) -> "FidelityLog":
        """A ledger from plain data.

        Raises:
            StoreError: it is no ledger, or one of another version.
        """
        try:
            if data["version"] != VERSION or len(data["standings"]) > MOST:
                raise ValueError("another version, or too long")
            ledger = cls()
            for one in data["standings"]:
                name = (_text(one["model"]), _text(one["kind"]), Lane(one["lane"]))
                ledger._standings[name] = _standing(one)
            ledger._plateaus = {_text(model): _count(rank, 1) for model, rank in dict(data["plateaus"]).items()}
            return ledger
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise StoreError(f"this is no ledger of measurements: {error}") from error


def _line(name: Name, one: LaneStats) -> LaneReport:
    samples = list(one.samples)
    mean, _ = divergence_of(samples)
    return LaneReport(*name, not one.closed, mean, agreement_of(samples), len(samples), one.measured, one.turns)


def _standing(one: Mapping[str, Any]) -> LaneStats:
    samples = [Sample(_number(kl), _flag(agrees)) for kl, agrees in one["samples"]]
    if len(samples) > KEPT or len(one["bounds"]) != 2:
        raise ValueError("too many samples, or malformed bounds")
    standing = LaneStats(_flag(one["closed"]))
    standing.samples.extend(samples)
    standing.since = min(_count(one["since"]), len(samples))
    standing.measured, standing.turns = _count(one["measured"]), _count(one["turns"])
    low, high = (None if bound is None else _number(bound) for bound in one["bounds"])
    standing.bounds = (low, high)
    return standing


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 128 or not value.isprintable():
        raise ValueError("a name is malformed")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("a flag is malformed")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ValueError("a number is malformed")
    return float(value)


def _count(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise ValueError("a count is malformed")
    return value

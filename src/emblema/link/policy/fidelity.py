"""What was measured of every lane, by model and kind of content, and the rule that closes and opens a lane.

A lane is closed when the measurements say with confidence that it breaks the bound, and opened when those made since
then say with confidence that it keeps it. In between it stays as it is, so that no single item changes it.

Survivors of a window are the most expensive to measure, as a comparison computes the whole window, and bad ones are
rare and very bad, which an interval of the mean does not see for long. Their lane is also closed where the measurements
without the worst of them break the bound. A lane that is closed again has to prove itself for longer.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from emblema.errors import EmblemaError, StoreError
from emblema.link.policy.margins import CONFIDENCE, DEFAULT, MarginSample, MarginStats, wilson_interval
from emblema.link.policy.policy import UNSURE, Lane, LaneVerdict, Policy, unmeasured

KEPT = 128
"""Measurements that count: the latest."""
RECENT = 64
"""Those of them that may close or open a lane, so that a lane that has changed is noticed in time."""
LEAST_TO_CLOSE = 4
LEAST_TO_OPEN = 8
VERSION = 1
"""Of the log's file."""
MOST_LANES = 4096
"""Lanes in one file, at most."""
UNSAVED = 4096
"""Changes that are remembered until they are written: the latest."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer's first token by a lane against re-prefill's: nats of divergence, and whether it is the same token."""

    kl: float
    agrees: bool

    @classmethod
    def of(cls, reference: ArrayLike, method: ArrayLike) -> Self:
        """Return the sample of logits [vocab] by re-prefill and by a lane; what is not finite agrees with nothing."""
        token = first_token(reference)
        return cls(divergence(reference, method), token >= 0 and token == first_token(method))


def first_token(logits: ArrayLike) -> int:
    """Return the likeliest token of logits [vocab]; -1 where they are not finite, as `divergence` has it."""
    values = np.asarray(logits)
    token = int(values.argmax())
    return token if math.isfinite(values[token]) else -1


def divergence(reference: ArrayLike, method: ArrayLike) -> float:
    """Return KL(reference || method) in nats, from logits [vocab]; never below zero.

    It is infinite where a logit of either is NaN or infinite, but for tokens of logit -inf, which are never said; also
    where the method never says a token that the reference does.

    Raises:
        EmblemaError: the two have different vocabularies.
    """
    left, right = np.asarray(reference, dtype=np.float64), np.asarray(method, dtype=np.float64)
    if left.shape != right.shape:
        raise EmblemaError(f"logits over {left.size} and over {right.size} tokens cannot be compared")
    # The largest is NaN where any is.
    if not (np.isfinite(left.max()) and np.isfinite(right.max())):
        return math.inf
    left, right = _log_softmax(left), _log_softmax(right)
    likely = np.exp(left)
    said = likely > 0
    return max(0.0, float(np.sum(likely[said] * (left[said] - right[said]))))


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)


@dataclass(slots=True)
class LaneStats:
    """One lane's measurements.

    Attributes:
        closed: whether the lane is not taken.
        samples: the latest measurements.
        since: how many of them were made since the lane was last closed or opened.
        measured: measurements ever made.
        turns: how often the lane was closed or opened.
        bounds: `max_kl` and `min_agreement` that `closed` was decided by.
    """

    closed: bool
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    since: int = 0
    measured: int = 0
    turns: int = 0
    bounds: tuple[float | None, float | None] = (None, None)

    def add(self, sample: Sample, policy: Policy, expensive: bool = False) -> bool:
        """Add a measurement; return whether it closed or opened the lane, which may be expensive to measure."""
        if self.bounds != _bounds(policy):
            # Another bound is judged by all that is known.
            self.bounds, self.since = _bounds(policy), len(self.samples)
        self.samples.append(sample)
        self.measured += 1
        self.since = min(self.since + 1, len(self.samples))
        recent = list(self.samples)[-min(self.since, RECENT) :]
        if self.closed:
            # Twice as many with each time that the lane turned before.
            needed = LEAST_TO_OPEN << min(self.turns if expensive else max(0, self.turns - 1), 8)
            turned = len(recent) >= min(RECENT, needed) and met(recent, policy)
        else:
            turned = broken(recent, policy) or (expensive and overspent(recent, policy))
        if turned:
            self.closed, self.since = not self.closed, 0
            self.turns += 1
        return turned

    def verdict(self, kind: str, lane: Lane, policy: Policy) -> LaneVerdict:
        """Return whether the lane may be taken under a policy, which may differ from the one it was closed by."""
        usual = unmeasured(kind, lane, policy)
        if policy.exact_only or not self.samples:
            return usual
        known = list(self.samples)
        if _bounds(policy) == self.bounds:
            open = not self.closed
        else:
            open = not broken(known, policy) if usual.open else met(known, policy)
        return LaneVerdict(open, f"measured {describe(known)}")

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as plain data."""
        return {
            "closed": self.closed,
            "since": self.since,
            "measured": self.measured,
            "turns": self.turns,
            "bounds": list(self.bounds),
            "samples": [[sample.kl if math.isfinite(sample.kl) else None, sample.agrees] for sample in self.samples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LaneStats":
        """Return the measurements of plain data; ValueError, TypeError or KeyError where it is malformed."""
        samples = [Sample(math.inf if kl is None else _number(kl), _flag(agrees)) for kl, agrees in data["samples"]]
        low, high = (None if bound is None else _number(bound) for bound in data["bounds"])
        if len(samples) > KEPT:
            raise ValueError("too many samples")
        since = min(_count(data["since"]), len(samples))
        kept = deque(samples, maxlen=KEPT)
        return cls(_flag(data["closed"]), kept, since, _count(data["measured"]), _count(data["turns"]), (low, high))


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What was measured of one lane, to be shown."""

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
    """One tenant's measurements by model, kind of content and lane, and each model's rank plateau. Thread-safe.

    Tenants have logs of their own, as their contents differ.

    Args:
        shared: whether others measure for the same tenant: changes are remembered until `forget`, so that `merge` can
            add them to what the others measured.
    """

    def __init__(self, *, shared: bool = False) -> None:
        self._lock = threading.Lock()
        # Changes that are written nowhere yet, with their numbers.
        self._unsaved: deque[tuple[int, Callable[[], object]]] | None = deque(maxlen=UNSAVED) if shared else None
        self._changes = 0
        self._lanes: dict[tuple[str, str, Lane], LaneStats] = {}
        self._plateaus: dict[str, int] = {}
        self._margins: dict[tuple[str, str], MarginStats] = {}

    def note_margin(self, model: str, kinds: Iterable[str], sample: MarginSample, *, check: bool = False) -> None:
        """Add the margin of an answer about some kinds of content; a check's stood and was compared."""
        with self._lock:
            for kind in kinds:
                self._change(partial(self._add_margin, model, kind, sample, check))

    def least_margin(self, model: str, kinds: Iterable[str]) -> float:
        """Return the margin that an answer about some kinds of content has to have: the largest of theirs."""
        with self._lock:
            stats = [self._margins.get((model, kind)) for kind in kinds]
            return max((DEFAULT if known is None else known.least() for known in stats), default=DEFAULT)

    def unsure_share(self, model: str) -> float:
        """Return the share of a model's latest answers after a second pass that were computed in full after all.

        It is the least that the measurements allow with confidence: once second passes are not taken any more, none
        tells better.
        """
        with self._lock:
            passes = [sample for (name, _), stats in self._margins.items() if name == model for sample in stats.passes]
            full = sum(sample.agrees is not None for sample in passes)
            least = wilson_interval(full, len(passes))[0] if passes else 0.0
            return (least * len(passes) + 10 * UNSURE) / (len(passes) + 10)

    def record(self, model: str, kind: str, lane: Lane, sample: Sample, policy: Policy) -> bool:
        """Add a measurement; return whether it closed or opened the lane."""
        with self._lock:
            return self._change(partial(self._add_sample, model, kind, lane, sample, policy))

    def verdict(self, model: str, kind: str, lane: Lane, policy: Policy) -> LaneVerdict:
        """Return whether a lane may be taken."""
        with self._lock:
            stats = self._lanes.get((model, kind, lane))
            return unmeasured(kind, lane, policy) if stats is None else stats.verdict(kind, lane, policy)

    def plateau(self, model: str) -> int | None:
        """Return the rank from which on a model's patches were measured not to gain, if known."""
        return self.plateaus().get(model)

    def set_plateau(self, model: str, rank: int) -> None:
        """Keep a measured plateau."""
        with self._lock:
            self._change(partial(self._add_plateau, model, rank))

    def plateaus(self) -> dict[str, int]:
        """Return every model's plateau."""
        with self._lock:
            return dict(self._plateaus)

    def reports(self) -> list[LaneReport]:
        """Return what was measured, by model, kind and lane."""
        with self._lock:
            return [_report(*name, stats) for name, stats in sorted(self._lanes.items()) if stats.samples]

    @property
    def unsaved(self) -> bool:
        """Whether there are changes to be merged and written."""
        return bool(self._unsaved)

    def merge(self, stored: Any | None) -> int:
        """Take the log that others wrote in place of this one, with this one's unsaved changes added to it.

        Args:
            stored: plain data as `to_json` gives it; None for an empty log.

        Returns:
            The number of the last change that was added, to be forgotten once the outcome is written.

        Raises:
            StoreError: it is not a log.
        """
        others = FidelityLog() if stored is None else FidelityLog.from_json(stored)
        with self._lock:
            self._lanes, self._plateaus, self._margins = others._lanes, others._plateaus, others._margins
            for _, change in self._unsaved or ():
                change()
            return self._changes

    def forget(self, last: int) -> None:
        """Forget the changes up to a number, which are written now."""
        with self._lock:
            while self._unsaved and self._unsaved[0][0] <= last:
                self._unsaved.popleft()

    def _change(self, change: Callable[[], Outcome]) -> Outcome:
        self._changes += 1
        if self._unsaved is not None:
            self._unsaved.append((self._changes, change))
        return change()

    def _add_sample(self, model: str, kind: str, lane: Lane, sample: Sample, policy: Policy) -> bool:
        stats = self._lanes.get((model, kind, lane))
        if stats is None:
            stats = self._lanes[model, kind, lane] = LaneStats(not unmeasured(kind, lane, policy).open)
        return stats.add(sample, policy, expensive=lane is Lane.SURVIVOR)

    def _add_margin(self, model: str, kind: str, sample: MarginSample, check: bool) -> None:
        stats = self._margins.setdefault((model, kind), MarginStats())
        (stats.checks if check else stats.passes).append(sample)

    def _add_plateau(self, model: str, rank: int) -> None:
        self._plateaus[model] = rank

    def to_json(self) -> dict[str, Any]:
        """Return the log as plain data."""
        with self._lock:
            lanes = [
                {"model": model, "kind": kind, "lane": str(lane), **stats.to_json()}
                for (model, kind, lane), stats in sorted(self._lanes.items())
            ]
            margins = [
                {"model": model, "kind": kind, **stats.to_json()}
                for (model, kind), stats in sorted(self._margins.items())
            ]
            held = {"margins": margins[:MOST_LANES]} if margins else {}
            return {"version": VERSION, "standings": lanes[:MOST_LANES], "plateaus": dict(self._plateaus), **held}

    @classmethod
    def from_json(cls, data: Any) -> "FidelityLog":
        """Return the log of plain data.

        Raises:
            StoreError: it is not a log, or one of another version.
        """
        try:
            lanes = len(data["standings"]) + len(data.get("margins", []))
            if data["version"] != VERSION or lanes > 2 * MOST_LANES:
                raise ValueError("another version, or too long")
            log = cls()
            for lane in data["standings"]:
                name = (_text(lane["model"]), _text(lane["kind"]), Lane(lane["lane"]))
                log._lanes[name] = LaneStats.from_json(lane)
            for margins in data.get("margins", []):
                log._margins[_text(margins["model"]), _text(margins["kind"])] = MarginStats.from_json(margins)
            log._plateaus = {_text(model): _count(rank, 1) for model, rank in dict(data["plateaus"]).items()}
            return log
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise StoreError(f"this is no log of measured lanes: {error}") from error


def broken(samples: Sequence[Sample], policy: Policy) -> bool:
    """Return whether the samples say with confidence that a bound is broken; never from one item alone."""
    if len(samples) < LEAST_TO_CLOSE:
        return False
    mean, error = divergence_of(samples)
    endless = sum(math.isinf(sample.kl) for sample in samples) >= 2
    if policy.max_kl is not None and (endless or mean - CONFIDENCE * error > policy.max_kl):
        return True
    wrong = sum(not sample.agrees for sample in samples)
    return policy.min_agreement is not None and wrong >= 2 and _most_agreeing(samples) < policy.min_agreement


def overspent(samples: Sequence[Sample], policy: Policy) -> bool:
    """Return whether the samples break a bound even without the worst, counted as `LEAST_TO_CLOSE` at least."""
    losses, count = sorted(sample.kl for sample in samples)[:-1], max(len(samples), LEAST_TO_CLOSE)
    if policy.max_kl is not None and math.fsum(losses) > policy.max_kl * count:
        return True
    wrong = sum(not sample.agrees for sample in samples) - 1
    return policy.min_agreement is not None and 0 < wrong > (1 - policy.min_agreement) * count


def met(samples: Sequence[Sample], policy: Policy) -> bool:
    """Return whether the samples say with confidence that the bounds are kept.

    An agreement near 1 would take hundreds of items to prove: it is enough that the observed share keeps the bound,
    over as many items as would show a failure more likely than not if it did not, `RECENT` at most.
    """
    if len(samples) < LEAST_TO_OPEN:
        return False
    mean, error = divergence_of(samples)
    if policy.max_kl is not None and mean + CONFIDENCE * error > policy.max_kl:
        return False
    if policy.min_agreement is None:
        return True
    needed = math.ceil(math.log(0.5) / math.log(policy.min_agreement)) if 0 < policy.min_agreement < 1 else 1
    return len(samples) >= min(RECENT, needed) and agreement_of(samples) >= policy.min_agreement


def divergence_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the mean divergence and its standard error, in nats; both are infinite where any sample is."""
    values = [sample.kl for sample in samples]
    mean = math.fsum(values) / len(values)
    if len(values) < 2 or math.isinf(mean):
        return mean, math.inf
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))


def agreement_of(samples: Sequence[Sample]) -> float:
    """Return the share of first tokens that are re-prefill's."""
    return sum(sample.agrees for sample in samples) / len(samples)


def describe(samples: Sequence[Sample]) -> str:
    """Return the samples in a few words."""
    mean, _ = divergence_of(samples)
    return f"{mean:.2g} nats, {agreement_of(samples):.0%} agreement over {len(samples)}"


def _bounds(policy: Policy) -> tuple[float | None, float | None]:
    return policy.max_kl, policy.min_agreement


def _most_agreeing(samples: Sequence[Sample]) -> float:
    """Return the upper limit of the interval of the agreement."""
    return wilson_interval(sum(sample.agrees for sample in samples), len(samples))[1]


def _report(model: str, kind: str, lane: Lane, stats: LaneStats) -> LaneReport:
    samples = list(stats.samples)
    mean, agreement = divergence_of(samples)[0], agreement_of(samples)
    return LaneReport(model, kind, lane, not stats.closed, mean, agreement, len(samples), stats.measured, stats.turns)


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

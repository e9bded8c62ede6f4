"""What was measured of every lane, by model and kind of content, and the rules that close and open a lane.

An answer over linked rows stands if it is sure enough; how sure that has to be is the lane's certificate. Before there
is one, answers stand from `PROVISIONAL` on. A lane is closed, and its certificate taken back, when those that stood say
that it breaks a bound. It opens when a certificate is found in what was measured since then.

Rows of a window that has changed have no certificate: an answer over them is not computed in full for want of a margin.
Their lanes are closed when the measurements say with confidence that a bound is broken, and opened when those made
since then say with confidence that it is kept. Survivors are the most expensive to measure, as a comparison computes
the whole window, and bad ones are rare and very bad, which an interval of the mean does not see for long. Their lane is
also closed where the measurements without the worst of them break the bound, and has to prove itself for longer.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from emblema.errors import EmblemaError, StoreError
from emblema.link.lanes import TAKEN, Lane, LaneVerdict
from emblema.link.policy.certificate import CONFIDENCE, Bounds, Certificate, Sample, wilson_interval
from emblema.link.policy.expectations import LATEST, draw_unsure_share
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.second_pass import margin_of

PROVISIONAL = 0.5
"""The margin from which on an answer over linked rows stands where nothing was certified."""
KEPT = 128
"""Measurements of what stood that count: the latest."""
COMPARED = 4096
"""Comparisons that a certificate is found in: the latest."""
RECENT = 64
"""Measurements that may close or open a lane, so that a lane that has changed is noticed in time."""
LEAST_TO_CLOSE = 4
LEAST_TO_OPEN = 8
VERSION = 2
"""Of the log's file."""
MOST_LANES = 1024
"""Lanes in one file, at most."""
UNSAVED = 4096
"""Changes that are remembered until they are written: the latest."""
REFUSED = 2.0
"""A margin that no answer has."""

Outcome = TypeVar("Outcome")


def compare(reference: ArrayLike, method: ArrayLike) -> Sample:
    """Return the sample of logits [vocab] by re-prefill and by a lane; what is not finite agrees with nothing."""
    token = first_token(reference)
    agrees = token >= 0 and token == first_token(method)
    return Sample(divergence(reference, method), agrees, margin_of(torch.as_tensor(method)))


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
        samples: the latest measurements of answers that stood.
        since: how many of them were made since the lane was last closed or opened.
        measured: measurements ever made.
        turns: how often the lane was closed or opened.
        bounds: `alpha` and `max_kl` that `closed` was decided by.
        compared: the latest comparisons since the certificate was last taken back, answers that did not stand included.
        certificate: what they show.
        rejected: of the latest answers, whether they did not stand.
    """

    closed: bool
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    since: int = 0
    measured: int = 0
    turns: int = 0
    bounds: tuple[float | None, float | None] = (None, None)
    compared: deque[Sample] = field(default_factory=lambda: deque(maxlen=COMPARED))
    certificate: Certificate = field(default_factory=Certificate)
    rejected: deque[bool] = field(default_factory=lambda: deque(maxlen=KEPT))

    def add(self, sample: Sample, policy: Policy, lane: Lane, *, accepted: bool = True) -> bool:
        """Add a measurement; return whether it closed or opened the lane.

        Args:
            sample: the measurement.
            policy: the bounds.
            lane: whose it is.
            accepted: whether the answer stood, or would have in a trial.
        """
        self.measured += 1
        if self.bounds != _bounds(policy):
            # Another bound is judged by all that is known.
            self.bounds, self.since = _bounds(policy), len(self.samples)
            # What earlier looks spent of the allowed error stays spent.
            self.certificate = Certificate(looks=self.certificate.looks)
        turned = self._judge(sample, policy) if lane in TAKEN else False
        if not accepted:
            return turned
        self.samples.append(sample)
        self.since = min(self.since + 1, len(self.samples))
        recent = list(self.samples)[-min(self.since, RECENT) :]
        if not turned and self._turns(recent, policy, lane):
            self._turn()
            turned = True
            if self.closed:
                self.compared.clear()
        return turned

    def _judge(self, sample: Sample, policy: Policy) -> bool:
        """Look for a certificate in a comparison and those before it; return whether one opened the lane."""
        self.compared.append(sample)
        bounds = Bounds(policy.alpha, policy.max_kl, policy.delta)
        if not self.certificate.look(self.compared, bounds) or not self.closed:
            return False
        self._turn()
        return True

    def _turns(self, recent: Sequence[Sample], policy: Policy, lane: Lane) -> bool:
        if lane in TAKEN:
            return not self.closed and (
                self.certificate.observe(recent[-1].agrees, policy.alpha) or broken(recent, policy)
            )
        if self.closed:
            # Twice as many with each time that the lane turned before.
            needed = LEAST_TO_OPEN << min(self.turns if lane is Lane.SURVIVOR else max(0, self.turns - 1), 8)
            return len(recent) >= min(RECENT, needed) and met(recent, policy)
        return broken(recent, policy) or (lane is Lane.SURVIVOR and overspent(recent, policy))

    def _turn(self) -> None:
        self.closed, self.since = not self.closed, 0
        self.turns += 1
        if self.closed:
            self.certificate = Certificate()

    def verdict(self, policy: Policy, lane: Lane) -> LaneVerdict:
        """Return whether the lane may be taken under a policy, which may differ from the one it was closed by."""
        usual = unmeasured(policy)
        if policy.exact_only or not (self.samples or self.compared):
            return usual
        known = list(self.samples) or list(self.compared)
        open = not self.closed if _bounds(policy) == self.bounds else not broken(known, policy)
        return LaneVerdict(open, f"measured {describe(known)}")

    def least_margin(self, policy: Policy) -> float:
        """Return the margin that an answer has to have to stand."""
        if self.closed and _bounds(policy) == self.bounds:
            return REFUSED
        known = self.certificate.margin if _bounds(policy) == self.bounds else None
        return PROVISIONAL if known is None else known

    def to_json(self) -> dict[str, Any]:
        """Return the measurements as plain data."""
        return {
            "closed": self.closed,
            "since": self.since,
            "measured": self.measured,
            "turns": self.turns,
            "bounds": list(self.bounds),
            "samples": [_plain(sample) for sample in self.samples],
            "compared": [_plain(sample) for sample in self.compared],
            "certificate": self.certificate.to_json(),
            "rejected": list(self.rejected),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LaneStats":
        """Return the measurements of plain data; ValueError, TypeError or KeyError where it is malformed."""
        samples, compared = ([_sample(*each) for each in data[name]] for name in ("samples", "compared"))
        low, high = (None if bound is None else _number(bound) for bound in data["bounds"])
        rejected = [_flag(each) for each in data["rejected"]]
        if len(samples) > KEPT or len(compared) > COMPARED or len(rejected) > KEPT:
            raise ValueError("too many samples")
        return cls(
            _flag(data["closed"]),
            deque(samples, maxlen=KEPT),
            min(_count(data["since"]), len(samples)),
            _count(data["measured"]),
            _count(data["turns"]),
            (low, high),
            deque(compared, maxlen=COMPARED),
            Certificate.from_json(data["certificate"]),
            deque(rejected, maxlen=KEPT),
        )


@dataclass(frozen=True, slots=True)
class LaneReport:
    """What was measured of one lane, to be shown.

    Attributes:
        model, kind, lane: whose it is.
        open: whether it may be taken.
        kl, agreement: of the latest answers that stood.
        samples: how many these are.
        measured: measurements ever made.
        turns: how often it was closed or opened.
        margin: from which on answers were shown to keep the bounds; None before that was shown.
        compared: comparisons that it was looked for in.
        rejected: share of the latest answers that did not stand.
    """

    model: str
    kind: str
    lane: Lane
    open: bool
    kl: float
    agreement: float
    samples: int
    measured: int
    turns: int
    margin: float | None = None
    compared: int = 0
    rejected: float = 0.0


def unmeasured(policy: Policy) -> LaneVerdict:
    """Return the verdict on a lane that was not measured."""
    if policy.exact_only:
        return LaneVerdict(False, "the bound takes exact rows only")
    return LaneVerdict(True, "not measured yet")


@dataclass(frozen=True, slots=True)
class MeasuredLanes:
    """What was measured of one model's lanes, as `auto` asks it; by default, nothing.

    Attributes:
        verdict: returns whether a lane may be taken for a kind of content, under a policy.
        least_margin: returns the margin that an answer over some kinds and lanes has to have to stand, under a policy.
        plateau: rank from which on the model's patches were measured not to gain; None where that is not known.
    """

    verdict: Callable[[str, Lane, Policy], LaneVerdict] = lambda kind, lane, policy: unmeasured(policy)
    least_margin: Callable[[Iterable[tuple[str, Lane]], Policy], float] = lambda lanes, policy: PROVISIONAL
    plateau: int | None = None


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

    def measured(self, model: str) -> MeasuredLanes:
        """Return what was measured of a model's lanes, as it is whenever it is asked."""
        return MeasuredLanes(partial(self.verdict, model), partial(self.least_margin, model), self.plateau(model))

    def least_margin(self, model: str, lanes: Iterable[tuple[str, Lane]], policy: Policy) -> float:
        """Return the margin that an answer over some kinds and lanes has to have to stand: the largest of theirs."""
        with self._lock:
            stats = [self._lanes.get((model, *lane)) for lane in lanes]
            return max((PROVISIONAL if known is None else known.least_margin(policy) for known in stats), default=0.0)

    def is_certified(self, model: str, lanes: Iterable[tuple[str, Lane]]) -> bool:
        """Return whether all of some kinds and lanes have a certificate."""
        with self._lock:
            stats = [self._lanes.get((model, *lane)) for lane in lanes]
            return all(known is not None and known.certificate.margin is not None for known in stats)

    def note_accepted(self, model: str, lanes: Iterable[tuple[str, Lane]], accepted: bool, policy: Policy) -> None:
        """Note whether an answer over some kinds and lanes stood."""
        with self._lock:
            for kind, lane in lanes:
                self._change(partial(self._add_accepted, model, kind, lane, accepted, policy))

    def unsure_share(self, model: str, prompt: Prompt) -> float:
        """Draw the share of a model's answers after a second pass that are computed in full after all."""
        with self._lock:
            rejected = [
                each
                for (name, _, lane), stats in self._lanes.items()
                if name == model and lane is Lane.QUERY
                for each in list(stats.rejected)[-LATEST:]
            ]
            return draw_unsure_share(rejected, prompt)

    def record(
        self, model: str, kind: str, lane: Lane, sample: Sample, policy: Policy, *, accepted: bool = True
    ) -> bool:
        """Add a measurement; return whether it closed or opened the lane. See `LaneStats.add`."""
        with self._lock:
            return self._change(partial(self._add_sample, model, kind, lane, sample, policy, accepted))

    def verdict(self, model: str, kind: str, lane: Lane, policy: Policy) -> LaneVerdict:
        """Return whether a lane may be taken."""
        with self._lock:
            stats = self._lanes.get((model, kind, lane))
            return unmeasured(policy) if stats is None else stats.verdict(policy, lane)

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
            return [_report(*name, stats) for name, stats in sorted(self._lanes.items()) if stats.measured]

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
            self._lanes, self._plateaus = others._lanes, others._plateaus
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

    def _stats(self, model: str, kind: str, lane: Lane, policy: Policy) -> LaneStats:
        return self._lanes.setdefault(
            (model, kind, lane), LaneStats(not unmeasured(policy).open, bounds=_bounds(policy))
        )

    def _add_sample(self, model: str, kind: str, lane: Lane, sample: Sample, policy: Policy, accepted: bool) -> bool:
        return self._stats(model, kind, lane, policy).add(sample, policy, lane, accepted=accepted)

    def _add_accepted(self, model: str, kind: str, lane: Lane, accepted: bool, policy: Policy) -> None:
        self._stats(model, kind, lane, policy).rejected.append(not accepted)

    def _add_plateau(self, model: str, rank: int) -> None:
        self._plateaus[model] = rank

    def to_json(self) -> dict[str, Any]:
        """Return the log as plain data."""
        with self._lock:
            lanes = [
                {"model": model, "kind": kind, "lane": str(lane), **stats.to_json()}
                for (model, kind, lane), stats in sorted(self._lanes.items())
            ]
            return {"version": VERSION, "lanes": lanes[:MOST_LANES], "plateaus": dict(self._plateaus)}

    @classmethod
    def from_json(cls, data: Any) -> "FidelityLog":
        """Return the log of plain data.

        Raises:
            StoreError: it is not a log, or one of another version.
        """
        try:
            if data["version"] != VERSION or len(data["lanes"]) > MOST_LANES:
                raise ValueError("another version, or too long")
            log = cls()
            for lane in data["lanes"]:
                name = (_text(lane["model"]), _text(lane["kind"]), Lane(lane["lane"]))
                log._lanes[name] = LaneStats.from_json(lane)
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
    return policy.alpha is not None and wrong >= 2 and _most_agreeing(samples) < 1 - policy.alpha


def overspent(samples: Sequence[Sample], policy: Policy) -> bool:
    """Return whether the samples break a bound even without the worst, counted as `LEAST_TO_CLOSE` at least."""
    losses, count = sorted(sample.kl for sample in samples)[:-1], max(len(samples), LEAST_TO_CLOSE)
    if policy.max_kl is not None and math.fsum(losses) > policy.max_kl * count:
        return True
    wrong = sum(not sample.agrees for sample in samples) - 1
    return policy.alpha is not None and 0 < wrong > policy.alpha * count


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
    if policy.alpha is None:
        return True
    needed = math.ceil(math.log(0.5) / math.log1p(-policy.alpha)) if 0 < policy.alpha < 1 else 1
    return len(samples) >= min(RECENT, needed) and agreement_of(samples) >= 1 - policy.alpha


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
    return policy.alpha, policy.max_kl


def _most_agreeing(samples: Sequence[Sample]) -> float:
    """Return the upper limit of the interval of the agreement."""
    return wilson_interval(sum(sample.agrees for sample in samples), len(samples))[1]


def _report(model: str, kind: str, lane: Lane, stats: LaneStats) -> LaneReport:
    samples = list(stats.samples) or list(stats.compared)
    mean, agreement = (divergence_of(samples)[0], agreement_of(samples)) if samples else (0.0, 1.0)
    rejected = sum(stats.rejected) / len(stats.rejected) if stats.rejected else 0.0
    certified, compared = stats.certificate.margin, len(stats.compared)
    counts = (len(samples), stats.measured, stats.turns)
    return LaneReport(model, kind, lane, not stats.closed, mean, agreement, *counts, certified, compared, rejected)


def _plain(sample: Sample) -> list[float | bool | None]:
    return [sample.kl if math.isfinite(sample.kl) else None, sample.agrees, round(sample.margin, 6)]


def _sample(kl: Any, agrees: Any, margin: Any) -> Sample:
    if _number(margin) > 1:
        raise ValueError("a margin is malformed")
    return Sample(math.inf if kl is None else _number(kl), _flag(agrees), _number(margin))


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

"""The measurements of one lane, and the rules that close and open it.

An answer over linked rows stands if it is sure enough; how sure that has to be is the lane's certificate. Before there
is one, answers stand from `PROVISIONAL` on. A lane is closed, and its certificate taken back, when those that stood say
that it breaks a bound. It opens when a certificate is found in what was measured since then.

Rows of a window that has changed have no certificate: an answer over them is not computed in full for want of a margin.
Their lanes are closed when the measurements say with confidence that a bound is broken, and opened when those made
since then say with confidence that it is kept. Rows kept after a slide cost most to measure, as a comparison computes
the whole window, and bad ones are rare and very bad, which an interval of the mean does not see for long. Their lane is
also closed where the measurements without the worst of them break the bound, and has to prove itself for longer.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emblema.link.lanes import TAKEN, Lane, LaneVerdict
from emblema.link.policy.certificate import CONFIDENCE, PROVISIONAL, Bounds, Certificate, wilson_interval
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample, agreement_of, describe, divergence_of

KEPT = 128
"""Measurements of what stood that count: the latest."""
COMPARED = 4096
"""Comparisons that a certificate is found in: the latest."""
RECENT = 64
"""Measurements that may close or open a lane, so that a lane that has changed is noticed in time."""
LEAST_TO_CLOSE = 4
LEAST_TO_OPEN = 8
REFUSED = 2.0
"""A margin that no answer has."""


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

    @classmethod
    def begun(cls, policy: Policy) -> "LaneStats":
        """Return the measurements of a lane that has none."""
        return cls(policy.exact_only, bounds=_bounds(policy))

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
                self.certificate.observe(recent[-1].agrees, policy.alpha) or breaks_bounds(recent, policy)
            )
        if self.closed:
            # Twice as many with each time that the lane turned before.
            needed = LEAST_TO_OPEN << min(self.turns if lane is Lane.SURVIVOR else max(0, self.turns - 1), 8)
            return len(recent) >= min(RECENT, needed) and keeps_bounds(recent, policy)
        return breaks_bounds(recent, policy) or (lane is Lane.SURVIVOR and breaks_bounds_without_worst(recent, policy))

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
        open = not self.closed if _bounds(policy) == self.bounds else not breaks_bounds(known, policy)
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
            min(read_count(data["since"]), len(samples)),
            read_count(data["measured"]),
            read_count(data["turns"]),
            (low, high),
            deque(compared, maxlen=COMPARED),
            Certificate.from_json(data["certificate"]),
            deque(rejected, maxlen=KEPT),
        )

    def report(self, model: str, kind: str, lane: Lane) -> LaneReport:
        """Return what was measured, to be shown."""
        samples = list(self.samples) or list(self.compared)
        mean, agreement = (divergence_of(samples)[0], agreement_of(samples)) if samples else (0.0, 1.0)
        return LaneReport(
            model,
            kind,
            lane,
            not self.closed,
            mean,
            agreement,
            samples=len(samples),
            measured=self.measured,
            turns=self.turns,
            margin=self.certificate.margin,
            compared=len(self.compared),
            rejected=sum(self.rejected) / len(self.rejected) if self.rejected else 0.0,
        )


def unmeasured(policy: Policy) -> LaneVerdict:
    """Return the verdict on a lane that was not measured."""
    if policy.exact_only:
        return LaneVerdict(False, "the bound takes exact rows only")
    return LaneVerdict(True, "not measured yet")


def breaks_bounds(samples: Sequence[Sample], policy: Policy) -> bool:
    """Return whether the samples say with confidence that a bound is broken; never from one item alone."""
    if len(samples) < LEAST_TO_CLOSE:
        return False
    mean, error = divergence_of(samples)
    endless = sum(math.isinf(sample.kl) for sample in samples) >= 2
    if policy.max_kl is not None and (endless or mean - CONFIDENCE * error > policy.max_kl):
        return True
    wrong = sum(not sample.agrees for sample in samples)
    return policy.alpha is not None and wrong >= 2 and _most_agreeing(samples) < 1 - policy.alpha


def breaks_bounds_without_worst(samples: Sequence[Sample], policy: Policy) -> bool:
    """Return whether the samples break a bound even without the worst, counted as `LEAST_TO_CLOSE` at least."""
    losses, count = sorted(sample.kl for sample in samples)[:-1], max(len(samples), LEAST_TO_CLOSE)
    if policy.max_kl is not None and math.fsum(losses) > policy.max_kl * count:
        return True
    wrong = sum(not sample.agrees for sample in samples) - 1
    return policy.alpha is not None and 0 < wrong > policy.alpha * count


def keeps_bounds(samples: Sequence[Sample], policy: Policy) -> bool:
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


def _bounds(policy: Policy) -> tuple[float | None, float | None]:
    return policy.alpha, policy.max_kl


def _most_agreeing(samples: Sequence[Sample]) -> float:
    """Return the upper limit of the interval of the agreement."""
    return wilson_interval(sum(sample.agrees for sample in samples), len(samples))[1]


def _plain(sample: Sample) -> list[float | bool | None]:
    return [sample.kl if math.isfinite(sample.kl) else None, sample.agrees, round(sample.margin, 6)]


def _sample(kl: Any, agrees: Any, margin: Any) -> Sample:
    if _number(margin) > 1:
        raise ValueError("a margin is malformed")
    return Sample(math.inf if kl is None else _number(kl), _flag(agrees), _number(margin))


def read_text(value: Any) -> str:
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


def read_count(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise ValueError("a count is malformed")
    return value

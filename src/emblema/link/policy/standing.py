"""What was measured of one lane on one model and kind of content, and the rule that closes and opens it.

A lane is closed when the measurements say with confidence that it breaks the bound, and opened when those made since
then say with confidence that it keeps it. In between it stays as it is, so that no single item turns it over.

Survivors of a window are the dearest to measure, as a comparison computes the whole window, and bad ones are rare and
very bad, which an interval of the mean does not see for long. Their lane is also closed where the measurements without
the worst of them break the bound. A lane that is closed again has to prove itself for longer.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from emblema.link.policy.decisions import Lane
from emblema.link.policy.judgement import Verdict, unmeasured
from emblema.link.policy.policy import Policy

KEPT = 128
"""Measurements that count: the latest."""
RECENT = 64
"""Of them those that may close or open a lane, so that one that has become better, or worse, is told in time."""
LEAST_TO_CLOSE = 4
LEAST_TO_OPEN = 8
CONFIDENCE = 1.645
"""Standard errors of a one-sided interval of 95 %."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer's first token by a lane against re-prefill's: nats of divergence, and whether it is the same token."""

    kl: float
    agrees: bool


@dataclass(slots=True)
class LaneStats:
    """One lane's measurements.

    Attributes:
        closed: whether the lane is not taken.
        samples: the latest measurements.
        since: how many of them were made since the lane was closed or opened last.
        measured: measurements ever made.
        turns: how often the lane was closed or opened.
        bounds: `max_kl` and `min_agreement` that `closed` was judged by.
    """

    closed: bool
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    since: int = 0
    measured: int = 0
    turns: int = 0
    bounds: tuple[float | None, float | None] = (None, None)

    def add(self, sample: Sample, policy: Policy, dear: bool = False) -> bool:
        """Take a measurement in, of a lane that may be dear to measure; whether it closed or opened the lane."""
        if self.bounds != _bounds(policy):
            # Judged anew, by all that is known.
            self.bounds, self.since = _bounds(policy), len(self.samples)
        self.samples.append(sample)
        self.measured += 1
        self.since = min(self.since + 1, len(self.samples))
        recent = list(self.samples)[-min(self.since, RECENT) :]
        if self.closed:
            # Twice as many with each time that the lane turned before.
            needed = LEAST_TO_OPEN << min(self.turns if dear else max(0, self.turns - 1), 8)
            turned = len(recent) >= min(RECENT, needed) and met(recent, policy)
        else:
            turned = broken(recent, policy) or (dear and overspent(recent, policy))
        if turned:
            self.closed, self.since = not self.closed, 0
            self.turns += 1
        return turned

    def verdict(self, kind: str, lane: Lane, policy: Policy) -> Verdict:
        """Whether the lane may be taken under a policy, which may be another than it was closed or opened by."""
        usual = unmeasured(kind, lane, policy)
        if policy.exact_only or not self.samples:
            return usual
        known = list(self.samples)
        if _bounds(policy) == self.bounds:
            open = not self.closed
        else:
            open = not broken(known, policy) if usual.open else met(known, policy)
        return Verdict(open, f"measured {describe(known)}")


def _bounds(policy: Policy) -> tuple[float | None, float | None]:
    return policy.max_kl, policy.min_agreement


def broken(samples: Sequence[Sample], policy: Policy) -> bool:
    """Whether the samples say with confidence that a bound is broken; never one item alone."""
    if len(samples) < LEAST_TO_CLOSE:
        return False
    mean, error = divergence_of(samples)
    if policy.max_kl is not None and mean - CONFIDENCE * error > policy.max_kl:
        return True
    wrong = sum(not one.agrees for one in samples)
    return policy.min_agreement is not None and wrong >= 2 and _wilson(samples, +1) < policy.min_agreement


def overspent(samples: Sequence[Sample], policy: Policy) -> bool:
    """Whether the samples break a bound even without the worst of them, few being counted as `LEAST_TO_CLOSE`."""
    losses, count = sorted(one.kl for one in samples)[:-1], max(len(samples), LEAST_TO_CLOSE)
    if policy.max_kl is not None and math.fsum(losses) > policy.max_kl * count:
        return True
    wrong = sum(not one.agrees for one in samples) - 1
    return policy.min_agreement is not None and 0 < wrong > (1 - policy.min_agreement) * count


def met(samples: Sequence[Sample], policy: Policy) -> bool:
    """Whether the samples say with confidence that the bounds are kept.

    An agreement near 1 would take hundreds of items to prove: it is enough that the share observed keeps the bound,
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
    """The mean divergence and its standard error."""
    values = [one.kl for one in samples]
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.inf
    spread = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, math.sqrt(spread / len(values))


def agreement_of(samples: Sequence[Sample]) -> float:
    """The share of first tokens that are re-prefill's."""
    return sum(one.agrees for one in samples) / len(samples)


def describe(samples: Sequence[Sample]) -> str:
    """The samples in a few words."""
    mean, _ = divergence_of(samples)
    return f"{mean:.2g} nats, {agreement_of(samples):.0%} agreement over {len(samples)}"


def _wilson(samples: Sequence[Sample], side: int) -> float:
    """A limit of Wilson's interval of the agreement: the upper one for side +1, the lower for -1."""
    count, share, z = len(samples), agreement_of(samples), CONFIDENCE
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle + side * spread) / (1 + z * z / count)

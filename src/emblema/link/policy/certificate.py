"""How sure an answer has to be to stand: a bound on how many of those that stand differ, that holds with confidence.

A linked prompt that is computed in full too gives a comparison: how far apart the linked answer's two likeliest first
tokens were (its margin), whether its first token is full prefill's, and the divergence. Answers with a margin of at
least some threshold stand. The threshold is the smallest one for which comparisons show, with confidence, that the
bounds hold. Thresholds are fixed beforehand and tested from the strictest down until one fails, so that each may be
tested with the whole confidence (fixed-sequence testing: Angelopoulos et al., Learn then Test, arXiv 2110.01052).

Between looks nothing is decided. The k-th look may err with a chance of delta / (k (k + 1)), in all with delta at most.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from emblema.link.policy.samples import Sample

CONFIDENCE = 1.645
"""Standard errors of a one-sided interval of 95 %."""
THRESHOLDS = tuple(step / 20 for step in range(19, -1, -1))
"""Margins that are tested, the strictest first."""
PROVISIONAL = 0.5
"""The margin from which on an answer over linked rows stands where nothing was certified."""
FIRST_LOOK = 200
GROWTH = 2
"""Comparisons at the first look, and how many times as many there are at each next one."""
EXPECTED = 1 / 5
"""Of what a bound allows, how much is expected where thresholds begin to be tested."""
WIDEST = 1.0
"""Nats that one answer's divergence counts as at most."""
SUSPECTED = 0.2
"""The share of differing answers that the alarm looks for."""
ALARM = 100.0
"""How much likelier that share has to be than the allowed one, since some moment."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What answers that stand have to keep.

    Attributes:
        alpha: share of them whose first token may differ from full prefill's; None for no such bound.
        max_kl: mean divergence of their first tokens from full prefill's, nats; None for no such bound.
        delta: chance that a threshold is chosen that does not keep them.
    """

    alpha: float | None
    max_kl: float | None
    delta: float


def certified_margin(samples: Sequence[Sample], bounds: Bounds) -> float | None:
    """Return the smallest margin from which on answers were shown to keep the bounds; None where none was.

    A threshold is passed over while there are too few answers above it to show anything, if they did as well as
    `EXPECTED` says: that depends on how many they are, and not on how they did.
    """
    found = None
    for threshold in THRESHOLDS:
        above = [sample for sample in samples if sample.margin >= threshold]
        if not above or _p_value(_expected(len(above), bounds), bounds) > bounds.delta:
            continue
        if _p_value(above, bounds) > bounds.delta:
            break
        found = threshold
    return found


def _expected(count: int, bounds: Bounds) -> list[Sample]:
    """Return samples that do as well as `EXPECTED` says."""
    wrong = int(count * (bounds.alpha or 0.0) * EXPECTED)
    kl = (bounds.max_kl or 0.0) * EXPECTED
    return [Sample(kl, True)] * (count - wrong) + [Sample(kl, False)] * wrong


def _p_value(samples: Sequence[Sample], bounds: Bounds) -> float:
    """Return the chance of samples as good as these where a bound is broken: the largest of the bounds'."""
    found = 0.0
    if bounds.alpha is not None:
        wrong = sum(not sample.agrees for sample in samples)
        found = max(found, binomial_tail(wrong, len(samples), bounds.alpha))
    if bounds.max_kl is not None:
        losses = [min(sample.kl, WIDEST) / WIDEST for sample in samples]
        found = max(found, _bentkus(math.fsum(losses) / len(losses), len(losses), bounds.max_kl / WIDEST))
    return found


def binomial_tail(hits: int, count: int, share: float) -> float:
    """Return the chance of at most so many hits in independent trials, each a hit with a chance of `share`."""
    if share <= 0:
        return 1.0
    if share >= 1:
        return float(hits >= count)
    log_hit, log_miss = math.log(share), math.log1p(-share)
    ways = math.lgamma(count + 1)
    terms = (
        math.exp(ways - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * log_hit + (count - k) * log_miss)
        for k in range(hits + 1)
    )
    return min(1.0, math.fsum(terms))


def wilson_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the limits of Wilson's interval of a share, each one-sided at 95 %."""
    share, z = hits / count, CONFIDENCE
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)


def _bentkus(mean: float, count: int, bound: float) -> float:
    """Return a p-value of a mean of losses in [0, 1] being above a bound (Hoeffding and Bentkus; Learn then Test)."""
    if mean >= bound:
        return 1.0
    if bound >= 1:
        return 0.0
    kept = mean * math.log(mean / bound) if mean > 0 else 0.0
    distance = kept + (1 - mean) * math.log((1 - mean) / (1 - bound))
    return min(math.exp(-count * distance), math.e * binomial_tail(math.ceil(count * mean - 1e-9), count, bound))


@dataclass(slots=True)
class Certificate:
    """The threshold of one lane, and the alarm that takes it back.

    Attributes:
        margin: the smallest margin that was shown to keep the bounds; None before there is one.
        looks: how often thresholds were tested.
        due: comparisons at the next look.
        likelihood_ratio: how much likelier the answers that stood are if a share of `SUSPECTED` differs than if the
            allowed one does, since the moment for which that is largest.
    """

    margin: float | None = None
    looks: int = 0
    due: int = FIRST_LOOK
    likelihood_ratio: float = 1.0

    def look(self, samples: Sequence[Sample], bounds: Bounds) -> bool:
        """Test thresholds if a look is due; return whether one was found that is new."""
        if len(samples) < self.due:
            return False
        self.due = len(samples) * GROWTH
        self.looks += 1
        spent = Bounds(bounds.alpha, bounds.max_kl, bounds.delta / (self.looks * (self.looks + 1)))
        found = certified_margin(samples, spent)
        if found is None or (self.margin is not None and found >= self.margin):
            return False
        self.margin = found
        return True

    def observe(self, agrees: bool, alpha: float | None) -> bool:
        """Count an answer that stood and was compared; return whether too many differ (a CUSUM of likelihoods).

        One answer alone never says so: shares below one in a hundred count as that.

        The mean time to a false alarm is at least `ALARM` comparisons (Shin et al., E-detectors, arXiv 2203.03532).
        """
        allowed = min(0.5, max(alpha or 0.05, 0.01))
        suspected = max(SUSPECTED, min(0.9, 2 * allowed))
        odds = (1 - suspected) / (1 - allowed) if agrees else suspected / allowed
        self.likelihood_ratio = max(1.0, self.likelihood_ratio) * odds
        return self.likelihood_ratio >= ALARM

    def to_json(self) -> list[float | int | None]:
        """Return the state as plain data."""
        return [self.margin, self.looks, self.due, self.likelihood_ratio]

    @classmethod
    def from_json(cls, data: Sequence[float | int | None]) -> Self:
        """Return the state of plain data; ValueError or TypeError where it is malformed."""
        margin, looks, due, likelihood_ratio = data
        if margin is not None and margin not in THRESHOLDS:
            raise ValueError("a margin is not one of the thresholds")
        counts = (looks, due)
        if not all(isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**31 for count in counts):
            raise ValueError("a count is malformed")
        if not isinstance(likelihood_ratio, int | float) or not math.isfinite(likelihood_ratio) or likelihood_ratio < 0:
            raise ValueError("a likelihood is malformed")
        return cls(margin, int(looks or 0), int(due or 0), float(likelihood_ratio))

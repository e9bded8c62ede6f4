"""How sure an answer after a second pass has to be: learnt from the prompts that were computed in full after all.

An answer stands where the probabilities of its two likeliest first tokens differ by a margin. A prompt that misses it
is computed in full, which says whether its first answer was full prefill's; the canary says it of a few that stood.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT = 0.5
"""The margin that is asked where nothing was learnt."""
STEPS = (0.2, 0.3, 0.4, DEFAULT, 0.6, 0.7, 0.8, 0.9)
WRONG = 0.01
"""Share of the answers that stand which may differ from full prefill's."""
LEAST = 16
"""Measurements below the default margin that a smaller one takes, a quarter of them in its own band."""
BAND = 0.1
KEPT = 512
CHECKS = 128
CONFIDENCE = 1.645
"""Standard errors of a one-sided interval of 95 %."""


@dataclass(frozen=True, slots=True)
class MarginSample:
    """One answer after a second pass: its margin, and whether it was full prefill's; None where that is not known."""

    margin: float
    agrees: bool | None


@dataclass(slots=True)
class MarginStats:
    """The latest answers of one model about one kind of content.

    Attributes:
        passes: answers in their order; those computed in full after all say whether they agreed.
        checks: answers that stood and that the canary compared.
    """

    passes: deque[MarginSample] = field(default_factory=lambda: deque(maxlen=KEPT))
    checks: deque[MarginSample] = field(default_factory=lambda: deque(maxlen=CHECKS))

    def least(self) -> float:
        """Return the margin to ask: smaller than the default only where few more answers would be wrong."""
        checked = [sample for sample in self.checks if sample.margin >= DEFAULT]
        wrong_share = sum(not sample.agrees for sample in checked) / max(1, len(checked))
        for step in STEPS:
            if step >= DEFAULT:
                break
            known = [sample for sample in (*self.passes, *self.checks) if step <= sample.margin < DEFAULT]
            known = [sample for sample in known if sample.agrees is not None]
            standing = sum(sample.margin >= step for sample in self.passes)
            sure = sum(sample.margin >= DEFAULT for sample in self.passes)
            wrong = sum(not sample.agrees for sample in known) + wrong_share * sure
            lowest = sum(sample.margin < step + BAND for sample in known)
            if len(known) >= LEAST and lowest >= LEAST // 4 and wrong + 1 <= WRONG * standing:
                return step
        larger = (step for step in STEPS if step >= DEFAULT and not _too_many_wrong(self.checks, step))
        return next(larger, STEPS[-1])

    def to_json(self) -> dict[str, Any]:
        """Return the samples as plain data."""
        return {
            name: [[sample.margin, sample.agrees] for sample in samples]
            for name, samples in (("passes", self.passes), ("checks", self.checks))
        }

    @classmethod
    def from_json(cls, data: Any) -> "MarginStats":
        """Return the samples of plain data; ValueError, TypeError or KeyError where it is malformed."""
        stats = cls()
        for samples, kept, known in ((data["passes"], stats.passes, False), (data["checks"], stats.checks, True)):
            if len(samples) > (CHECKS if known else KEPT):
                raise ValueError("too many samples")
            kept.extend(_sample(*sample, known=known) for sample in samples)
        return stats


def _too_many_wrong(checks: Sequence[MarginSample] | deque[MarginSample], margin: float) -> bool:
    """Return whether checks say with confidence that too many answers of a margin are wrong; never one alone."""
    above = [sample for sample in checks if sample.margin >= margin]
    wrong = sum(not sample.agrees for sample in above)
    return wrong >= 2 and wilson_interval(wrong, len(above))[0] > WRONG


def wilson_interval(hits: int, count: int) -> tuple[float, float]:
    """Return the limits of Wilson's interval of a share, each one-sided at 95 %."""
    share, z = hits / count, CONFIDENCE
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)


def _sample(margin: Any, agrees: Any, *, known: bool) -> MarginSample:
    number = isinstance(margin, int | float) and not isinstance(margin, bool) and 0 <= margin <= 1
    if not number or not (isinstance(agrees, bool) or (agrees is None and not known)):
        raise ValueError("a margin is malformed")
    return MarginSample(float(margin), agrees)

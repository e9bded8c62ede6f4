"""Whether the bound on linked answers holds on real models, out of the records of `real`.

On each split a margin is certified on half of the episodes, and the answers of the other half that it lets stand are
counted. Then the traffic shifts: a lane that has its certificate is sent the answers of another method, and the
requests are counted until it closes, with the checks that the default policy makes.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from emblema.errors import EmblemaError
from emblema.link.lanes import Lane
from emblema.link.policy.certificate import PROVISIONAL, Bounds, certified_margin
from emblema.link.policy.comparison_shares import ComparisonShares
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample

KIND, MODEL = "text", "model"
SPLITS, REQUESTS = 20, 400
"""How often answers are split, and how many requests are sent after a shift at most."""
PROMPT = 100
"""Rows that an answer is taken to cost, where what checks may cost is counted."""


@dataclass(frozen=True, slots=True)
class BoundOptions:
    """What is held to what.

    Attributes:
        method: whose answers are certified.
        shifted: whose answers come after the shift.
        seed: of the splits.
        policy: the bounds.
    """

    method: str
    shifted: str
    seed: int = 0
    policy: Policy = Policy()


def samples_of(records: Sequence[Mapping[str, Any]], method: str) -> dict[str, list[Sample]]:
    """Return the answers of a method by episode.

    Raises:
        EmblemaError: it was not measured.
    """
    found: dict[str, list[Sample]] = {}
    for record in records:
        if record["method"] == method and record["anchor"] == "head":
            sample = Sample(record["first"], record["agree"], min(1.0, record["margin"]))
            found.setdefault(record["episode"], []).append(sample)
    if not found:
        raise EmblemaError(f"{method} was not measured after the head")
    return found


def bound_row(records: Sequence[Mapping[str, Any]], wanted: BoundOptions) -> dict[str, Any]:
    """Return what the splits and the shifts showed, as plain data."""
    own, shifted = samples_of(records, wanted.method), samples_of(records, wanted.shifted)
    policy, margins, wrong, accepted, divergence = wanted.policy, [], [], [], []
    bounds = Bounds(policy.alpha, policy.max_kl, policy.delta)
    for number in range(SPLITS):
        known, fresh = _split(own, random.Random(f"{wanted.seed} {number}"))
        margin = certified_margin(known, bounds)
        margins += [] if margin is None else [margin]
        above = [] if margin is None else [sample for sample in fresh if sample.margin >= margin]
        accepted.append(len(above) / len(fresh))
        wrong.append(sum(not sample.agrees for sample in above) / len(above) if above else 0.0)
        divergence.append(sum(sample.kl for sample in above) / len(above) if above else 0.0)
    closes = [_requests_until_closed(own, shifted, wanted, number) for number in range(SPLITS)]
    every = [sample for found in own.values() for sample in found]
    sure = [sample for sample in every if sample.margin >= PROVISIONAL]
    kept = [share <= (policy.alpha or 1.0) for share in wrong]
    return {
        "method": wanted.method,
        "shifted": wanted.shifted,
        "alpha": policy.alpha,
        "max_kl": policy.max_kl,
        "answers": len(every),
        "sure": len(sure),
        "sure_wrong": sum(not sample.agrees for sample in sure),
        "splits": SPLITS,
        "certified": len(margins),
        "margin": median_high(margins) if margins else None,
        "accepted": sum(accepted) / len(accepted),
        "kept": sum(kept),
        "wrong": max(wrong),
        "wrong_mean": sum(wrong) / len(wrong),
        "kl": max(divergence),
        "closed": sum(count < REQUESTS for count in closes),
        "closes": median_high(closes),
        "closes_last": max(closes),
    }


def _split(own: Mapping[str, Sequence[Sample]], rnd: random.Random) -> tuple[list[Sample], list[Sample]]:
    names = sorted(own)
    rnd.shuffle(names)
    half = len(names) // 2
    first, second = ([sample for name in part for sample in own[name]] for part in (names[:half], names[half:]))
    rnd.shuffle(first)
    return first, second


def _requests_until_closed(
    own: Mapping[str, Sequence[Sample]], shifted: Mapping[str, Sequence[Sample]], wanted: BoundOptions, number: int
) -> int:
    """Return how many requests a lane with a certificate takes after the shift until it closes.

    It is certified on all of the method's answers, as often as it takes; where that shows no margin, the provisional
    one is asked.
    """
    rnd, policy = random.Random(f"shift {wanted.seed} {number}"), wanted.policy
    log, shares, lanes = FidelityLog(), ComparisonShares(), [(KIND, Lane.QUERY)]
    for sample in _drawn(own, rnd, 4 * len(own)):
        log.record(MODEL, *lanes[0], sample, policy, accepted=False)
    for count, sample in enumerate(_drawn(shifted, rnd, REQUESTS)):
        if not log.verdict(MODEL, *lanes[0], policy).open:
            return count
        is_accepted = sample.margin >= log.least_margin(MODEL, lanes, policy)
        if not is_accepted:
            # It is computed in full, which says what it should have been.
            log.record(MODEL, *lanes[0], sample, policy, accepted=False)
            shares.earn(None, PROMPT, policy, free=True)
            continue
        certified = log.is_certified(MODEL, lanes)
        if shares.earn("check", PROMPT, policy, free=True, certified=certified) and shares.affords(PROMPT):
            shares.spend("check", PROMPT)
            shares.note_check(sample.agrees)
            log.record(MODEL, *lanes[0], sample, policy)
    return REQUESTS


def _drawn(answers: Mapping[str, Sequence[Sample]], rnd: random.Random, count: int) -> list[Sample]:
    every = [sample for found in answers.values() for sample in found]
    return [rnd.choice(every) for _ in range(count)]

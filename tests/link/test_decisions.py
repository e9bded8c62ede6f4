"""What `auto` decides of 10,000 random prompts, as recorded; `python -m tests.link.test_decisions` records it again."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from emblema.link.lanes import Lane, LaneVerdict
from emblema.link.plan import ChunkOrigin, LinkPlan, PrefixOrigin
from emblema.link.policy.decide import worth_capturing
from emblema.link.policy.expectations import RowCosts
from emblema.link.policy.fidelity import MeasuredLanes
from emblema.link.policy.lane_stats import unmeasured
from emblema.link.policy.policy import Policy
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, PrefixMatch
from tests.link.pieces import LAYOUTS
from tests.link.random_prompts import ANCHOR, Case, cases

SEED, COUNT, BLOCK = 20_261_128, 10_000, 500
RECORDED = Path(__file__).parents[1] / "golden/data/decisions.json"


def knowledge_of(case: Case) -> Knowledge:
    match = PrefixMatch("kept", case.prefix) if case.prefix else None

    def verdict(kind: str, lane: Lane, policy: Policy) -> LaneVerdict:
        usual = unmeasured(policy)
        return LaneVerdict(usual.open and (kind, lane) not in case.closed, usual.reason)

    return Knowledge(
        "model",
        LAYOUTS,
        case.find,
        lambda prompt: match,
        policy=case.policy,
        measured=MeasuredLanes(verdict, lambda lanes, policy: case.least_margin, case.plateau),
        costs=RowCosts(
            case.forward,
            case.taken,
            lambda prompt: case.unsure,
            lambda prompt: case.continued,
            lambda id: id in case.seen,
        ),
        recurs=lambda names: case.recurs,
        second_pass=case.second_pass,
        anchor=ANCHOR,
    )


def captured(case: Case, knowledge: Knowledge) -> list[str]:
    """The new chunks that are prefilled alone before the prompt is linked."""
    policy = case.own or case.policy
    return sorted(worth_capturing(case.prompt, knowledge, knowledge.costs, policy, case.prefix))


def words(plan: LinkPlan) -> tuple[object, ...]:
    """All that a plan says, but for the reasons."""
    ranges = []
    for part in plan.ranges:
        origin: object = None
        if isinstance(part.origin, ChunkOrigin):
            origin = (part.origin.chunk[-2:], part.origin.offset, part.origin.exact)
        elif isinstance(part.origin, PrefixOrigin):
            origin = part.origin.entry
        patch = None if part.patch is None else (str(part.patch.key), part.patch.rank)
        ranges.append((part.start, part.stop, str(part.source), part.layers, origin, patch, part.hidden))
    again = plan.recomputation
    second = None if again is None else (again.candidates, again.budget, again.question)
    chosen = [
        (one.start, one.stop, one.kind, str(one.lane), str(one.key), one.rank, [str(lane) for lane in one.closed])
        for one in plan.decisions
    ]
    return plan.strategy, ranges, second, plan.least_margin, plan.leaving, chosen


def digests(said: Iterable[object]) -> list[str]:
    """One digest for each block."""
    every = [repr(each) for each in said]
    blocks = (every[start : start + BLOCK] for start in range(0, len(every), BLOCK))
    return [hashlib.sha256("\n".join(block).encode()).hexdigest()[:16] for block in blocks]


def decided() -> dict[str, object]:
    lanes: Counter[str] = Counter()
    plans, alone = [], []
    for case in cases(SEED, COUNT):
        knowledge = knowledge_of(case)
        plan = Auto(case.own, case.trial).plan(case.prompt, knowledge)
        lanes.update(str(one.lane) for one in plan.decisions)
        lanes["second pass"] += plan.recomputation is not None
        plans.append(words(plan))
        alone.append(captured(case, knowledge) if case.trial is None else [])
        lanes["captured"] += len(alone[-1])
    return {"lanes": dict(sorted(lanes.items())), "plans": digests(plans), "captured": digests(alone)}


def test_auto_decides_as_recorded() -> None:
    assert decided() == json.loads(RECORDED.read_text())["embedded"]


if __name__ == "__main__":
    held = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    RECORDED.write_text(json.dumps({**held, "embedded": decided()}, indent=1) + "\n")

"""The canary: a small share of the linked prompts is computed again and compared, behind the answers.

Two kinds of check, each with its own share. A *check* computes a linked prompt in full. A *trial* goes the other way:
of a prompt that was computed in full it links the chunks of one kind by a lane that is closed, which costs little more
than its text; so a lane that was closed can open again, and a kind of content show that it has no gap.

Rows that a window wrote count as computed where all that stood before them stands there still; a prompt that holds
survivors, rows behind which something has changed, is held against them alone, as what stands behind them is no better.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.executor import LinkedTable
from emblema.link.plan import LinkPlan
from emblema.link.policy.choosing import Trial
from emblema.link.policy.fidelity import FidelityLog, Sample
from emblema.link.policy.policy import TAKEN, Decision, Lane, Policy
from emblema.link.prompt import ChunkPart, Prompt, RowState, TextPart
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.full import Full
from emblema.session.requests import Prefill

JUDGED = (*TAKEN, Lane.SURVIVOR, Lane.SETTLED)
"""Lanes whose rows may differ from re-prefill's; settled ones are measured, and taken all the same."""

Lanes = frozenset[tuple[str, Lane]]


@dataclass(frozen=True, slots=True)
class CanaryStatistics:
    """What the canary did.

    Attributes:
        linked, exact: prompts seen whose rows were partly taken, and wholly computed; the latter with those of windows
            that computed survivors anew because they are not trusted.
        checks, trials: of them compared.
        skipped: not compared after all: a chunk was gone by then, or the trial's lane had nothing to take.
        failed: comparisons that raised an error, which the reply before them does not notice.
        rows, trial_rows: rows computed for checks and for trials.
        computed: rows computed for answers.
        turned: lanes closed or opened.
    """

    linked: int = 0
    exact: int = 0
    checks: int = 0
    trials: int = 0
    skipped: int = 0
    failed: int = 0
    rows: int = 0
    trial_rows: int = 0
    computed: int = 0
    turned: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A prompt to be compared: what was answered, by which lanes, and how it will be done again."""

    prompt: Prompt
    logits: Tensor
    lanes: Lanes
    again: Strategy
    policy: Policy


class Canary:
    """Chooses prompts, and compares them when there is time. On the thread that owns the model.

    Args:
        ledger: the tenant's.
        model: gives the model's fingerprint as it is now.
    """

    def __init__(self, ledger: FidelityLog, model: Callable[[], str]) -> None:
        self.ledger, self._model = ledger, model
        self.statistics = CanaryStatistics()
        self._waiting: _Waiting | None = None
        # Requests and rows that the shares have given so far and no comparison has used up.
        self._credit = {"check": 0.0, "trial": 0.0}
        self._rows = 0.0
        # How often each lane was tried for each kind.
        self._tried: Counter[tuple[str, Lane]] = Counter()
        # Only so that a rhythm in the requests does not meet one in the checks.
        self._random = random.Random(0)

    @property
    def waiting(self) -> bool:
        """Whether a prompt waits to be compared."""
        return self._waiting is not None

    def consider(self, prefill: Prefill, policy: Policy) -> None:
        """Count a prompt that was answered, and perhaps take it to be compared later."""
        prompt, plan, linked = prefill.prompt, prefill.plan, prefill.linked
        computed = linked.trace.computed
        lanes = lanes_of(plan.decisions)
        exact = not lanes and plan.exact
        if lanes and all(lane is Lane.SETTLED for _, lane in lanes) and self._distrusted(plan, policy):
            lanes, exact = frozenset(), True
        self._count(computed=computed, linked=bool(lanes), exact=exact)
        self._rows += policy.canary_rows * computed
        kind = "check" if lanes else "trial" if exact else None
        if kind is None or policy.canary == 0:
            return
        self._credit[kind] += policy.canary
        due = self._credit[kind] >= 1 and self._waiting is None
        if not due or (policy.canary < 0.5 and self._random.random() < 0.5):
            return
        one = self._check(prompt, lanes, linked, policy) if lanes else self._trial(prompt, plan, linked, policy)
        if one is not None and self._rows >= _dear(one.prompt):
            self._waiting = one
            if not lanes:
                self._tried.update(one.lanes)

    def run(self, held: Callable[[Prompt], bool], link: Callable[[Prompt, Strategy], Prefill]) -> bool:
        """Compare the prompt that waits, if one does; whether a lane was closed or opened.

        Args:
            held: whether what a prompt is made of is all there still.
            link: links it once more.
        """
        one, self._waiting = self._waiting, None
        if one is None:
            return False
        if not held(one.prompt):
            self._count(skipped=1)
            return False
        try:
            again = link(one.prompt, one.again)
        except EmblemaError:
            self._count(failed=1)
            return False
        rows = again.trace.computed
        self._rows -= rows
        trial = isinstance(one.again, Auto)
        self._credit["trial" if trial else "check"] -= 1
        self._count(**({"trial_rows": rows} if trial else {"rows": rows}))
        tried = {(each.kind, each.lane) for each in again.plan.decisions}
        if trial and not one.lanes <= tried:
            self._count(skipped=1)
            return False
        left, right = (again.logits, one.logits) if not trial else (one.logits, again.logits)
        sample = Sample(divergence(left, right), bool(left.argmax() == right.argmax()))
        turned = [self.ledger.record(self._model(), *lane, sample, one.policy) for lane in sorted(one.lanes)]
        self._count(**{"trials" if trial else "checks": 1}, turned=sum(turned))
        return any(turned)

    def _check(self, prompt: Prompt, lanes: Lanes, linked: LinkedTable, policy: Policy) -> _Waiting:
        return _Waiting(_bare(prompt), linked.logits.clone(), lanes, Full(), policy)

    def _trial(self, prompt: Prompt, plan: LinkPlan, linked: LinkedTable, policy: Policy) -> _Waiting | None:
        """A closed lane that has something to take on a prompt, the one tried least; None where there is none.

        Survivors of all kinds are tried together, as none of them is what it was without the others.
        """
        found = {(one.kind, lane) for one in plan.decisions for lane in one.closed}
        if not plan.decisions:
            # Another strategy's plan: what is always there is the chunk as it is.
            parts = [one.part for one in prompt.segments if isinstance(one.part, ChunkPart) and one.start > 0]
            found = {(part.chunk.kind, Lane.BARE) for part in parts if part.state is RowState.CANONICAL}
        closed = sorted(
            (self._tried[kind, lane], JUDGED.index(lane), kind)
            for kind, lane in found
            if not policy.exact_only and not self._open(kind, lane, policy)
        )
        if not closed:
            return None
        _, index, kind = closed[0]
        lanes = frozenset([(kind, JUDGED[index])])
        if JUDGED[index] is Lane.SURVIVOR:
            lanes = frozenset((kind, JUDGED[place]) for _, place, kind in closed if place == index)
            prompt = _aged(prompt)
        again = Auto(policy, Trial(kind, JUDGED[index]))
        return _Waiting(prompt, linked.logits.clone(), lanes, again, policy)

    def _distrusted(self, plan: LinkPlan, policy: Policy) -> bool:
        """Whether survivors were computed anew because they are not trusted."""
        kinds = {one.kind for one in plan.decisions if Lane.SURVIVOR in one.closed}
        return any(not self._open(kind, Lane.SURVIVOR, policy) for kind in kinds)

    def _open(self, kind: str, lane: Lane, policy: Policy) -> bool:
        return self.ledger.verdict(self._model(), kind, lane, policy).open

    def _count(self, **more: int) -> None:
        changes = {name: getattr(self.statistics, name) + int(change) for name, change in more.items()}
        self.statistics = replace(self.statistics, **changes)


def divergence(reference: Tensor, method: Tensor) -> float:
    """KL(reference || method) in nats, of logits [vocab]."""
    left, right = (torch.log_softmax(one.double(), dim=0) for one in (reference, method))
    held = left.isfinite()
    return max(0.0, float((left[held].exp() * (left[held] - right[held])).sum()))


def chunks_of(prompt: Prompt, *states: RowState) -> Iterator[str]:
    """Names of the chunks of a prompt, as the store knows them, of parts in some states or any; texts have none."""
    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, ChunkPart) and part.name and (not states or part.state in states):
            yield part.name


def lanes_of(decisions: Iterable[Decision]) -> Lanes:
    """Kinds and lanes that an answer is held against: survivors alone, where there are any."""
    lanes = frozenset((one.kind, one.lane) for one in decisions if one.lane in JUDGED)
    return frozenset(one for one in lanes if one[1] is Lane.SURVIVOR) or lanes


def _bare(prompt: Prompt) -> Prompt:
    """The prompt with no rows of any chunk, so that it can be computed whatever became of them."""

    def bare(part: ChunkPart) -> ChunkPart:
        chunk = replace(part.chunk, rows=()) if part.state is RowState.WRITTEN else part.chunk
        return ChunkPart(chunk, part.slid, RowState.MISSING, part.name)

    return _changed(prompt, bare)


def _aged(prompt: Prompt) -> Prompt:
    """The prompt with rows that a window wrote and does not trust, in place of those that were computed anew."""

    def aged(part: ChunkPart) -> ChunkPart:
        if part.distrusted is None:
            return part
        return ChunkPart(part.distrusted, part.slid, RowState.WRITTEN, part.name, survivor=True, repair=part.repair)

    return _changed(prompt, aged)


def _changed(prompt: Prompt, change: Callable[[ChunkPart], ChunkPart]) -> Prompt:
    segments = (
        replace(one, part=change(one.part)) if isinstance(one.part, ChunkPart) else one for one in prompt.segments
    )
    return Prompt(tuple(segments), prompt.axes, prompt.next_position)


def _dear(prompt: Prompt) -> int:
    """Rows of a prompt that have to be computed at least: text, and parts that have none."""
    parts = (one.part for one in prompt.segments)
    return sum(part.tokens for part in parts if isinstance(part, TextPart) or part.state is RowState.MISSING)

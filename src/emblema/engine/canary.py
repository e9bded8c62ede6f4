"""The canary: a small share of the linked prompts is computed again and compared, behind the answers.

Two kinds of check, each with its own share. A *check* computes a linked prompt in full. A *trial* goes the other way:
of a prompt that was computed in full it links the chunks of one kind by a lane that is closed, which costs little more
than its text; so a lane that was closed can open again, and a kind of content show that it has no gap.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.executor import Linked
from emblema.link.plan import LinkPlan
from emblema.link.policy.choosing import Trial
from emblema.link.policy.decisions import TAKEN, Lane
from emblema.link.policy.ledger import Ledger
from emblema.link.policy.policy import Policy
from emblema.link.policy.standing import Sample
from emblema.link.prompt import ChunkPart, Prompt
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.full import Full

JUDGED = (*TAKEN, Lane.SETTLED, Lane.SURVIVOR)
"""Lanes whose rows may differ from re-prefill's; settled ones are measured, and taken all the same; a window asks
before it takes survivors."""


@dataclass(frozen=True, slots=True)
class CanaryStatistics:
    """What the canary did.

    Attributes:
        linked, exact: prompts seen whose rows were partly taken, and wholly computed.
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
    lanes: frozenset[tuple[str, Lane]]
    again: Strategy
    policy: Policy


class Canary:
    """Chooses prompts, and compares them when there is time. On the thread that owns the model.

    Args:
        ledger: the tenant's.
        model: gives the model's fingerprint as it is now.
    """

    def __init__(self, ledger: Ledger, model: Callable[[], str]) -> None:
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

    def consider(self, prompt: Prompt, plan: LinkPlan, linked: Linked, policy: Policy) -> None:
        """Count a prompt that was answered, and perhaps take it to be compared later."""
        computed = linked.trace.computed
        lanes = frozenset((one.kind, one.lane) for one in plan.decisions if one.lane in JUDGED)
        exact = not lanes and plan.exact
        self._count(computed=computed, linked=bool(lanes), exact=exact)
        self._rows += policy.canary_rows * computed
        kind = "check" if lanes else "trial" if exact else None
        if kind is None or policy.canary == 0:
            return
        self._credit[kind] += policy.canary
        due = self._credit[kind] >= 1 and self._rows >= (prompt.tokens if lanes else len(_text(prompt)))
        if not due or self._waiting is not None or (policy.canary < 0.5 and self._random.random() < 0.5):
            return
        if lanes:
            self._waiting = _Waiting(prompt, linked.logits.clone(), lanes, Full(), policy)
        else:
            trial = self._trial(prompt, plan, policy)
            if trial is not None:
                self._tried[trial.kind, trial.lane] += 1
                lanes = frozenset([(trial.kind, trial.lane)])
                self._waiting = _Waiting(prompt, linked.logits.clone(), lanes, Auto(policy, trial), policy)

    def run(self, held: Callable[[Prompt], bool], link: Callable[[Prompt, Strategy], tuple[LinkPlan, Linked]]) -> bool:
        """Compare the prompt that waits, if one does; whether a lane was closed or opened.

        Args:
            held: whether a prompt's chunks are all there still.
            link: links it once more.
        """
        one, self._waiting = self._waiting, None
        if one is None:
            return False
        if not held(one.prompt):
            self._count(skipped=1)
            return False
        try:
            plan, linked = link(one.prompt, one.again)
        except EmblemaError:
            self._count(failed=1)
            return False
        rows = linked.trace.computed
        self._rows -= rows
        trial = isinstance(one.again, Auto)
        self._credit["trial" if trial else "check"] -= 1
        self._count(**({"trial_rows": rows} if trial else {"rows": rows}))
        tried = {(each.kind, each.lane) for each in plan.decisions}
        if trial and not one.lanes <= tried:
            self._count(skipped=1)
            return False
        left, right = (linked.logits, one.logits) if not trial else (one.logits, linked.logits)
        sample = Sample(divergence(left, right), bool(left.argmax() == right.argmax()))
        turned = [self.ledger.record(self._model(), *lane, sample, one.policy) for lane in sorted(one.lanes)]
        self._count(**{"trials" if trial else "checks": 1}, turned=sum(turned))
        return any(turned)

    def _trial(self, prompt: Prompt, plan: LinkPlan, policy: Policy) -> Trial | None:
        """A closed lane that has something to take on a prompt, the one tried least; None where there is none."""
        model = self._model()
        found = {(one.kind, lane) for one in plan.decisions for lane in one.closed}
        if not plan.decisions:
            # Another strategy's plan: what is always there is the chunk as it is.
            found = {(chunk.kind, Lane.BARE) for segment, chunk in prompt.chunk_segments if segment.start > 0}
        closed = [
            (self._tried[kind, lane], TAKEN.index(lane), kind)
            for kind, lane in found
            if not policy.exact_only and not self.ledger.verdict(model, kind, lane, policy).open
        ]
        return None if not closed else Trial(min(closed)[2], TAKEN[min(closed)[1]])

    def _count(self, **more: int) -> None:
        changes = {name: getattr(self.statistics, name) + int(change) for name, change in more.items()}
        self.statistics = replace(self.statistics, **changes)


def divergence(reference: Tensor, method: Tensor) -> float:
    """KL(reference || method) in nats, of logits [vocab]."""
    left, right = (torch.log_softmax(one.double(), dim=0) for one in (reference, method))
    held = left.isfinite()
    return max(0.0, float((left[held].exp() * (left[held] - right[held])).sum()))


def chunks_of(prompt: Prompt) -> Iterator[str]:
    """Names of the chunks of a prompt, as the store knows them; texts of a window have none."""
    for segment in prompt.segments:
        if isinstance(segment.part, ChunkPart) and segment.part.name:
            yield segment.part.name


def _text(prompt: Prompt) -> range:
    return range(sum(stop - start for start, stop in prompt.text_rows))

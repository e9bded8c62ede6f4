"""Comparisons: after the answers, a small share of the linked prompts is linked again and compared.

There are two kinds of comparison, each with its own share. A *check* computes a linked prompt in full. A *trial* takes
a prompt that was computed in full and links the chunks of one kind by a closed lane, which costs little more than its
text; so a lane that was closed can open again, and a kind of content can show that it has no gap.

Rows that a window wrote count as computed where all that preceded them is still there. A prompt that holds rows
kept after a slide is compared for these alone, as the rows after them are no better.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from emblema.errors import EmblemaError
from emblema.link.lanes import Lane, Lanes, Trial, lanes_of, measured_lanes
from emblema.link.policy.certificate import PROVISIONAL
from emblema.link.policy.comparison_shares import Comparing, ComparisonShares
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import compare
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment, TextPart
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.link.strategies.full import Full
from emblema.session.requests import Prefill


@dataclass(frozen=True, slots=True)
class ComparisonStatistics:
    """What was compared.

    Attributes:
        linked, exact: prompts whose rows were partly taken, and wholly computed; windows that computed rows
            kept after a slide again, because they are not trusted, count as exact.
        checks, trials: of them compared.
        skipped: not compared: a chunk was deleted meanwhile, or the trial's lane had no rows to take.
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
class Comparison:
    """A prompt to be linked again and compared.

    Attributes:
        prompt: the prompt.
        logits: of its answer's first token, [vocab] float32.
        lanes: kinds and lanes that the comparison judges.
        strategy: how it will be linked: `full` for a check, `auto` with a trial lane for a trial.
    """

    prompt: Prompt
    logits: Tensor
    lanes: Lanes
    strategy: Full | Auto

    @property
    def trial(self) -> bool:
        """Whether a closed lane is tried."""
        return isinstance(self.strategy, Auto)


class Comparisons:
    """Chooses prompts, and compares them when there is time. On the thread that owns the model.

    Args:
        log: the tenant's measurements.
        policy: whose bounds lanes are judged by, whatever a request's own are.
    """

    def __init__(self, log: FidelityLog, policy: Policy) -> None:
        self._log, self._policy = log, policy
        self.statistics = ComparisonStatistics()
        self._next: Comparison | None = None
        self._shares = ComparisonShares()

    @property
    def waiting(self) -> bool:
        """Whether a prompt waits to be compared."""
        return self._next is not None

    def consider(self, prefill: Prefill, model: str, policy: Policy) -> None:
        """Count a prompt that was answered, and perhaps take it to be compared later.

        Args:
            prefill: the linked prompt.
            model: the model's fingerprint.
            policy: bounds of the request.
        """
        computed, lanes = prefill.trace.computed, lanes_of(prefill.plan.decisions)
        exact = not lanes and prefill.plan.exact
        found = {(decision.kind, lane) for decision in prefill.plan.decisions for lane in decision.closed}
        closed: Lanes = frozenset(pair for pair in found if not self._log.verdict(model, *pair, policy).open)
        if (
            lanes
            and all(lane is Lane.SETTLED for _, lane in lanes)
            and any(lane is Lane.SURVIVOR for _, lane in closed)
        ):
            # Rows kept after a slide were computed again, as they are not trusted.
            lanes, exact = frozenset(), True
        self._count(computed=computed, linked=bool(lanes), exact=exact)
        what: Comparing | None = "check" if lanes else "trial" if exact else None
        certified = not lanes or self._log.is_certified(model, lanes & measured_lanes(prefill.plan.decisions))
        if not self._shares.earn(what, computed, policy, free=self._next is None, certified=certified):
            return
        if lanes:
            prompt = prefill.prompt.map_chunks(_without_rows)
            chosen = Comparison(prompt, prefill.logits.clone(), lanes, Full())
        elif closed and not policy.exact_only:
            chosen = self._trial(prefill, closed, policy)
        else:
            return
        if self._shares.affords(_least_rows(chosen.prompt)):
            self._next = chosen
            if chosen.trial:
                self._shares.note_trial(chosen.lanes)

    def run(
        self, model: str, can_compare: Callable[[Prompt], bool], link: Callable[[Prompt, Strategy], Prefill]
    ) -> None:
        """Compare the prompt that waits, if one does.

        Args:
            model: the model's fingerprint.
            can_compare: whether all that a prompt is made of is still there.
            link: links it again.
        """
        comparison, self._next = self._next, None
        if comparison is None:
            return
        if not can_compare(comparison.prompt):
            self._count(skipped=1)
            return
        try:
            again = link(comparison.prompt, comparison.strategy)
        except EmblemaError:
            self._count(failed=1)
            return
        rows = again.trace.computed
        self._shares.spend("trial" if comparison.trial else "check", rows)
        self._count(**{"trial_rows" if comparison.trial else "rows": rows})
        reference, method = again.logits, comparison.logits
        if comparison.trial:
            if not comparison.lanes <= {(decision.kind, decision.lane) for decision in again.plan.decisions}:
                self._count(skipped=1)
                return
            reference, method = method, reference
        sample = compare(reference.cpu().numpy(), method.cpu().numpy())
        if not comparison.trial:
            self._shares.note_check(sample.agrees)
        accepted = not comparison.trial or sample.margin >= PROVISIONAL
        turned = [
            self._log.record(model, *lane, sample, self._policy, accepted=accepted) for lane in sorted(comparison.lanes)
        ]
        self._count(**{"trials" if comparison.trial else "checks": 1}, turned=sum(turned))

    def _trial(self, prefill: Prefill, closed: Lanes, policy: Policy) -> Comparison:
        """Return a trial of the closed lane that was tried least of those a prompt has rows for.

        Rows kept after a slide are tried for all kinds together, because the rows of each depend on the others.
        """
        prompt, (kind, lane) = prefill.prompt, self._shares.least_tried(closed)
        lanes = frozenset([(kind, lane)])
        if lane is Lane.SURVIVOR:
            lanes = frozenset(pair for pair in closed if pair[1] is lane)
            prompt = prompt.map_chunks(_with_distrusted_rows)
        return Comparison(prompt, prefill.logits.clone(), lanes, Auto(policy, Trial(kind, lane)))

    def _count(self, **more: int) -> None:
        changes = {name: getattr(self.statistics, name) + int(change) for name, change in more.items()}
        self.statistics = replace(self.statistics, **changes)


def _without_rows(segment: Segment, part: ChunkPart) -> ChunkPart:
    """Return a part without rows, so that it can be computed even if they are gone by then."""
    chunk = replace(part.chunk, rows=()) if part.state is RowState.WRITTEN else part.chunk
    return ChunkPart(chunk, part.slid, RowState.MISSING, part.name)


def _with_distrusted_rows(segment: Segment, part: ChunkPart) -> ChunkPart:
    """Return a part with the distrusted rows of a window in place of those that were computed again."""
    if part.distrusted is None:
        return part
    return ChunkPart(part.distrusted, part.slid, RowState.WRITTEN, part.name, kept_after_slide=True, repair=part.repair)


def _least_rows(prompt: Prompt) -> int:
    """Return how many rows of a prompt have to be computed at least: text, and parts without rows."""
    parts = (segment.part for segment in prompt.segments)
    return sum(part.tokens for part in parts if isinstance(part, TextPart) or part.state is RowState.MISSING)

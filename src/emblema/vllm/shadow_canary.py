"""The canary inside vLLM: a small share of the answered prompts is linked and computed in full again, and compared.

It chooses as the embedded engine's canary does (`session/canary.py`), and runs beside the scheduler. The worker
computes both in idle time, on pages from vLLM's pool (`shadow_runs`). Answers that were read are compared by the
logits that the worker noted of them.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from emblema.link.lanes import Lane, Lanes, Trial, measured_lanes
from emblema.link.plan import LinkPlan
from emblema.link.policy.comparison_shares import Comparing, ComparisonShares
from emblema.link.policy.fidelity import PROVISIONAL
from emblema.link.prompt import Prompt
from emblema.served.idle_time import IdleTime
from emblema.served.request_plan import RequestPlan, ServedRequest
from emblema.served.spans import CachedSpans
from emblema.served.staging import StagingOrder
from emblema.vllm.captures import BlockPool
from emblema.vllm.plan_maker import PlanMaker
from emblema.vllm.planner import STAGING_SECONDS
from emblema.vllm.step_metadata import ShadowOrder, ShadowReport, SidePrompt, StepMetadata, WorkerReport

MOST_BYTES = 64 * 2**20
"""Bytes of the media of a prompt that waits to be compared."""
PAGE_SHARE = 0.5
"""Share of the free pages that a comparison may take."""
AVERAGED = 128
"""Comparisons of a lane that its mean divergence is of: the latest."""

MakePrompt = Callable[[Any, tuple[int, ...], str], SidePrompt]
"""From vLLM's request, pages and a name: the prompt as it is computed beside what is scheduled."""


@dataclass(frozen=True, slots=True)
class ShadowComparison:
    """A prompt to be compared.

    Attributes:
        what: whether it was linked, or is a trial of a closed lane.
        request: whose prompt it is.
        prompt: its text and its chunks.
        plan: how it is linked.
        encodings: stored chunks of its pictures, by vLLM's names of these.
        lanes: kinds and lanes that are judged.
        noted: the request whose logits were noted; empty where the prompt is linked again.
    """

    what: Comparing
    request: ServedRequest
    prompt: Prompt
    plan: LinkPlan
    encodings: tuple[tuple[str, str], ...]
    lanes: Lanes
    noted: str = ""

    @property
    def rows(self) -> int:
        """Rows that are computed for it."""
        spans = CachedSpans.of(self.plan).step_rows(0, self.prompt.tokens, False)
        linked = 0 if self.noted else sum(stop - start for start, stop in spans.computed)
        return self.prompt.tokens + linked


@dataclass(slots=True, eq=False)
class PendingTrial:
    """A trial that is being planned on the thread that makes plans; `done` is set once `comparison` is there."""

    done: threading.Event = field(default_factory=threading.Event)
    comparison: ShadowComparison | None = None


@dataclass(slots=True)
class RunningShadow:
    """A comparison that workers are told of.

    Attributes:
        comparison: what is compared.
        number: of its orders, below zero.
        ordered: when it was ordered to be staged, in monotonic seconds.
        unstaged: how many workers have not staged it.
        blocks: its pages, once it has begun.
        working: how many workers are not done with them.
        given_up: whether workers were told that it is not wanted any more.
    """

    comparison: ShadowComparison
    number: int
    ordered: float
    unstaged: int
    working: int
    blocks: list[Any] | None = None
    given_up: bool = False

    @property
    def name(self) -> str:
        """By which it is staged."""
        return f"emblema\0shadow{self.number}"


class ShadowCanary:
    """Chooses prompts and follows their comparisons, one at a time; for the scheduler's thread.

    Args:
        maker: plans the server's prompts; it has the policy and the measurements.
        workers: how many report.
        block_size: rows of a page.
        make_prompt: see `MakePrompt`.
        media_bytes: returns the bytes of a request's media.
    """

    def __init__(
        self,
        maker: PlanMaker,
        workers: int,
        block_size: int,
        make_prompt: MakePrompt,
        media_bytes: Callable[[Any], int],
    ) -> None:
        self._maker, self._workers, self._block_size = maker, workers, block_size
        self._make_prompt, self._media_bytes = make_prompt, media_bytes
        self._shares = ComparisonShares()
        self._pool: BlockPool | None = None
        self._next: ShadowComparison | PendingTrial | None = None
        self._running: RunningShadow | None = None
        self._noted: str | None = None
        # What the next step tells the workers.
        self._dropped: list[str] = []
        self._ended: list[int] = []
        self._numbers = count(1)
        self._counts: dict[str, float] = {}
        self._divergences: dict[tuple[str, Lane], deque[float]] = {}

    def bind_pool(self, pool: BlockPool) -> None:
        """Take the pool of pages."""
        self._pool = pool

    @property
    def waiting(self) -> bool:
        """Whether a prompt waits to be compared, or to be staged."""
        return self._next is not None or (self._running is not None and self._running.blocks is None)

    @property
    def running(self) -> bool:
        """Whether a comparison has pages."""
        return self._running is not None and self._running.blocks is not None

    # choosing

    def consider(self, request_id: str, plan: RequestPlan) -> None:
        """Count a prompt that was answered, and perhaps take it to be compared."""
        if not plan.complete or plan.missing or plan.request.options.get("capture", True) is not True:
            return
        policy, decisions = self._maker.policy, plan.plan.decisions if plan.linked else ()
        lanes: Lanes = measured_lanes(decisions)
        noted = request_id if any(lane is Lane.QUERY for _, lane in lanes) else ""
        found = {(own.kind, lane) for own in plan.plan.decisions for lane in own.closed if lane is not Lane.QUERY}
        exact = plan.linked == 0 and bool(found)
        what: Comparing | None = "check" if lanes else "trial" if exact else None
        if noted and plan.margin is None:
            what = None
        computed = plan.prompt.tokens - plan.ready - plan.linked + plan.repeated
        free = self._next is None and self._running is None
        certified = not lanes or self._maker.is_certified(plan.request.store_salt, lanes)
        if not self._shares.earn(what, computed, policy, free=free, certified=certified):
            return
        if self._media_bytes(plan.request.source) > MOST_BYTES:
            return
        if what == "check":
            self._take(ShadowComparison("check", plan.request, plan.prompt, plan.plan, plan.encodings(0), lanes, noted))
        elif self._shares.affords(plan.prompt.tokens) and not policy.exact_only:
            lane = self._shares.least_tried(found, lambda kind, lane: False)[0]
            self._shares.note_trial([lane])
            pending = self._next = PendingTrial()
            self._maker.do(partial(self._plan_trial, pending, plan, Trial(*lane)))

    def _take(self, comparison: ShadowComparison) -> None:
        """Have a prompt compared, if its rows can be afforded."""
        if self._shares.affords(comparison.rows):
            self._next = comparison
            self._noted = comparison.noted or None

    def _plan_trial(self, pending: PendingTrial, plan: RequestPlan, trial: Trial) -> None:
        """Plan a trial, on the thread that makes plans; none where the lane has no rows to take, or is open by now."""
        try:
            made = self._maker.plan_trial(plan.request, trial)
            lanes = frozenset([(trial.kind, trial.lane)])
            if made is not None and lanes <= {(own.kind, own.lane) for own in made.plan.decisions}:
                encodings = made.encodings(0)
                pending.comparison = ShadowComparison("trial", plan.request, made.prompt, made.plan, encodings, lanes)
        finally:
            pending.done.set()

    # comparing

    def begin(self, step: StepMetadata, idle_time: IdleTime, now: float, idle: bool) -> StepMetadata:
        """Return a step of idle time with what it begins of a comparison.

        Args:
            step: the step.
            idle_time: says whether anything may begin.
            now: monotonic seconds.
            idle: whether no request is there.
        """
        if isinstance(self._next, PendingTrial):
            if not self._next.done.is_set():
                return step
            planned, self._next = self._next.comparison, None
            if planned is None:
                self._add("skipped")
            else:
                self._take(planned)
        running = self._running
        if running is None:
            if self._pool is None or self._next is None or not idle_time.captures(now, idle):
                return step
            comparison, self._next = self._next, None
            running = RunningShadow(comparison, -next(self._numbers), now, self._workers, self._workers)
            self._running = running
            return replace(step, stagings=(*step.stagings, _staging_order(running)))
        if running.blocks is not None:
            return step
        if running.unstaged:
            if now - running.ordered > STAGING_SECONDS:
                self._skip()
            return step
        pages = -(-running.comparison.prompt.tokens // self._block_size)
        if self._pool is None or pages > PAGE_SHARE * self._pool.get_num_free_blocks():
            self._skip()
            return step
        running.blocks = self._pool.get_new_blocks(pages)
        self._shares.spend(running.comparison.what, running.comparison.rows)
        idle_time.begin(now)
        return replace(step, shadow=self._order(running, running.blocks))

    def tell(self, step: StepMetadata) -> StepMetadata:
        """Return a step, of any moment, that tells the workers what to keep and what to let go of."""
        noted, self._noted = self._noted, None
        dropped, self._dropped = tuple(self._dropped), []
        ended, self._ended = tuple(self._ended), []
        if noted is None and not dropped and not ended:
            return step
        return replace(step, noted=noted, dropped=(*step.dropped, *dropped), shadows_ended=ended)

    def give_up(self) -> None:
        """Give pages back that requests wait for, as soon as the workers are done with them."""
        running = self._running
        if running is not None and running.blocks is not None and not running.given_up:
            running.given_up = True
            self._ended.append(running.number)

    def note(self, report: WorkerReport, idle_time: IdleTime, now: float) -> None:
        """Take what the workers report."""
        running = self._running
        if running is None:
            return
        running.unstaged -= report.staged.get(running.number, 0)
        if running.number in report.unstaged and running.blocks is None:
            self._skip()
            return
        found = report.shadows.get(running.number)
        if found is None:
            return
        running.working -= found.workers
        if found.outcome is None:
            running.given_up = True
        if running.working:
            return
        if self._pool is not None and running.blocks is not None:
            self._pool.free_blocks(reversed(running.blocks))
        self._running = None
        idle_time.end(now)
        self._finish(running, found)

    def _finish(self, running: RunningShadow, report: ShadowReport) -> None:
        comparison, outcome = running.comparison, report.outcome
        if outcome is None or running.given_up:
            self._add("skipped")
            return
        self._add("checks" if comparison.what == "check" else "trials")
        self._add("rows", outcome.rows)
        for lane in comparison.lanes:
            self._divergences.setdefault(lane, deque(maxlen=AVERAGED)).append(outcome.kl)
        salt = comparison.request.store_salt
        accepted = comparison.what == "check" or outcome.margin >= PROVISIONAL
        if comparison.what == "check":
            self._shares.note_check(outcome.agrees)
        self._maker.do(partial(self._maker.record, salt, comparison.lanes, outcome, accepted))

    def _skip(self) -> None:
        """Forget a comparison that has no pages yet."""
        if self._running is not None:
            self._dropped.append(self._running.name)
        self._running = None
        self._add("skipped")

    def _order(self, running: RunningShadow, blocks: Iterable[Any]) -> ShadowOrder:
        comparison = running.comparison
        pages = tuple(int(block.block_id) for block in blocks)
        prompt = self._make_prompt(comparison.request.source, pages, running.name)
        tokens, spans = comparison.prompt.tokens, CachedSpans.of(comparison.plan)
        rows = spans.step_rows(0, tokens, False)
        return ShadowOrder(running.number, running.name, prompt, tokens, rows.taken, rows.computed, comparison.noted)

    def _add(self, what: str, more: int = 1) -> None:
        self._counts[f"canary {what}"] = self._counts.get(f"canary {what}", 0) + more

    def take_counts(self) -> dict[str, float]:
        """Return what was done since the last call, and the mean divergences, by the names of `LinkedStats`."""
        counts, self._counts = self._counts, {}
        if not counts:
            return {}
        means = {
            f"canary_kl {kind} {lane}": sum(values) / len(values) for (kind, lane), values in self._divergences.items()
        }
        return counts | means


def _staging_order(running: RunningShadow) -> StagingOrder:
    comparison = running.comparison
    plan = comparison.plan
    if comparison.noted:
        plan = LinkPlan("plain", comparison.prompt.tokens, plan.layers, ())
    salt = comparison.request.store_salt
    return StagingOrder(running.number, running.name, salt, comparison.prompt, plan, comparison.encodings)

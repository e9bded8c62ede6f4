"""The scheduler's side: what each request takes, when it may, and what a step does of it. No vLLM in here."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from types import MappingProxyType

from emblema.latest import LatestDict
from emblema.link.miss_reasons import Cause
from emblema.link.plan import LinkPlan
from emblema.link.policy.decide import COSTS_MORE
from emblema.link.policy.expectations import openings_of
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.served.kept_prompts import KeepOrder
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import NOT_READY, RequestPlan
from emblema.served.request_report import plain_report, report_of
from emblema.served.requests import ServedRequest
from emblema.served.row_threshold import DEFAULT_ROWS, RowThreshold
from emblema.store import Store
from emblema.vllm.encoded_pictures import EncodedPictures
from emblema.vllm.plan_maker import PendingPlan, PlanMaker
from emblema.vllm.readings import QuestionReader
from emblema.vllm.step_metadata import (
    LinkOrder,
    PatchCapture,
    SidePrompt,
    StagingOrder,
    StepMetadata,
    WorkerReport,
)

_log = logging.getLogger(__name__)
MOST_LINES = 256
PLANNING_SECONDS = 1.0
"""How long the scheduler defers a request whose plan is not made; it is computed plainly after that."""
AWAITING_SECONDS = 0.01
"""How long a step waits for plans that are being made: one that leaves their requests out costs more than most plans
take."""
LEAST_ROWS, LEAST_SLOTS = 256, 8
"""Rows, and places in the batch, that a step has for prompts whose requests wait before others are let in; a quarter
of all rows, and half of all places, where that is less."""
CAPTURING_SECONDS, MOST_CAPTURING_SECONDS = 3.0, 30.0
"""How long a request waits for pictures that are prefilled alone so that it can be read, while none is ready, and at
most: of many that come at once each waits for the pictures of those before it, as it would for their rows."""
REPLANNING_SECONDS, MOST_REPLANS = 0.02, 25
"""How soon and how often a request is planned again once its pictures were, as they may not be stored yet."""
REMEMBERED_CAPTURES, REMEMBERED_OPENINGS = 4096, 2**16
LATE = "the store did not answer in time"
STAGING_SECONDS = 1.0
"""How long a request waits until all workers have read what it takes; it is computed plainly after that."""


@dataclass(slots=True)
class LinkCounts:
    """What was linked since the last report: rows, their bytes, and rows that readings ran beside the prompts' own."""

    linked_tokens: int = 0
    linked_bytes: int = 0
    extra_tokens: int = 0


@dataclass(slots=True)
class Staging:
    """What a request takes, on its way into the memory of all workers.

    Attributes:
        number: of the order.
        ordered: when, in monotonic seconds.
        missing: how many workers have not reported it.
        stepped: whether its request has pages.
    """

    number: int
    ordered: float
    missing: int
    stepped: bool = False


class RequestPlanner:
    """Plans requests and follows them; used by the scheduler's thread alone.

    Plans are made on another thread (`PlanMaker`): the scheduler never waits for a disk. It defers a request until its
    plan is made, and has it computed plainly where that takes longer than `PLANNING_SECONDS`.

    Args:
        spec: of the model; None where nothing can be linked.
        store: is only read here; the worker's side writes it.
        strategy: for requests that name none.
        forms: whether patches are formed of what is computed plainly.
        step_rows, places: of a step, and of the batch.
        workers: how many report what is staged.
        shared: whether vLLM's prefix cache is on.
        refusal: why there is no spec, for the log.
        second_pass: why no plan with a second pass can be carried out; None where it can.
        policy: the bounds of `auto`.
        measured: the model in whose name the embedded engine measured lanes; empty for the served one's own.

    Attributes:
        least_rows: see `RowThreshold.rows`.
        second_pass: why no plan with one can be carried out; None where it can.
        maker: makes the plans; None without a spec.
        encoded: pictures whose encoder outputs vLLM has.
        starving: whether the last step had too little room for prompts whose requests wait.
    """

    def __init__(
        self,
        spec: ModelSpec | None,
        store: Store,
        strategy: str,
        forms: bool,
        step_rows: int,
        places: int,
        workers: int = 1,
        shared: bool = True,
        refusal: str | None = None,
        second_pass: str | None = NOT_READY,
        policy: Policy | None = None,
        measured: str = "",
    ) -> None:
        self.spec = spec
        self.least_rows, self._shared = DEFAULT_ROWS, shared
        self.policy, self.second_pass = policy or Policy(), second_pass
        self._store, self._forms, self._workers = store, forms, workers
        self._least_rows = min(LEAST_ROWS, max(1, step_rows // 4))
        self._least_slots = min(LEAST_SLOTS, max(1, places // 2))
        self.readings, self.encoded, self.starving = QuestionReader(workers), EncodedPictures(), False
        self.maker: PlanMaker | None = None
        if spec is not None:
            self.maker = PlanMaker(
                spec,
                store,
                strategy,
                forms,
                lambda captures: self.costs(captures=captures),
                second_pass,
                self.policy,
                self._log_once,
                measured,
            )
        self._pending: dict[str, PendingPlan] = {}
        # A plan that was not made in time: while it is not done, no other request waits for the store.
        self._late: PendingPlan | None = None
        # Whether a step waited for plans that were not made in time, and still are not.
        self._hurried = False
        self._plans: dict[str, RequestPlan | None] = {}
        # Reports of requests with media that have no plan.
        self._plain: dict[str, dict[str, object]] = {}
        self._refusal = refusal or "this server links nothing"
        self._counts = LinkCounts()
        self._numbers = count()
        self._stagings: dict[str, Staging] = {}
        # Prompts that workers link; a request that has ended meanwhile keeps its pages until they are done.
        self._links: set[str] = set()
        # What the next step tells the workers: new orders, and requests whose rows are not wanted any more.
        self._orders: dict[str, StagingOrder] = {}
        self._link_orders: list[LinkOrder] = []
        self._dropped: list[str] = []
        self._logged: set[str] = set()
        # Plans whose pictures are to be prefilled alone, as their requests wait for them; and pictures that were.
        self._wanted: list[RequestPlan] = []
        self._captured: LatestDict[str, None] = LatestDict(REMEMBERED_CAPTURES)
        # When the last of them was ready, in monotonic seconds.
        self._last_capture = 0.0
        # Beginnings of prompts of which the prefix cache has nothing, as the last prompt with each was linked.
        self._linked: LatestDict[bytes, None] = LatestDict(REMEMBERED_OPENINGS)
        if refusal is not None:
            self._log_once(f"every prompt is computed plainly: {refusal}")

    def close(self) -> None:
        """End the thread, and close the store."""
        if self.maker is not None:
            self.maker.close()
        self._store.close()

    def _log_once(self, line: str) -> None:
        if line not in self._logged and len(self._logged) < MOST_LINES:
            self._logged.add(line)
            _log.warning("emblema: %s", line)

    # requests

    def announce(self, request_id: str, describe: Callable[[], ServedRequest]) -> None:
        """Begin to plan a request that has arrived."""
        if request_id in self._plans or request_id in self._pending:
            return
        request = describe()
        if self._late is not None and self._late.done.is_set():
            self._late = None
        if not request.items:
            self._plans[request_id] = None
        elif self.maker is None:
            self._compute(request_id, request, self._refusal)
        elif self._late is not None:
            self._compute(request_id, request, LATE)
        else:
            pending = self._pending[request_id] = PendingPlan(request)
            self.maker.begin(pending)

    def _compute(
        self, request_id: str, request: ServedRequest, reason: str, causes: Mapping[int, Cause] = MappingProxyType({})
    ) -> None:
        """Have a request with media computed without a plan; arguments as of `plain_report`."""
        self._plans[request_id], self._plain[request_id] = None, plain_report(request, reason, causes)

    def prepare(self, request_id: str, describe: Callable[[], ServedRequest], ready: int = 0) -> bool:
        """Return whether it is decided what a request takes; where it is not, the scheduler asks again later.

        Args:
            request_id: of vLLM.
            describe: returns the request.
            ready: rows that the prefix cache has.
        """
        self.announce(request_id, describe)
        pending = self._pending.get(request_id)
        if pending is None:
            return True
        now = time.monotonic()
        pending.asked = now if pending.asked is None else pending.asked
        if not pending.done.is_set():
            if now - pending.asked < PLANNING_SECONDS:
                return False
            self._log_once(f"the store did not answer within {PLANNING_SECONDS:g} s; requests are computed plainly")
            self._late = pending
        plan = pending.plan if pending.done.is_set() else None
        if plan is not None and plan.awaits:
            self._await_chunks(pending, plan, now, ready)
            return False
        del self._pending[request_id]
        if plan is None:
            made = pending.done.is_set()
            refusal, causes = (pending.refusal, pending.causes) if made else (LATE, {})
            self._compute(request_id, pending.request, refusal, causes)
        else:
            self._plans[request_id] = plan
        return True

    def _await_chunks(self, pending: PendingPlan, plan: RequestPlan, now: float, ready: int) -> None:
        """Have missing pictures prefilled alone, and the request planned again once they were.

        Not where the prefix cache has so much that this does not pay: the request is planned again as it is.
        """
        if pending.awaited is None:
            pending.awaited, pending.final = now, not self._capturing_pays(plan, ready)
            if not pending.final:
                self._wanted.append(plan)
        overdue = now - max(pending.awaited, self._last_capture) >= CAPTURING_SECONDS
        overdue = overdue or now - pending.awaited >= MOST_CAPTURING_SECONDS
        pending.final = pending.final or overdue or pending.replans >= MOST_REPLANS
        captured = all(chunk.id in self._captured for chunk in plan.missing)
        if self.maker is not None and (pending.final or (captured and now >= pending.again)):
            pending.asked, pending.again = None, now + REPLANNING_SECONDS
            pending.replans += 1
            pending.done.clear()
            self.maker.begin(pending)

    def _capturing_pays(self, plan: RequestPlan, ready: int) -> bool:
        """Return whether it pays to prefill a prompt's missing pictures alone, for the rows that are not ready."""
        new, found = {chunk.id: chunk for chunk in plan.missing}, self._found(plan.prompt, ready)
        left = [(segment, chunk) for segment, chunk in plan.prompt.chunk_segments if segment.stop > found]
        known = sum(chunk.tokens for _, chunk in left if chunk.id not in new)
        rows = sum(segment.stop - max(segment.start, found) for segment, _ in left)
        costs = self.costs(plan, captures=True)
        return costs.capturing_pays(plan.prompt, rows, self.policy.query_share, new.values(), known)

    def take_wanted(self) -> list[RequestPlan]:
        """Return plans whose missing pictures requests wait for since the last call."""
        wanted, self._wanted = self._wanted, []
        return wanted

    def await_plans(self, idle: bool) -> None:
        """Wait a moment until all plans are made that were begun.

        Args:
            idle: whether nothing else could be done meanwhile; otherwise nothing waits again for a plan that is late.
        """
        # Plans are made in the order in which they were begun.
        last = next(reversed(self._pending.values()), None)
        if last is None or last.done.is_set():
            self._hurried = False
        elif idle or not self._hurried:
            self._hurried = not last.done.wait(AWAITING_SECONDS)

    @property
    def reads(self) -> bool:
        """Whether anything is being read for a request that waits: its plan, or what it takes."""
        plans = any(not pending.done.is_set() for pending in self._pending.values())
        return plans or any(staging.missing for staging in self._stagings.values())

    def get(self, request_id: str) -> RequestPlan | None:
        """Return the plan of a request; None if it has none, or none yet."""
        return self._plans.get(request_id)

    def finish(self, request_id: str) -> dict[str, object] | None:
        """Forget a request and return what its reply reports; None for one without media."""
        self._drop(request_id)
        self.readings.abandon(request_id)
        self._pending.pop(request_id, None)
        plan, plain = self._plans.pop(request_id, None), self._plain.pop(request_id, None)
        return plain if plan is None or self.spec is None else report_of(plan, self.spec)

    # steps

    def admit(self, request_id: str, ready: int) -> bool:
        """Return whether a waiting request, whose plan is made, may be scheduled now.

        What it takes is staged first, on all workers.

        Args:
            request_id: of vLLM.
            ready: rows that the prefix cache has.
        """
        plan, staging = self._plans.get(request_id), self._stagings.get(request_id)
        if plan is None:
            return True
        if staging is not None and staging.stepped:
            # It was preempted.
            self._drop(request_id)
            staging = None
        if staging is None:
            plan.restart()
            self._weigh(plan, ready)
            if self._order(request_id, plan, ready):
                return False
        elif staging.missing:
            if time.monotonic() - staging.ordered < STAGING_SECONDS:
                return False
            self._log_once(f"rows were not read within {STAGING_SECONDS:g} s; a request is computed plainly")
            plan.fail()
            self._drop(request_id)
        return True

    def awaited_rows(self, request_id: str, ready: int) -> int:
        """Return how many of an admitted request's rows are made before any of it is scheduled.

        Args:
            request_id: of vLLM.
            ready: rows that the prefix cache has.
        """
        plan = self._plans.get(request_id)
        if plan is None:
            return 0
        if plan.reads(ready):
            return plan.prompt.tokens - ready
        loaded = plan.cached.load(ready, plan.prompt.tokens)
        return 0 if loaded is None else loaded.stop - ready

    def begin_load(self, request_id: str, ready: int, prompt: SidePrompt) -> None:
        """Begin to make the rows that a request waits for, which has its pages.

        Args:
            request_id: of vLLM.
            ready: rows that the prefix cache has.
            prompt: see `LinkOrder`.
        """
        plan = self._plans[request_id]
        if plan is None:
            return
        if plan.reads(ready):
            # The reading lets go of its rows.
            self._stagings.pop(request_id, None)
            self.readings.begin(request_id, plan, ready, prompt)
            return
        loaded = plan.cached.load(ready, plan.prompt.tokens)
        if loaded is not None:
            self._stagings[request_id].stepped = True
            plan.linked, plan.patched = loaded.linked, plan.cached.patched_rows(loaded.taken)
            self._links.add(request_id)
            self._link_orders.append(LinkOrder(request_id, prompt, loaded.taken, loaded.computed, plan.kept_names))

    def end_load(self, request_id: str, succeeded: bool) -> None:
        """Note that the workers are done with what a request waits for; where that failed, it is computed."""
        if request_id not in self._links:
            self.readings.end(request_id, succeeded)
            return
        self._links.discard(request_id)
        plan = self._plans.get(request_id)
        if plan is None:
            return
        if not succeeded:
            self._fail(request_id)
            return
        self._counts.linked_tokens += plan.linked
        self._counts.linked_bytes += 0 if self.spec is None else plan.linked * self.spec.shards * self.spec.row_bytes

    def load_room(self, rows: int, slots: int) -> tuple[int, int]:
        """Return the rows and places in the batch that waiting prompts have in a step; none where there are none.

        Where a step has too few left, no other request is let in before the next one: it would take what they wait for.

        Args:
            rows, slots: that the step has left.
        """
        under_way = bool(self._links) or self.readings.under_way
        self.starving = under_way and (rows < self._least_rows or slots < self._least_slots)
        return (rows, slots) if under_way else (0, 0)

    def _order(self, request_id: str, plan: RequestPlan, ready: int) -> bool:
        """Have what a request takes staged; return whether it waits for that.

        One that is computed waits only for encoder outputs that vLLM lacks.
        """
        encodings, linked = plan.encodings(ready), plan.cached.after(ready)
        if plan.failed or not (linked or encodings):
            return False
        number, salt = next(self._numbers), plan.request.store_salt
        taken = plan.plan if linked else LinkPlan("plain", plan.prompt.tokens, plan.plan.layers, ())
        awaited = linked or not self.encoded.has(name for name, _ in encodings)
        prompt, kept = (plan.placed or plan.prompt, plan.kept) if linked else (plan.prompt, {})
        order = StagingOrder(number, request_id, salt, prompt, taken, encodings, awaited, kept)
        self._orders[request_id] = order
        self._stagings[request_id] = Staging(number, time.monotonic(), self._workers if awaited else 0)
        return awaited

    def _drop(self, request_id: str) -> None:
        """Have the workers let go of what a request takes."""
        if self._stagings.pop(request_id, None) is not None and self._orders.pop(request_id, None) is None:
            self._dropped.append(request_id)

    def _weigh(self, plan: RequestPlan, ready: int) -> None:
        """Have a prompt computed, if `auto` planned it and linking does not pay; decided once a prompt."""
        if plan.weighed:
            return
        plan.weighed = True
        again, spans = plan.plan.recomputation, plan.cached.spans
        if plan.plan.decisions and spans and self.least_rows > 0:
            found, costs = self._found(plan.prompt, ready), self.costs(plan)
            if again is not None and plan.reads(ready):
                left = again.after(found)
                rows = 0 if left is None else sum(stop - start for start, stop in left.candidates)
                pays = costs.second_pass_pays(plan.prompt, rows, self.policy.query_share)
            else:
                pays = costs.runs_pay(spans, found)
            if not pays:
                plan.decline(COSTS_MORE)
        if self._shared:
            self._note_openings(plan, ready)

    def _found(self, prompt: Prompt, ready: int) -> int:
        """Return how many rows the prefix cache has of a prompt, or would have, had prompts before it been computed.

        So a prompt that begins as a linked one did is computed, and those that go on from it find its rows.
        """
        ends = zip(prompt.chunk_segments, openings_of(prompt), strict=True)
        return max([ready, *(segment.stop for (segment, _), opening in ends if opening in self._linked)])

    def _note_openings(self, plan: RequestPlan, ready: int) -> None:
        """Note which beginnings of a prompt the prefix cache will have."""
        private = plan.cached.private_from(ready)
        for (segment, _), opening in zip(plan.prompt.chunk_segments, openings_of(plan.prompt), strict=True):
            if private is not None and segment.stop > private:
                self._linked[opening] = None
            else:
                self._linked.pop(opening, None)

    def costs(self, plan: RequestPlan | None = None, captures: bool = False) -> RowThreshold:
        """Return what linking is expected to cost; any thread may ask.

        Args:
            plan: of the prompt that it is asked of; None where nothing is known of it.
            captures: whether a prompt may wait for pictures that are prefilled alone.
        """
        continued = 0.0 if plan is None else plan.continued
        return RowThreshold(self.least_rows, self.readings.unsure_share, captures, lambda prompt: continued)

    def note(self, report: WorkerReport) -> None:
        """Take what the workers report."""
        by_number = {staging.number: name for name, staging in self._stagings.items()}
        for number, workers in report.staged.items():
            if number in by_number:
                staging = self._stagings[by_number[number]]
                staging.missing = max(0, staging.missing - workers)
        for name in (by_number[number] for number in report.unstaged if number in by_number):
            self._fail(name)
        if self.maker is not None and (report.lost or report.captured):
            self.maker.memory.lose(report.lost)
            self.maker.memory.regain(report.captured)
            for chunk in report.captured:
                self._captured[chunk] = None
            self._last_capture = time.monotonic() if report.captured else self._last_capture
        self.readings.note(report)

    def _fail(self, request_id: str) -> None:
        plan = self._plans.get(request_id)
        if plan is not None:
            plan.fail()
        self._drop(request_id)

    def step_metadata(
        self, scheduled: dict[str, tuple[int, int]], blocks: Callable[[str], tuple[int, ...]], quiet: bool, alone: bool
    ) -> StepMetadata:
        """Return the work on the pages in the step that was scheduled.

        Args:
            scheduled: by request id, its first row and how many there are.
            blocks: finds a request's pages.
            quiet: whether no request waits, so that rows may be read that patches are formed of.
            alone: whether no other request comes soon, so that reading them holds none up.
        """
        patches, keeps, forgotten = [], list[KeepOrder](), list[str]()
        for request_id, (start, rows) in scheduled.items():
            plan, staging = self._plans.get(request_id), self._stagings.get(request_id)
            if plan is None or start >= plan.prompt.tokens:
                continue
            if staging is not None:
                staging.stepped = True
            if plan.needs and quiet and self._forms and plan.prompt.tokens <= start + rows:
                salt, pages = plan.request.store_salt, blocks(request_id)
                patches.append(PatchCapture(salt, plan.prompt, plan.needs, pages, alone))
            if plan.request.keeps and self.maker is not None and start < plan.prompt.tokens <= start + rows:
                name, gone = self.maker.kept_prompts.keep(plan.request.store_salt, plan.placed or plan.prompt)
                forgotten += gone
                if name is not None:
                    shown = tuple(plan.kept_names.items())
                    keeps.append(KeepOrder(name, blocks(request_id), plan.prompt.tokens, shown))
        readings, choices = self.readings.take()
        orders, self._orders = self._orders, {}
        links, self._link_orders = self._link_orders, []
        dropped, self._dropped = self._dropped, []
        for request_id in scheduled:
            plan, staging = self._plans.get(request_id), self._stagings.get(request_id)
            if plan is not None and staging is not None and sum(scheduled[request_id]) >= plan.prompt.tokens:
                # The workers let go of it in the next step.
                self._drop(request_id)
        return StepMetadata(
            tuple(orders.values()),
            tuple(dropped),
            tuple(links),
            readings=readings,
            choices=choices,
            patches=tuple(patches),
            keeps=tuple(keeps),
            forgotten=tuple(forgotten),
            computes=bool(scheduled),
        )

    def staged_pictures(self, request_id: str, pictures: Sequence[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
        """Return those of a request's pictures, by number and name, whose encoder outputs may be staged."""
        return tuple(pictures) if request_id in self._stagings else ()

    def kept_pictures(self, request_id: str, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Return the chunks of some of a request's pictures, each after its name, where the request's rows are kept."""
        plan = self._plans.get(request_id)
        chunks = {} if plan is None else plan.kept_names
        return tuple((name, chunks[name]) for name in names if name in chunks)

    def take_counts(self) -> LinkCounts:
        """Return what was linked since the last call."""
        counts, self._counts = self._counts, LinkCounts()
        counts.extra_tokens = self.readings.take_extra_rows()
        return counts

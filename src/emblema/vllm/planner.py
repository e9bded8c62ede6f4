"""The scheduler's side: what each request takes, when it may, and what a step does of it. No vLLM in here."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any

from emblema.link.plan import LinkPlan
from emblema.link.policy.choosing import Trial
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.frequency import FrequencySketch
from emblema.link.policy.policy import Lane, Policy, PolicyInputs, RowCosts
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.request_plan import (
    COSTS_MORE,
    NOT_READY,
    ChunkStubs,
    RequestPlan,
    ServedRequest,
    plan_request,
    plan_trial,
    reading_pays,
    shares_read,
)
from emblema.plugin.stored import StoreMemory
from emblema.plugin.stored_pairs import StoredPairs, unfit_for_pairs
from emblema.store import Store
from emblema.vllm.batch_places import BatchPlaces
from emblema.vllm.lane_ledgers import LaneLedgers
from emblema.vllm.pending_plan import PendingPlan, Staging
from emblema.vllm.picture_sightings import PictureSightings
from emblema.vllm.prompt_reuse import PromptReuse
from emblema.vllm.readings import QuestionReader
from emblema.vllm.step_costs import StepCosts
from emblema.vllm.step_metadata import (
    PatchCapture,
    RowLoad,
    ShadowOutcome,
    StagingOrder,
    StepMetadata,
    WorkerReport,
)

_log = logging.getLogger(__name__)
MOST_LINES = 256
MOST_SKETCHES = 256
REMEMBERED_NAMES = 2**16
PLANNING_SECONDS = 1.0
"""How long the scheduler defers a request whose plan is not made; it is computed plainly after that."""
AWAITING_SECONDS = 0.01
"""How long a step waits for plans that are being made: one that leaves their requests out costs more than most plans
take."""
LEAST_PLACES = 4
"""Places in the batch from which prompts are read: some for readings, and one for a request that was read."""
CAPTURING_SECONDS, REPLANNING_SECONDS, MOST_REPLANS = 3.0, 0.02, 25
"""How long a request waits for pictures that are prefilled alone so that it can be read; how soon and how often it is
planned again once they were, as they may not be stored yet."""
REMEMBERED_CAPTURES = 4096
STAGING_SECONDS = 1.0
"""How long a request waits until all workers have read what it takes; it is computed plainly after that."""


@dataclass(slots=True)
class LinkCounts:
    """What was linked since the last report: rows, and their bytes."""

    linked_tokens: int = 0
    linked_bytes: int = 0


class RequestPlanner:
    """Plans requests and follows them; used by the scheduler's thread alone.

    Plans are made on a thread of its own, which alone reads the store: the scheduler never waits for a disk. It defers
    a request until its plan is made, and has it computed plainly where that takes longer than `PLANNING_SECONDS`.

    Args:
        spec: of the model; None where nothing can be linked.
        store: is only read here; the worker's side writes it.
        strategy: for requests that name none.
        forms: whether patches are formed of what is computed plainly.
        places: of the batch.
        workers: how many report what is staged.
        costs: what linking costs here; None where `auto` links whatever it may.
        reuse: what prompts leave to later ones; with a prefix cache where None.
        refusal: why there is no spec, for the log.
        second_pass: why no plan with a second pass can be carried out; None where it can.
        policy: the bounds of `auto`.
    """

    def __init__(
        self,
        spec: ModelSpec | None,
        store: Store,
        strategy: str,
        forms: bool,
        places: BatchPlaces,
        workers: int = 1,
        costs: StepCosts | None = None,
        reuse: PromptReuse | None = None,
        refusal: str | None = None,
        second_pass: str | None = NOT_READY,
        policy: Policy | None = None,
    ) -> None:
        self.spec = spec
        self.costs, self._reuse = costs, reuse or PromptReuse(shared=True)
        self.policy = policy or Policy()
        self._ledgers = LaneLedgers(store)
        self._store, self._strategy, self._forms, self._places, self._workers = store, strategy, forms, places, workers
        self._second_pass = second_pass
        self.readings = QuestionReader(workers, places)
        self._stubs = None if spec is None else ChunkStubs(spec)
        self._pending: dict[str, PendingPlan] = {}
        # A plan that was not made in time: while it is not done, no other request waits for the store.
        self._late: PendingPlan | None = None
        # Whether a step waited for plans that were not made in time, and still are not.
        self._hurried = False
        self._plans: dict[str, RequestPlan | None] = {}
        self._counts = LinkCounts()
        self._numbers = count()
        self._stagings: dict[str, Staging] = {}
        # What the next step tells the workers: new orders, and requests whose rows are not wanted any more.
        self._orders: dict[str, StagingOrder] = {}
        self._dropped: list[str] = []
        self._logged: set[str] = set()
        # By tenant, the chunks after their antecedents that were met lately; of the tenants that came last. The
        # thread's own.
        self._met: OrderedDict[bytes, FrequencySketch] = OrderedDict()
        self._memory = StoreMemory(store)
        self._pairs = None if spec is None else StoredPairs(store, spec)
        # By vLLM's name of a picture, the digest of what was shown under it; empty where that was not always the same.
        self._names: OrderedDict[str, str] = OrderedDict()
        self._sightings = PictureSightings()
        # Plans whose pictures are to be prefilled alone, as their requests wait for them; and pictures that were.
        self._wanted: list[RequestPlan] = []
        self._captured: OrderedDict[str, None] = OrderedDict()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emblema-plan", daemon=True)
        self._thread.start()
        if refusal is not None:
            self._log_once(f"every prompt is computed plainly: {refusal}")
        elif spec is not None and (unfit := unfit_for_pairs(spec)):
            self._log_once(f"nothing is learnt of pairs: {unfit}")

    def close(self) -> None:
        """End the thread, and close the store."""
        self._work.put(None)
        self._thread.join(PLANNING_SECONDS)
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
        request = None if self._stubs is None else describe()
        if self._late is not None and self._late.done.is_set():
            self._late = None
        if request is None or not request.items or self._late is not None:
            self._plans[request_id] = None
        else:
            pending = self._pending[request_id] = PendingPlan(request)
            self._work.put(partial(self._plan, pending))

    def prepare(self, request_id: str, describe: Callable[[], ServedRequest]) -> bool:
        """Return whether it is decided what a request takes; where it is not, the scheduler asks again later."""
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
            self._await_chunks(pending, plan, now)
            return False
        del self._pending[request_id]
        self._plans[request_id] = plan
        return True

    def _await_chunks(self, pending: PendingPlan, plan: RequestPlan, now: float) -> None:
        """Have missing pictures prefilled alone, and the request planned again once they were."""
        if pending.awaited is None:
            pending.awaited = now
            self._wanted.append(plan)
        pending.final = now - pending.awaited >= CAPTURING_SECONDS or pending.replans >= MOST_REPLANS
        captured = all(chunk.id in self._captured for chunk in plan.missing)
        if pending.final or (captured and now >= pending.again):
            pending.asked, pending.again = None, now + REPLANNING_SECONDS
            pending.replans += 1
            pending.done.clear()
            self._work.put(partial(self._plan, pending))

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

    def do(self, work: Callable[[], None]) -> None:
        """Have something done on the thread that reads the store, once the plans are made that were begun."""
        self._work.put(work)

    # the thread

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                # A server that cannot compare prompts still serves.
                _log.exception("emblema: a prompt was not compared")

    def _plan(self, pending: PendingPlan) -> None:
        try:
            pending.plan = self._make_plan(pending)
        except Exception:
            # No error of a plan may end the server: the request is computed.
            _log.exception("emblema: a request is computed plainly, as it could not be planned")
        pending.done.set()

    def plan_trial(self, request: ServedRequest, trial: Trial) -> RequestPlan | None:
        """Plan a prompt with a lane that is closed; None where it is open, or the prompt cannot be linked by it."""
        inputs = self._inputs(request.store_salt, None, self._ledgers.of(request.store_salt))
        if self._stubs is None or inputs.verdict(trial.kind, trial.lane, self.policy).open:
            return None
        self._memory.refresh()
        return plan_trial(request, self._stubs, self._store.tenant(request.store_salt), self._memory, trial, inputs)

    def record(self, salt: bytes, lanes: frozenset[tuple[str, Lane]], outcome: ShadowOutcome) -> None:
        """Keep what a comparison showed of a tenant's lanes."""
        if self.spec is not None:
            self._ledgers.record(salt, self.spec.fingerprint, lanes, outcome, self.policy)

    def _make_plan(self, pending: PendingPlan) -> RequestPlan | None:
        if self._stubs is None:
            return None
        request = pending.request.checked()
        # Names are checked of every request: what is shown by one that is not linked is in vLLM's caches too.
        named = all([self._is_name_of(item.identifier, item.digest) for item in request.items])
        refusal = request.why_plain() or (None if named else "a picture's name was another's before")
        if refusal is not None:
            self._log_once(f"a request is computed plainly: {refusal}")
            return None
        store = self._store.tenant(request.store_salt)
        met = self._met_by(request.store_salt)
        self._memory.refresh()
        costs, salt = self.costs, request.store_salt
        asked = request.options.get("strategy", self._strategy)
        if pending.trying is None:
            pending.trying = costs is not None and asked == "auto" and costs.due()
        trying, first = pending.trying, pending.awaited is None
        captures = self._forms and not pending.final and request.options.get("capture", True) is True
        plan = plan_request(
            request,
            self._stubs,
            store,
            self._memory,
            self._strategy,
            self._log_once,
            met,
            lambda spans, rows: costs is None or costs.pays(spans, 0, rows, self._reuse.uses(salt), trying),
            self._second_pass,
            self._inputs(salt, met, self._ledgers.of(salt), trying),
            self._pairs,
            self._sightings.mean(salt) if captures else None,
        )
        plan.trying = trying
        if first:
            self._sightings.observe(salt, (chunk.id for _, chunk in plan.prompt.chunk_segments))
        if costs is not None and plan.plan.decisions and plan.cached.spans:
            costs.tried()
        return plan

    def _inputs(self, salt: bytes, met: FrequencySketch | None, log: FidelityLog, trying: bool = False) -> PolicyInputs:
        """Return what `auto` decides by: this server's costs, and a tenant's latest prompts and measured lanes."""
        costs, policy, model = self.costs, self.policy, "" if self.spec is None else self.spec.fingerprint
        return PolicyInputs(
            policy,
            lambda kind, lane, bounds: log.verdict(model, kind, lane, bounds),
            plateau=log.plateau(model),
            least_margin=lambda kinds: log.least_margin(model, kinds),
            recurs=lambda names: met is not None and met.estimate(names) > 0,
            unsure=self.readings.unsure_share,
            row_costs=RowCosts if costs is None else partial(costs.row_costs, trying),
            # What is read leaves no pages that later prompts find.
            continued=lambda prompt: 0.0 if costs is None else min(1.0, self._reuse.uses(salt)),
        )

    def _is_name_of(self, identifier: str, digest: str) -> bool:
        """Return whether all that was shown under a name was the same, as far as is remembered.

        vLLM keeps encoder outputs by such names, so rows of a name that was another picture's may be that picture's.
        """
        if not digest:
            return False
        known = self._names.setdefault(identifier, digest)
        if known != digest:
            self._names[identifier] = ""
        self._names.move_to_end(identifier)
        if len(self._names) > REMEMBERED_NAMES:
            self._names.popitem(last=False)
        return known == digest

    def _met_by(self, salt: bytes) -> FrequencySketch:
        sketch = self._met.setdefault(salt, FrequencySketch())
        self._met.move_to_end(salt)
        while len(self._met) > MOST_SKETCHES:
            self._met.popitem(last=False)
        return sketch

    def finish(self, request_id: str) -> dict[str, object] | None:
        """Forget a request and return what its reply reports; None where nothing was planned."""
        self._drop(request_id)
        self._places.leave(request_id)
        self.readings.abandon(request_id)
        self._pending.pop(request_id, None)
        plan = self._plans.pop(request_id, None)
        if plan is None:
            return None
        pieces = {} if plan.request.options.get("pieces") is not True else {"pieces": self._pieces(plan)}
        read: dict[str, object] = {} if plan.margin is None else {"margin": plan.margin}
        return (
            pieces
            | {
                "strategy": plan.plan.strategy if plan.linked else "plain",
                "prompt_tokens": plan.prompt.tokens,
                "media_tokens": sum(chunk.tokens for _, chunk in plan.prompt.chunk_segments),
                "linked_tokens": plan.linked,
                "kv_bytes": plan.linked * self._row_bytes,
                "stored": not plan.missing and not plan.lacking,
                "remark": plan.remark,
            }
            | read
        )

    def _pieces(self, plan: RequestPlan) -> dict[str, object]:
        """Return what a request that asks for it is told of its chunks: their ids, and whose patches are formed."""
        return {
            "model": None if self.spec is None else self.spec.fingerprint,
            "chunks": [chunk.id for _, chunk in plan.prompt.chunk_segments],
            "forming": [key.chunk for key, _, _ in plan.needs],
        }

    @property
    def _row_bytes(self) -> int:
        spec = self.spec
        return 0 if spec is None else spec.shards * spec.dtype.itemsize * sum(each.features for each in spec.layouts)

    # steps

    def admit(self, request_id: str, ready: int) -> bool:
        """Return whether a waiting request, whose plan is made, may be scheduled now.

        What it takes is staged first, on all workers, and it needs places in the batch for its virtual requests.

        Args:
            request_id: of vLLM.
            ready: rows that the prefix cache has.
        """
        plan, staging = self._plans.get(request_id), self._stagings.get(request_id)
        if plan is None:
            return self._places.admit(request_id, 0)
        if staging is not None and staging.stepped:
            # It was preempted.
            self._drop(request_id)
            staging = None
        if staging is None:
            plan.restart(ready)
            if self.costs is not None:
                self._weigh(plan, ready, self.costs)
            self._check_places(plan, ready)
            if self._order(request_id, plan, ready):
                return False
        elif staging.missing:
            if time.monotonic() - staging.ordered < STAGING_SECONDS:
                return False
            self._log_once(f"rows were not read within {STAGING_SECONDS:g} s; a request is computed plainly")
            plan.fail()
            self._drop(request_id)
        if plan.reads(ready):
            return self.readings.may_begin(request_id)
        runs = plan.cached.runs(ready, plan.prompt.tokens) if plan.cached.after(ready) else 1
        return self._places.admit(request_id, runs - 1)

    def begin_reading(self, request_id: str, ready: int, data: Any, pictures: Mapping[str, str]) -> None:
        """Begin to read a request that has its pages; see `QuestionReader.begin`. The reading lets go of its rows."""
        plan = self._plans[request_id]
        if plan is not None:
            self._stagings.pop(request_id, None)
            self.readings.begin(request_id, plan, ready, data, pictures)

    def _check_places(self, plan: RequestPlan, ready: int) -> None:
        """Have a prompt computed that needs more places than the batch has."""
        if plan.reads(ready):
            if self._places.most < LEAST_PLACES:
                plan.decline("a second pass needs more places than max_num_seqs")
        elif plan.cached.after(ready) and plan.cached.runs(ready, plan.prompt.tokens) > self._places.most:
            plan.decline("its computed rows need more places than max_num_seqs")

    def _order(self, request_id: str, plan: RequestPlan, ready: int) -> bool:
        """Have what a request takes staged; return whether there is anything."""
        encodings, linked = plan.encodings(ready), plan.cached.after(ready)
        if plan.failed or not (linked or encodings):
            return False
        number, salt = next(self._numbers), plan.request.store_salt
        taken = plan.plan if linked else LinkPlan("plain", plan.prompt.tokens, plan.plan.layers, ())
        worth = plan.worth if self._forms else 0.0
        self._orders[request_id] = StagingOrder(number, request_id, salt, plan.prompt, taken, encodings, worth)
        self._stagings[request_id] = Staging(number, time.monotonic(), self._workers)
        return True

    def _drop(self, request_id: str) -> None:
        """Have the workers let go of what a request takes."""
        if self._stagings.pop(request_id, None) is not None and self._orders.pop(request_id, None) is None:
            self._dropped.append(request_id)

    def _weigh(self, plan: RequestPlan, ready: int, costs: StepCosts) -> None:
        """Have a prompt computed, if `auto` planned it and linking is not expected to pay; decided once a prompt."""
        if plan.weighed:
            return
        plan.weighed = True
        salt = plan.request.store_salt
        if plan.plan.decisions and plan.cached.spans:
            if plan.reads(ready):
                inputs = self._inputs(salt, None, FidelityLog(), plan.trying)
                pays = reading_pays(plan.prompt, ready, inputs, shares_read(plan.plan, inputs.policy))
            else:
                pays = costs.pays(plan.cached, ready, plan.prompt.tokens, self._reuse.uses(salt), plan.trying)
            if not pays:
                plan.decline(COSTS_MORE)
        self._reuse.observe(salt, plan.prompt, ready, plan.cached.private_from(ready) is not None)

    def note(self, report: WorkerReport) -> None:
        """Take what the workers report."""
        by_number = {staging.number: name for name, staging in self._stagings.items()}
        for number, workers in report.staged.items():
            if number in by_number:
                self._stagings[by_number[number]].missing -= workers
        for name in (by_number[number] for number in report.unstaged if number in by_number):
            self._fail(name)
        if report.lost or report.captured:
            self._memory.lose(report.lost)
            self._memory.regain(report.captured)
            self._captured |= dict.fromkeys(report.captured)
            while len(self._captured) > REMEMBERED_CAPTURES:
                self._captured.popitem(last=False)
        for name in report.failed:
            self._fail(name)
        self.readings.note(report)
        if self.costs is not None:
            for work, seconds in report.steps:
                self.costs.observe_step(work, seconds)

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
            scheduled: by request id, the row that its own rows begin at and how many there are.
            blocks: finds a request's pages.
            quiet: whether no request waits, so that rows may be read that patches are formed of.
            alone: whether no other request comes soon, so that reading them holds none up.
        """
        loads, patches = [], []
        for request_id, (start, rows) in scheduled.items():
            plan = self._plans.get(request_id)
            if plan is None or start >= plan.prompt.tokens:
                continue
            last = plan.prompt.tokens <= start + rows
            load = self._load(request_id, plan, start, start + rows)
            if load is not None:
                loads.append(load)
            if last:
                plan.complete = True
                self._places.settle(request_id)
            if plan.needs and quiet and self._forms and last:
                salt, pages = plan.request.store_salt, blocks(request_id)
                patches.append(PatchCapture(salt, plan.prompt, plan.needs, pages, alone))
        readings, choices = self.readings.take()
        orders, self._orders = self._orders, {}
        dropped, self._dropped = self._dropped, []
        for request_id in scheduled:
            plan, staging = self._plans.get(request_id), self._stagings.get(request_id)
            if plan is not None and staging is not None and sum(scheduled[request_id]) >= plan.prompt.tokens:
                # The workers let go of it in the next step.
                self._drop(request_id)
        return StepMetadata(
            tuple(orders.values()),
            tuple(dropped),
            tuple(loads),
            readings=readings,
            choices=choices,
            patches=tuple(patches),
            computes=bool(scheduled),
        )

    def _load(self, request_id: str, plan: RequestPlan, start: int, stop: int) -> RowLoad | None:
        """Return what a step does of a request's rows; None where it computes them all."""
        staging = self._stagings.get(request_id)
        if staging is None:
            return None
        staging.stepped = True
        if not plan.cached.spans:
            return None
        rows = plan.cached.step_rows(start, stop, staging.stand_in)
        staging.stand_in = rows.stand_in
        if not rows.taken:
            return None
        linked = sum(last - max(first, start) for first, last in rows.taken)
        plan.linked += linked
        self._counts.linked_tokens += linked
        self._counts.linked_bytes += linked * self._row_bytes
        return RowLoad(request_id, rows.taken, rows.computed, start)

    def take_counts(self) -> LinkCounts:
        """Return what was linked since the last call."""
        counts, self._counts = self._counts, LinkCounts()
        return counts

"""The scheduler's side: what each request takes, how far it skips in a step, and what is captured. No vLLM in here."""

import logging
import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from torch import Tensor

from emblema.link.policy.frequency import FrequencySketch
from emblema.link.prompt import TextPart
from emblema.store import Store
from emblema.vllm.model_spec import ModelSpec
from emblema.vllm.request_plan import (
    COSTS_MORE,
    ChunkStubs,
    MediaItem,
    RequestPlan,
    ServedRequest,
    plan_request,
    stored_encodings,
)
from emblema.vllm.spans import CachedSpans, Claim, clip_plan
from emblema.vllm.step_costs import StepCosts
from emblema.vllm.step_metadata import ChunkCapture, PatchCapture, RowLoad, StepMetadata
from emblema.vllm.stored import StoreMemory

_log = logging.getLogger(__name__)
WAITING_CAPTURES = 64
REMEMBERED_CAPTURES = 4096
MOST_LINES = 256
MOST_SKETCHES = 256
REMEMBERED_NAMES = 2**16
PLANNING_SECONDS = 1.0
"""How long the scheduler defers a request whose plan is not made; it is computed plainly after that."""
AWAITING_SECONDS = 0.01
"""How long a step waits for plans that are being made: one that leaves their requests out costs more than most plans
take."""
RECAPTURE_SECONDS = 10.0
"""How long a chunk that was captured is not captured again, as it may not be stored yet."""


@dataclass(slots=True)
class LinkCounts:
    """What was linked since the last report (rows, their bytes, encoder outputs handed over), and what was dropped."""

    linked_tokens: int = 0
    linked_bytes: int = 0
    encodings: int = 0
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """A chunk to be prefilled alone: the request that showed it, its place in there, and what to store."""

    shown_by: ServedRequest
    item: MediaItem
    capture: ChunkCapture


@dataclass(slots=True)
class StepBudget:
    """What one step has left for compute spans, and what is claimed of it.

    Attributes:
        rows: rows that compute spans may still have.
        free_slots: counts the requests that the batch has room for, compute spans left out.
        waiting: counts the requests that wait for a step.
        pressed: whether requests come so densely that nothing is to be kept beside them.
        claims: claims that the step carries out, by request id.
        used_slots: slots that compute spans take.
    """

    rows: int
    free_slots: Callable[[], int]
    waiting: Callable[[], int]
    pressed: bool = False
    claims: dict[str, Claim] = field(default_factory=dict)
    used_slots: int = 0
    _reserved: tuple[str, Claim] | None = field(default=None, init=False)

    def reserve(self, request_id: str, plan: RequestPlan, ready: int) -> Claim | None:
        """Return how far a waiting request may skip from row `ready`; `confirm` claims it, once it has pages."""
        # The request itself takes a slot too.
        claim = plan.cached.claim(ready, self.rows, self.free_slots() - self.used_slots - 1)
        self._reserved = None if claim is None else (request_id, claim)
        return claim

    def confirm(self, allocated: bool) -> None:
        """Claim what was reserved, or drop it where vLLM has no pages for it."""
        if allocated and self._reserved is not None:
            self._take(*self._reserved)
        self._reserved = None

    def skip(self, request_id: str, plan: RequestPlan, ready: int) -> Claim | None:
        """Claim as far as a running request may skip from row `ready`."""
        claim = plan.cached.claim(ready, self.rows, self.free_slots() - self.used_slots)
        if claim is not None:
            self._take(request_id, claim)
        return claim

    def _take(self, request_id: str, claim: Claim) -> None:
        self.claims[request_id] = claim
        self.rows -= claim.compute_rows
        self.used_slots += len(claim.compute_spans)

    def claim_of(self, request_id: str) -> Claim | None:
        """Return what a request has claimed or reserved."""
        reserved, claim = self._reserved or (None, None)
        return self.claims.get(request_id) or (claim if reserved == request_id else None)


@dataclass(slots=True, eq=False)
class PendingPlan:
    """A plan that is being made on the planner's thread.

    Attributes:
        request: what is planned.
        done: set once `plan` is there.
        plan: the plan; None for a request that is not linked.
        asked: when the scheduler first wanted it, in monotonic seconds; None before.
    """

    request: ServedRequest
    done: threading.Event = field(default_factory=threading.Event)
    plan: RequestPlan | None = None
    asked: float | None = None


class RequestPlanner:
    """Plans requests and follows them; used by the scheduler's thread alone.

    Plans are made on a thread of its own, which alone reads the store: the scheduler never waits for a disk. It defers
    a request until its plan is made, and has it computed plainly where that takes longer than `PLANNING_SECONDS`.

    Args:
        spec: of the model; None where nothing can be linked.
        store: is only read here; the worker's side writes it.
        strategy: for requests that name none.
        capture: whether pictures and patches are captured.
        costs: what linking costs here; None where `auto` links whatever it may.
        refusal: why there is no spec, for the log.

    Attributes:
        step: the step that is being scheduled; None between steps.
    """

    def __init__(
        self,
        spec: ModelSpec | None,
        store: Store,
        strategy: str,
        capture: bool,
        costs: StepCosts | None = None,
        refusal: str | None = None,
    ) -> None:
        self.spec = spec
        self.step: StepBudget | None = None
        self.costs = costs
        self._store, self._strategy, self._captures = store, strategy, capture
        self._stubs = None if spec is None else ChunkStubs(spec)
        self._pending: dict[str, PendingPlan] = {}
        # A plan that was not made in time: while it is not done, no other request waits for the store.
        self._late: PendingPlan | None = None
        # Whether a step waited for plans that were not made in time, and still are not.
        self._hurried = False
        self._plans: dict[str, RequestPlan | None] = {}
        self._counts = LinkCounts()
        self._waiting: deque[CaptureRequest] = deque(maxlen=WAITING_CAPTURES)
        self._running: dict[str, CaptureRequest] = {}
        # Chunks whose capture was requested, so that each is requested once; with the moment when it was done.
        self._requested: OrderedDict[str, float | None] = OrderedDict()
        self._logged: set[str] = set()
        # By tenant, the chunks after their antecedents that were met lately; of the tenants that came last. The
        # thread's own.
        self._met: OrderedDict[bytes, FrequencySketch] = OrderedDict()
        self._memory = StoreMemory(store)
        # By vLLM's name of a picture, the digest of what was shown under it; empty where that was not always the same.
        self._names: OrderedDict[str, str] = OrderedDict()
        self._work: SimpleQueue[PendingPlan | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emblema-plan", daemon=True)
        self._thread.start()
        if refusal is not None:
            self._log_once(f"every prompt is computed plainly: {refusal}")

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
        if request_id in self._plans or request_id in self._pending or request_id in self._running:
            return
        request = None if self._stubs is None else describe()
        if self._late is not None and self._late.done.is_set():
            self._late = None
        if request is None or not request.items or self._late is not None:
            self._plans[request_id] = None
        else:
            pending = self._pending[request_id] = PendingPlan(request)
            self._work.put(pending)

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
        del self._pending[request_id]
        self._plans[request_id] = plan
        if plan is not None and self._captures and plan.request.options.get("capture", True) is True:
            self._request_captures(plan)
        return True

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

    def get(self, request_id: str) -> RequestPlan | None:
        """Return the plan of a request; None if it has none, or none yet."""
        return self._plans.get(request_id)

    # the thread

    def _run(self) -> None:
        while (pending := self._work.get()) is not None:
            try:
                pending.plan = self._make_plan(pending.request)
            except Exception:
                # No error of a plan may end the server: the request is computed.
                _log.exception("emblema: a request is computed plainly, as it could not be planned")
            pending.done.set()

    def _make_plan(self, request: ServedRequest) -> RequestPlan | None:
        if self._stubs is None:
            return None
        request = request.checked()
        # Names are checked of every request: what is shown by one that is not linked is in vLLM's caches too.
        named = all([self._is_name_of(item.identifier, item.digest) for item in request.items])
        refusal = request.why_plain() or (None if named else "a picture's name was another's before")
        if refusal is not None:
            self._log_once(f"a request is computed plainly: {refusal}")
            return None
        store = self._store.tenant(request.store_salt)
        met = self._met_by(request.store_salt)
        self._memory.refresh()
        plan = plan_request(request, self._stubs, store, self._memory, self._strategy, self._log_once, met, self._pays)
        plan.encodings = stored_encodings(plan, store, self._memory)
        return plan

    def _pays(self, spans: CachedSpans, rows: int) -> bool:
        """Return whether taking some spans of a prompt of so many rows may pay, if the prefix cache has none of it."""
        return self.costs is None or self.costs.pays(spans, 0, rows)

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
        captured = self._running.pop(request_id, None)
        if captured is not None:
            # A chunk that is lost later may be captured again.
            self._requested[captured.capture.chunk.id] = time.monotonic()
        self._pending.pop(request_id, None)
        plan = self._plans.pop(request_id, None)
        if plan is None:
            return None
        pieces = {} if plan.request.options.get("pieces") is not True else {"pieces": self._pieces(plan)}
        return pieces | {
            "strategy": plan.plan.strategy if plan.linked else "plain",
            "prompt_tokens": plan.prompt.tokens,
            "media_tokens": sum(chunk.tokens for _, chunk in plan.prompt.chunk_segments),
            "linked_tokens": plan.linked,
            "kv_bytes": plan.linked * self._row_bytes,
            "stored": not plan.missing and not plan.lacking,
            "remark": plan.remark,
        }

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
        return 0 if spec is None else spec.dtype.itemsize * sum(layout.features for layout in spec.layouts)

    # steps

    @contextmanager
    def scheduling(
        self, rows: int, free_slots: Callable[[], int], waiting: Callable[[], int], pressed: bool = False
    ) -> Iterator[StepBudget]:
        """Have a step, in which compute spans may have `rows` rows, for as long as the block runs; see `StepBudget`."""
        self.step = StepBudget(rows, free_slots, waiting, pressed)
        try:
            yield self.step
        finally:
            self.step = None

    def reserve(self, request_id: str, ready: int) -> Claim | None:
        """Return how far a waiting request may skip from row `ready` in this step; see `StepBudget.reserve`."""
        plan = self._plans.get(request_id)
        if plan is None:
            return None
        plan.restart()
        if self.costs is not None:
            self._weigh(plan, ready, self.costs)
        if self.step is None:
            self._log_once("nothing is linked without --scheduler-cls emblema.vllm.LinkingScheduler")
            return None
        return self.step.reserve(request_id, plan, ready)

    def _weigh(self, plan: RequestPlan, ready: int, costs: StepCosts) -> None:
        """Have a prompt computed, if `auto` planned it and linking is not expected to pay; decided once a prompt."""
        if plan.weighed:
            return
        plan.weighed = True
        costs.observe_prompt(plan.prompt.tokens, ready)
        if plan.plan.decisions and plan.cached.spans and not costs.pays(plan.cached, ready, plan.prompt.tokens):
            plan.decline(COSTS_MORE)

    def step_metadata(
        self, scheduled: dict[str, tuple[int, int]], blocks: Callable[[str], tuple[int, ...]]
    ) -> StepMetadata:
        """Return the work on the pages in the step that was scheduled.

        Rows that patches could be formed of are left alone while requests wait.

        Args:
            scheduled: by request id, the row that its own rows begin at and how many there are.
            blocks: finds a request's pages.
        """
        loads, chunks, patches = [], [], []
        pressed = self.step is not None and self.step.pressed
        forming = self._captures and (self.step is None or self.step.waiting() == 0)
        for request_id, claim in ({} if self.step is None else self.step.claims).items():
            plan = self._plans.get(request_id)
            if request_id in scheduled and plan is not None:
                cut = clip_plan(plan.plan, claim)
                loads.append(RowLoad(plan.request.store_salt, plan.prompt, cut, claim, blocks(request_id)))
                rows = plan.take(claim)
                self._counts.linked_tokens += rows
                self._counts.linked_bytes += rows * self._row_bytes
        for request_id, (start, count) in scheduled.items():
            captured, plan = self._running.get(request_id), self._plans.get(request_id)
            if captured is not None and start + count >= captured.capture.chunk.tokens:
                chunks.append(replace(captured.capture, blocks=blocks(request_id)))
            if plan is not None and plan.needs and forming and start < plan.prompt.tokens <= start + count:
                alone = len(scheduled) == 1 and not pressed
                salt, pages = plan.request.store_salt, blocks(request_id)
                patches.append(PatchCapture(salt, plan.prompt, plan.needs, pages, alone))
        return StepMetadata(tuple(loads), tuple(chunks), tuple(patches), bool(scheduled), pressed)

    def take_counts(self) -> LinkCounts:
        """Return what was linked since the last call."""
        counts, self._counts = self._counts, LinkCounts()
        return counts

    # encoder outputs

    def encoder_output(self, request_id: str, identifier: str) -> Tensor | None:
        """Return the stored encoder output [media tokens, width] of a request's picture, by vLLM's digest of it."""
        plan = self._plans.get(request_id)
        return None if plan is None else plan.encodings.get(identifier)

    def count_encoding(self) -> None:
        """Count an encoder output that goes along with this step."""
        self._counts.encodings += 1

    # captures

    @property
    def capturing(self) -> Collection[str]:
        """Ids of requests that prefill a chunk alone."""
        return self._running.keys()

    @property
    def captures_wait(self) -> bool:
        """Whether there are chunks to prefill alone."""
        return bool(self._waiting)

    def _request_captures(self, plan: RequestPlan) -> None:
        missing = {chunk.id for chunk in plan.missing}
        items = iter(plan.request.items)
        for segment in plan.prompt.segments:
            if isinstance(segment.part, TextPart):
                continue
            item, chunk = next(items), segment.part.chunk
            captured = self._requested.get(chunk.id, -math.inf)
            if chunk.id not in missing or captured is None or time.monotonic() - captured < RECAPTURE_SECONDS:
                continue
            self._requested[chunk.id] = None
            while len(self._requested) > REMEMBERED_CAPTURES:
                self._requested.popitem(last=False)
            capture = ChunkCapture(plan.request.store_salt, chunk, f"emblema-{item.digest}")
            self._waiting.append(CaptureRequest(plan.request, item, capture))

    def next_captures(self, count: int) -> Iterator[CaptureRequest]:
        """Yield chunks to prefill alone now, each once and `count` at most."""
        for _ in range(min(count, len(self._waiting))):
            yield self._waiting.popleft()

    def start_capture(self, request_id: str, capture: CaptureRequest) -> None:
        """Follow a request that prefills a chunk alone."""
        self._running[request_id] = capture

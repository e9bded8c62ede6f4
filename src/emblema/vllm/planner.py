"""The scheduler's side: what each request takes, how far it skips in a step, and what is captured. No vLLM in here."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from emblema.link.policy.frequency import FrequencySketch
from emblema.link.prompt import TextPart
from emblema.store import Store
from emblema.vllm.model_spec import ModelSpec
from emblema.vllm.request_plan import MediaItem, RequestPlan, ServedRequest, plan_request
from emblema.vllm.spans import Claim, clip_plan
from emblema.vllm.step_metadata import ChunkCapture, PatchCapture, RowLoad, StepMetadata

_log = logging.getLogger(__name__)
WAITING_CAPTURES = 64
REMEMBERED_CAPTURES = 4096
MOST_LINES = 256
MOST_SKETCHES = 256


@dataclass(slots=True)
class LinkCounts:
    """What was linked since the last report: rows, their bytes, and encoder outputs handed over."""

    linked_tokens: int = 0
    linked_bytes: int = 0
    encodings: int = 0


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
        claims: claims that the step carries out, by request id.
        used_slots: slots that compute spans take.
    """

    rows: int
    free_slots: Callable[[], int]
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


class RequestPlanner:
    """Plans requests and follows them; used by the scheduler's thread alone.

    Args:
        spec: of the model; None where nothing can be linked.
        store: is only read here; the worker's side writes it.
        strategy: for requests that name none.
        capture: whether pictures and patches are captured.
        refusal: why there is no spec, for the log.

    Attributes:
        step: the step that is being scheduled; None between steps.
    """

    def __init__(
        self, spec: ModelSpec | None, store: Store, strategy: str, capture: bool, refusal: str | None = None
    ) -> None:
        self.spec = spec
        self.step: StepBudget | None = None
        self._store, self._strategy, self._captures = store, strategy, capture
        self._plans: dict[str, RequestPlan | None] = {}
        self._counts = LinkCounts()
        self._waiting: deque[CaptureRequest] = deque(maxlen=WAITING_CAPTURES)
        self._running: dict[str, CaptureRequest] = {}
        # Chunks whose capture was requested, so that each is requested once.
        self._requested: OrderedDict[str, None] = OrderedDict()
        self._logged: set[str] = set()
        # By tenant, the chunks after their antecedents that were met lately; of the tenants that came last.
        self._met: OrderedDict[bytes, FrequencySketch] = OrderedDict()
        if refusal is not None:
            self._log_once(f"every prompt is computed plainly: {refusal}")

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _log_once(self, line: str) -> None:
        if line not in self._logged and len(self._logged) < MOST_LINES:
            self._logged.add(line)
            _log.warning("emblema: %s", line)

    # requests

    def plan(self, request_id: str, describe: Callable[[], ServedRequest]) -> RequestPlan | None:
        """Return the plan of a request, made at the first call; None for a request that is not linked."""
        if request_id not in self._plans and request_id not in self._running:
            self._plans[request_id] = self._make_plan(describe())
        return self._plans.get(request_id)

    def get(self, request_id: str) -> RequestPlan | None:
        """Return the plan of a request, or None if it has none."""
        return self._plans.get(request_id)

    def _make_plan(self, request: ServedRequest) -> RequestPlan | None:
        if self.spec is None or not request.items:
            return None
        if request.refusal is not None:
            self._log_once(f"a request is computed plainly: {request.refusal}")
            return None
        try:
            store = self._store.tenant(request.store_salt)
            plan = plan_request(
                request, self.spec, store, self._strategy, self._log_once, self._met_by(request.store_salt)
            )
        except Exception:
            # No error of a plan may end the scheduler: the request is computed.
            _log.exception("emblema: a request is computed plainly, as it could not be planned")
            return None
        if self._captures and request.options.get("capture", True) is True:
            self._request_captures(plan)
        return plan

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
            self._requested.pop(captured.capture.chunk.id, None)
        plan = self._plans.pop(request_id, None)
        if plan is None:
            return None
        return {
            "strategy": plan.plan.strategy if plan.linked else "plain",
            "prompt_tokens": plan.prompt.tokens,
            "media_tokens": sum(chunk.tokens for _, chunk in plan.prompt.chunk_segments),
            "linked_tokens": plan.linked,
            "kv_bytes": plan.linked * self._row_bytes,
            "stored": not plan.missing and not plan.lacking,
            "remark": plan.remark,
        }

    @property
    def _row_bytes(self) -> int:
        spec = self.spec
        return 0 if spec is None else spec.dtype.itemsize * sum(layout.features for layout in spec.layouts)

    # steps

    @contextmanager
    def scheduling(self, rows: int, free_slots: Callable[[], int]) -> Iterator[StepBudget]:
        """Have a step, in which compute spans may have `rows` rows, for as long as the block runs; see `StepBudget`."""
        self.step = StepBudget(rows, free_slots)
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
        if self.step is None:
            self._log_once("nothing is linked without --scheduler-cls emblema.vllm.LinkingScheduler")
            return None
        return self.step.reserve(request_id, plan, ready)

    def step_metadata(
        self, scheduled: dict[str, tuple[int, int]], blocks: Callable[[str], tuple[int, ...]]
    ) -> StepMetadata:
        """Return the work on the pages in the step that was scheduled.

        Args:
            scheduled: by request id, the row that its own rows begin at and how many there are.
            blocks: finds a request's pages.
        """
        loads, chunks, patches = [], [], []
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
            if plan is not None and plan.needs and self._captures and start < plan.prompt.tokens <= start + count:
                patches.append(PatchCapture(plan.request.store_salt, plan.prompt, plan.needs, blocks(request_id)))
        return StepMetadata(tuple(loads), tuple(chunks), tuple(patches))

    def take_counts(self) -> LinkCounts:
        """Return what was linked since the last call."""
        counts, self._counts = self._counts, LinkCounts()
        return counts

    # encoder outputs

    def encoder_output(self, request_id: str, identifier: str) -> Tensor | None:
        """Return the stored encoder output [media tokens, width] of a request's picture, by vLLM's digest of it."""
        plan = self._plans.get(request_id)
        if plan is None:
            return None
        store = self._store.tenant(plan.request.store_salt)
        for item, (_, stub) in zip(plan.request.items, plan.prompt.chunk_segments, strict=True):
            chunk = store.find(stub.id) if item.identifier == identifier else None
            if chunk is not None and chunk.encoded.embeds.shape[1]:
                return chunk.encoded.embeds[chunk.encoded.visual]
        return None

    def count_encoding(self) -> None:
        """Count an encoder output that goes along with this step."""
        self._counts.encodings += 1

    # captures

    @property
    def capturing(self) -> Collection[str]:
        """Ids of requests that prefill a chunk alone."""
        return self._running.keys()

    def _request_captures(self, plan: RequestPlan) -> None:
        missing = {chunk.id for chunk in plan.missing}
        items = iter(plan.request.items)
        for segment in plan.prompt.segments:
            if isinstance(segment.part, TextPart):
                continue
            item, chunk = next(items), segment.part.chunk
            if chunk.id not in missing or chunk.id in self._requested:
                continue
            self._requested[chunk.id] = None
            while len(self._requested) > REMEMBERED_CAPTURES:
                self._requested.popitem(last=False)
            capture = ChunkCapture(plan.request.store_salt, chunk, item.identifier)
            self._waiting.append(CaptureRequest(plan.request, item, capture))

    def next_captures(self, count: int) -> Iterator[CaptureRequest]:
        """Yield chunks to prefill alone now, each once and `count` at most."""
        for _ in range(min(count, len(self._waiting))):
            wanted = self._waiting.popleft()
            if wanted.capture.chunk.id not in self._store.tenant(wanted.capture.salt):
                yield wanted

    def start_capture(self, request_id: str, capture: CaptureRequest) -> None:
        """Follow a request that prefills a chunk alone."""
        self._running[request_id] = capture

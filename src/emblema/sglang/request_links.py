"""Requests that are planned, and whose rows are staged, before SGLang's scheduler queues them."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from queue import SimpleQueue

from emblema.link.plan import LinkPlan
from emblema.link.prompt import Rows
from emblema.served.measurements import LaneMeasurements
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan, RequestPlanning
from emblema.served.requests import ServedRequest
from emblema.served.settings import PluginSettings
from emblema.served.shards import ShardStore
from emblema.served.spans import StepRows
from emblema.served.staging import RowStager, StagedRows, StagingOrder
from emblema.store import Store

_log = logging.getLogger(__name__)
REMEMBERED_LINKS = 1024
"""Requests whose plans are remembered, as one that is retracted takes its rows again."""
STAGING_SECONDS = 30.0
SECOND_PASS = "the plugin for SGLang has none"


@dataclass(slots=True)
class RequestLink:
    """A request's plan, and how far it is carried out.

    Attributes:
        request: what is planned.
        plan: it; None while it is made, and where the request cannot be planned.
        refusal: why it is not planned.
        planned: set once it is made.
        order: number of what is staged for it; None for nothing.
        since: when that was ordered, seconds.
        stand_in: whether the last step computed a row that is to be taken.
        complete: whether the whole prompt is there.
        counted: whether its taken rows count as cached: they do once, however often it is retracted.
    """

    request: ServedRequest
    planned: threading.Event = field(default_factory=threading.Event)
    plan: RequestPlan | None = None
    refusal: str = "it could not be planned"
    order: int | None = None
    since: float = 0.0
    stand_in: bool = False
    complete: bool = False
    counted: bool = False

    def step_rows(self, start: int, stop: int) -> StepRows | None:
        """Return what a step does of some rows; None where it computes them all."""
        if self.plan is None or not self.plan.cached.spans or start >= self.plan.prompt.tokens:
            return None
        rows = self.plan.cached.step_rows(start, stop, self.stand_in)
        return rows if rows.taken else None


class RequestLinks:
    """Plans on a thread of its own, which alone looks into the store; the rest is for the scheduler's thread.

    Args:
        spec: of the model.
        store: the store, which the stager and the planner use.
        settings: of the plugin.
    """

    def __init__(self, spec: ModelSpec, store: Store, settings: PluginSettings) -> None:
        self._planning = RequestPlanning(spec, store, settings.strategy, self._log_once, second_pass=SECOND_PASS)
        self._measured = LaneMeasurements(store, settings.measured or spec.fingerprint)
        self._stager = RowStager(ShardStore(store))
        self._links: OrderedDict[str, RequestLink] = OrderedDict()
        self._numbers = count(1)
        self._logged: set[str] = set()
        self._work: SimpleQueue[RequestLink | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="emblema-plan", daemon=True)
        self._thread.start()

    def get(self, request_id: str) -> RequestLink | None:
        """Return a request's link; None where it has none."""
        return self._links.get(request_id)

    def begin(self, request_id: str, request: ServedRequest) -> RequestLink:
        """Begin to plan a request, or to stage its rows again where it was planned before."""
        link = self._links.get(request_id)
        if link is not None and link.complete:
            link.complete = link.stand_in = False
            if link.plan is not None:
                link.plan.restart()
        else:
            link = self._links[request_id] = RequestLink(request)
            self._work.put(link)
        self._links.move_to_end(request_id)
        while len(self._links) > REMEMBERED_LINKS:
            old, _ = self._links.popitem(last=False)
            self._stager.drop(old)
        return link

    def is_ready(self, request_id: str, link: RequestLink) -> bool:
        """Return whether a request may be queued: it is planned, and what it takes is in memory and verified."""
        if not link.planned.is_set():
            return False
        if link.plan is None or not (link.plan.cached.spans or link.plan.encodings(0)):
            return True
        if link.order is None:
            link.order, link.since = next(self._numbers), time.monotonic()
            self._stager.stage([self._order(request_id, link.plan, link.order)])
            return False
        if self._stager.get(request_id) is not None:
            return True
        _, unstaged = self._stager.take_reports()
        self._planning.memory.lose(self._stager.take_lost())
        for other in self._links.values():
            if other.order in unstaged and other.plan is not None:
                other.plan.fail()
                other.order = -1
        if link.order >= 0 and time.monotonic() - link.since > STAGING_SECONDS:
            link.plan.fail()
            link.order = -1
        return link.order < 0

    def _order(self, request_id: str, plan: RequestPlan, number: int) -> StagingOrder:
        taken = plan.plan if plan.cached.spans else LinkPlan("plain", plan.prompt.tokens, plan.plan.layers, ())
        return StagingOrder(number, request_id, plan.request.store_salt, plan.prompt, taken, plan.encodings(0))

    def staged(self, request_id: str) -> StagedRows | None:
        """Return what is staged for a request; None where nothing is."""
        return self._stager.get(request_id)

    def complete(self, request_id: str, link: RequestLink) -> None:
        """Let go of the rows of a request whose prompt is there."""
        link.complete, link.order = True, None
        self._stager.drop(request_id)

    def abandon(self, names: Callable[[str], bool]) -> None:
        """Forget the requests of some names, and let go of their rows."""
        for request_id in [name for name in self._links if names(name)]:
            del self._links[request_id]
            self._stager.drop(request_id)

    def regain(self, chunks: Sequence[str]) -> None:
        """Count chunks as stored again."""
        self._planning.memory.regain(chunks)

    def close(self) -> None:
        """End the threads."""
        self._work.put(None)
        self._thread.join()
        self._stager.close()

    # the thread

    def _run(self) -> None:
        while (link := self._work.get()) is not None:
            try:
                link.plan = self._plan(link)
            except Exception:
                # No error of a plan may end the server: the request is computed.
                _log.exception("emblema: a request is computed plainly, as it could not be planned")
            if link.plan is None:
                # Links are remembered for long, and pictures are large.
                link.request = replace(link.request, source=None, digests=None)
            link.planned.set()

    def _plan(self, link: RequestLink) -> RequestPlan | None:
        request = link.request.checked()
        refusal = request.why_plain() or ("rows of a conversation are kept in vLLM alone" if request.keeps else None)
        if refusal is not None:
            link.refusal = refusal
            self._log_once(f"a request is computed plainly: {refusal}")
            return None
        return self._planning.plan(request, measured=self._measured.of(request.store_salt))

    def _log_once(self, message: str) -> None:
        if message not in self._logged and len(self._logged) < REMEMBERED_LINKS:
            self._logged.add(message)
            _log.warning("emblema: %s", message)


def count_linked(taken: tuple[Rows, ...], start: int) -> int:
    """Return how many rows a step takes that begins at a row."""
    return sum(last - max(first, start) for first, last in taken)

"""Plans of requests, made on a thread of their own, which alone reads the store."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from emblema.latest import LatestDict
from emblema.link.miss_reasons import Cause, MissReason
from emblema.link.policy.policy import Policy
from emblema.served.measurements import LaneMeasurements
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan, RequestPlanning
from emblema.served.requests import MediaItem, ServedRequest
from emblema.served.row_threshold import RowThreshold
from emblema.served.work_thread import WorkThread
from emblema.store import Store

_log = logging.getLogger(__name__)
REMEMBERED_NAMES = 2**16
CLOSING_SECONDS = 1.0
"""How long closing waits for the thread."""


@dataclass(slots=True, eq=False)
class PendingPlan:
    """A plan that is being made.

    Attributes:
        request: what is planned.
        done: set once `plan` is there.
        plan: the plan; None for a request that is not linked.
        refusal: why it has none.
        causes: by numbers of its media, what is wrong with those that it has none for.
        asked: when the scheduler first wanted it, in monotonic seconds; None before.
        awaited: since when it waits for pictures that are prefilled alone; None where it does not.
        replans: how often it was planned again.
        again: when it may be.
        final: whether it waits for no picture any more.
    """

    request: ServedRequest
    done: threading.Event = field(default_factory=threading.Event)
    plan: RequestPlan | None = None
    refusal: str = "it could not be planned"
    causes: Mapping[int, Cause] = field(default_factory=dict)
    asked: float | None = None
    awaited: float | None = None
    replans: int = 0
    again: float = 0.0
    final: bool = False


class PlanMaker:
    """Makes plans of requests in the order in which they were begun.

    Args:
        spec: of the model.
        store: is only read here.
        strategy: for requests that name none.
        forms: whether chunks are captured, and patches formed, of what the server computes.
        costs: returns what linking is expected to cost, and whether a prompt may wait for captures, as it is told.
        second_pass: why no plan with a second pass can be carried out; None where it can.
        policy: the bounds of `auto`.
        log_once: logs a line, once.
        measured: the model in whose name lanes were measured; empty for `spec`'s.

    Attributes:
        memory: what is known of the store.
        kept_prompts: whose rows the workers hold.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: Store,
        strategy: str,
        forms: bool,
        costs: Callable[[bool], RowThreshold],
        second_pass: str | None,
        policy: Policy,
        log_once: Callable[[str], None],
        measured: str = "",
    ) -> None:
        self._planning = RequestPlanning(spec, store, strategy, log_once, policy, second_pass)
        self._forms, self._costs, self._log_once = forms, costs, log_once
        self.memory, self.kept_prompts = self._planning.memory, self._planning.kept_prompts
        self._measured = LaneMeasurements(store, measured or spec.fingerprint)
        # By vLLM's name of a picture, what was shown under it; None where that was not always the same.
        self._names: LatestDict[str, MediaItem | None] = LatestDict(REMEMBERED_NAMES)
        self._thread = WorkThread("emblema-plan", "a request could not be planned")

    def close(self) -> None:
        """End the thread."""
        self._thread.close(CLOSING_SECONDS)

    def begin(self, pending: PendingPlan) -> None:
        """Have a plan made; `pending.done` is set once it is there."""
        self._thread.put(partial(self._plan, pending))

    def _plan(self, pending: PendingPlan) -> None:
        try:
            pending.plan = self._make_plan(pending)
        except Exception:
            # No error of a plan may end the server: the request is computed.
            _log.exception("emblema: a request is computed plainly, as it could not be planned")
        pending.done.set()

    def _make_plan(self, pending: PendingPlan) -> RequestPlan | None:
        request = pending.request.checked()
        # Names are checked of every request: what is shown by one that is not linked is in vLLM's caches too.
        found = {number: self._misnamed(item) for number, item in enumerate(request.items) if item.digest}
        pending.causes = {number: cause for number, cause in found.items() if cause is not None}
        refusal = request.why_plain() or ("a picture's name was another's before" if pending.causes else None)
        if refusal is not None:
            self._log_once(f"a request is computed plainly: {refusal}")
            pending.refusal = refusal
            return None
        captures = self._forms and not pending.final and request.options.get("capture", True) is True
        again = pending.plan is not None
        return self._planning.plan(request, self._costs(captures), self._measured.of(request.store_salt), again)

    def _misnamed(self, item: MediaItem) -> Cause | None:
        """Return how media differ from what was shown under their name; None where that was always the same.

        vLLM keeps encoder outputs by such names, so rows of a name that was another picture's may be that picture's.
        """
        known = self._names.get(item.identifier, item)
        if known is not None and known.digest == item.digest:
            self._names[item.identifier] = known
            return None
        self._names[item.identifier] = None
        if known is None:
            return Cause(MissReason.CHANGED, "its uuid was given to several pictures")
        if (known.tokens, known.grid) != (item.tokens, item.grid):
            return Cause(MissReason.OTHER_OPTIONS, f"{known.tokens} rows under its uuid before, {item.tokens} now")
        return Cause(MissReason.CHANGED, "other pixels of this size under its uuid before")

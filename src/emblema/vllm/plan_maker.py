"""Plans of requests, made on a thread of their own, which alone reads the store."""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from emblema.latest import LatestDict
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.served.measurements import LaneMeasurements
from emblema.served.model_spec import ModelSpec
from emblema.served.request_plan import RequestPlan, RequestPlanning
from emblema.served.work_thread import WorkThread
from emblema.store import Store
from emblema.vllm.pending_plan import PendingPlan
from emblema.vllm.picture_sightings import PictureSightings
from emblema.vllm.prompt_reuse import PromptReuse
from emblema.vllm.step_costs import PromptCosts, StepCosts

_log = logging.getLogger(__name__)
REMEMBERED_NAMES = 2**16
CLOSING_SECONDS = 1.0
"""How long closing waits for the thread."""


class PlanMaker:
    """Makes plans of requests in the order in which they were begun.

    Args:
        spec: of the model.
        store: is only read here.
        strategy: for requests that name none.
        forms: whether patches are formed of what is computed plainly.
        costs: what linking costs here; None where `auto` links whatever it may.
        reuse: what prompts leave to later ones.
        second_pass: why no plan with a second pass can be carried out; None where it can.
        policy: the bounds of `auto`.
        unsure: share of prompts that were computed in full after they were read.
        log_once: logs a line, once.
        measured: the model in whose name lanes were measured; empty for `spec`'s.

    Attributes:
        memory: what is known of the store.
        policy: the bounds of `auto`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: Store,
        strategy: str,
        forms: bool,
        costs: StepCosts | None,
        reuse: PromptReuse,
        second_pass: str | None,
        policy: Policy,
        unsure: Callable[[Prompt], float],
        log_once: Callable[[str], None],
        measured: str = "",
    ) -> None:
        self._planning = RequestPlanning(spec, store, strategy, log_once, policy, second_pass)
        self._forms, self._costs, self._reuse, self.policy = forms, costs, reuse, policy
        self._unsure, self._log_once = unsure, log_once
        self.memory = self._planning.memory
        self._measured = LaneMeasurements(store, measured or spec.fingerprint)
        # By vLLM's name of a picture, the digest of what was shown under it; empty where that was not always the same.
        self._names: LatestDict[str, str] = LatestDict(REMEMBERED_NAMES)
        self._sightings = PictureSightings()
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
        named = all([self._is_name_of(item.identifier, item.digest) for item in request.items])
        refusal = request.why_plain() or (None if named else "a picture's name was another's before")
        if refusal is not None:
            self._log_once(f"a request is computed plainly: {refusal}")
            return None
        salt, auto = request.store_salt, self._planning.strategy_of(request) == "auto"
        if pending.trying is None:
            pending.trying = self._costs is not None and auto and self._costs.due()
        first = pending.awaited is None
        captures = self._forms and not pending.final and request.options.get("capture", True) is True
        costs = self.costs(salt, pending.trying)
        if captures:
            costs = replace(costs, sightings=self._sightings.mean(salt))
        plan = self._planning.plan(request, costs, self._measured.of(salt))
        plan.trying = pending.trying
        if first:
            self._sightings.observe(salt, (chunk.id for _, chunk in plan.prompt.chunk_segments))
        if self._costs is not None and (plan.awaits or (plan.plan.decisions and plan.cached.spans)):
            self._costs.tried()
        return plan

    def costs(self, salt: bytes, trying: bool) -> PromptCosts:
        """Return what linking is expected to cost a tenant's prompt, as far as is known now; any thread may ask."""
        return PromptCosts(self._costs, self._reuse.uses(salt), self._unsure, trying=trying)

    def _is_name_of(self, identifier: str, digest: str) -> bool:
        """Return whether all that was shown under a name was the same, as far as is remembered.

        vLLM keeps encoder outputs by such names, so rows of a name that was another picture's may be that picture's.
        """
        if not digest:
            return False
        known = self._names.get(identifier, digest)
        self._names[identifier] = known if known == digest else ""
        return known == digest

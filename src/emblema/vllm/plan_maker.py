"""Plans of requests, made on a thread of their own, which alone reads the store."""

import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from emblema.link.policy.choosing import Trial
from emblema.link.policy.fidelity import FidelityLog
from emblema.link.policy.frequency import FrequencySketch
from emblema.link.policy.policy import Lane, Policy, PolicyInputs, RowCosts
from emblema.plugin.model_spec import ModelSpec
from emblema.plugin.request_plan import (
    ChunkStubs,
    RequestPlan,
    ServedRequest,
    plan_request,
    plan_trial,
)
from emblema.plugin.stored import StoreMemory
from emblema.plugin.stored_pairs import StoredPairs
from emblema.plugin.work_thread import WorkThread
from emblema.store import Store
from emblema.vllm.lane_ledgers import LaneLedgers
from emblema.vllm.pending_plan import PendingPlan
from emblema.vllm.picture_sightings import PictureSightings
from emblema.vllm.prompt_reuse import PromptReuse
from emblema.vllm.step_costs import StepCosts
from emblema.vllm.step_metadata import ShadowOutcome

_log = logging.getLogger(__name__)
MOST_SKETCHES = 256
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
        unsure: Callable[[], float],
        log_once: Callable[[str], None],
    ) -> None:
        self._spec, self._store, self._strategy, self._forms = spec, store, strategy, forms
        self._costs, self._reuse, self._second_pass, self.policy = costs, reuse, second_pass, policy
        self._unsure, self._log_once = unsure, log_once
        self.memory = StoreMemory(store)
        self._stubs = ChunkStubs(spec)
        self._ledgers = LaneLedgers(store)
        self._pairs = StoredPairs(store, spec)
        # By tenant, the chunks after their antecedents that were met lately; of the tenants that came last.
        self._met: OrderedDict[bytes, FrequencySketch] = OrderedDict()
        # By vLLM's name of a picture, the digest of what was shown under it; empty where that was not always the same.
        self._names: OrderedDict[str, str] = OrderedDict()
        self._sightings = PictureSightings()
        self._thread = WorkThread("emblema-plan", "a prompt was not compared")

    def close(self) -> None:
        """End the thread."""
        self._thread.close(CLOSING_SECONDS)

    def begin(self, pending: PendingPlan) -> None:
        """Have a plan made; `pending.done` is set once it is there."""
        self._thread.put(partial(self._plan, pending))

    def do(self, work: Callable[[], None]) -> None:
        """Have something done on the thread once the plans are made that were begun."""
        self._thread.put(work)

    def _plan(self, pending: PendingPlan) -> None:
        try:
            pending.plan = self._make_plan(pending)
        except Exception:
            # No error of a plan may end the server: the request is computed.
            _log.exception("emblema: a request is computed plainly, as it could not be planned")
        pending.done.set()

    def plan_trial(self, request: ServedRequest, trial: Trial) -> RequestPlan | None:
        """Plan a prompt with a lane that is closed; None where it is open, or the prompt cannot be linked by it."""
        inputs = self.inputs(request.store_salt, None, self._ledgers.of(request.store_salt))
        if inputs.verdict(trial.kind, trial.lane, self.policy).open:
            return None
        self.memory.refresh()
        return plan_trial(request, self._stubs, self._store.tenant(request.store_salt), self.memory, trial, inputs)

    def record(self, salt: bytes, lanes: frozenset[tuple[str, Lane]], outcome: ShadowOutcome) -> None:
        """Keep what a comparison showed of a tenant's lanes."""
        self._ledgers.record(salt, self._spec.fingerprint, lanes, outcome, self.policy)

    def _make_plan(self, pending: PendingPlan) -> RequestPlan | None:
        request = pending.request.checked()
        # Names are checked of every request: what is shown by one that is not linked is in vLLM's caches too.
        named = all([self._is_name_of(item.identifier, item.digest) for item in request.items])
        refusal = request.why_plain() or (None if named else "a picture's name was another's before")
        if refusal is not None:
            self._log_once(f"a request is computed plainly: {refusal}")
            return None
        costs, salt = self._costs, request.store_salt
        store, met = self._store.tenant(salt), self._met_by(salt)
        self.memory.refresh()
        asked = request.options.get("strategy", self._strategy)
        if pending.trying is None:
            pending.trying = costs is not None and asked == "auto" and costs.due()
        trying, first = pending.trying, pending.awaited is None
        captures = self._forms and not pending.final and request.options.get("capture", True) is True
        plan = plan_request(
            request,
            self._stubs,
            store,
            self.memory,
            self._strategy,
            self._log_once,
            met,
            lambda spans, rows: costs is None or costs.pays(spans, 0, rows, self._reuse.uses(salt), trying),
            self._second_pass,
            self.inputs(salt, met, self._ledgers.of(salt), trying),
            self._pairs,
            self._sightings.mean(salt) if captures else None,
            self.inputs(salt, met, self._ledgers.of(salt)) if trying else None,
        )
        plan.trying = trying
        if first:
            self._sightings.observe(salt, (chunk.id for _, chunk in plan.prompt.chunk_segments))
        if costs is not None and (plan.awaits or (plan.plan.decisions and plan.cached.spans)):
            costs.tried()
        return plan

    def inputs(self, salt: bytes, met: FrequencySketch | None, log: FidelityLog, trying: bool = False) -> PolicyInputs:
        """Return what `auto` decides by: this server's costs, and a tenant's latest prompts and measured lanes."""
        costs, policy, model = self._costs, self.policy, self._spec.fingerprint
        return PolicyInputs(
            policy,
            lambda kind, lane, bounds: log.verdict(model, kind, lane, bounds),
            plateau=log.plateau(model),
            least_margin=lambda kinds: log.least_margin(model, kinds),
            recurs=lambda names: met is not None and met.estimate(names) > 0,
            unsure=self._unsure,
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

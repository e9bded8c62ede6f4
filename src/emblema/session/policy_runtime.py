"""What is learnt from the prompts linked for one tenant: patches for the next time, costs, and fidelity."""

from collections.abc import Callable
from dataclasses import dataclass

from emblema.link.policy.costs import Costs, Rates
from emblema.link.policy.fidelity import LaneReport, Sample
from emblema.link.policy.policy import Lane, Policy, PolicyInputs
from emblema.link.prompt import Prompt, RowState
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.models.adapter import Adapter
from emblema.session.canary import Canary, CanaryStatistics
from emblema.session.fidelity_logs import FidelityLogs
from emblema.session.patch_job import PatchJob, patch_jobs
from emblema.session.patch_worker import FormingStatistics, PatchWorker
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.seen_media import InlineMediaStatistics, SeenMedia
from emblema.store.keys import PatchKey
from emblema.store.store import TenantStore


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Counters of one tenant's policy; forming is counted for all tenants of the model."""

    forming: FormingStatistics
    canary: CanaryStatistics
    inline_media: InlineMediaStatistics = InlineMediaStatistics()


class PolicyRuntime:
    """What `auto` decides by for one tenant, and what was measured. `engine.policy_runtime`.

    It learns from prompts that were linked, on the thread that owns the model. Costs of rows are the machine's, and
    shared by the tenants of a model; how faithful a lane is depends on contents, and is each tenant's own.

    Args:
        adapter: the model.
        store: the tenant's store.
        policy: the bounds.
        patch_worker: forms patches in the background.
        costs: what rows cost.
    """

    def __init__(
        self, adapter: Adapter, store: TenantStore, policy: Policy, patch_worker: PatchWorker, costs: Costs
    ) -> None:
        self.adapter, self.store, self.policy = adapter, store, policy
        self.patch_worker, self.costs = patch_worker, costs
        self._logs = FidelityLogs.of_store(store.store)
        self._log = self._logs.of(store.owner)
        self._canary = Canary(self._log, lambda: self.adapter.fingerprint)
        self._seen_media = SeenMedia(adapter, store)
        self._comparing = False

    @property
    def statistics(self) -> PolicyStatistics:
        """Plain counters, for metrics."""
        return PolicyStatistics(self.patch_worker.statistics, self._canary.statistics, self._seen_media.statistics)

    @property
    def patches_queued(self) -> int:
        """Patches handed over so far to be formed in the background, whatever became of them; dropped ones aside."""
        counts = self.patch_worker.statistics
        return counts.queued + counts.formed + counts.refused + counts.lost + counts.failed

    @property
    def lane_reports(self) -> list[LaneReport]:
        """What was measured of every lane, by model and kind of content."""
        return self._log.reports()

    @property
    def rates(self) -> Rates | None:
        """What rows were measured to cost; None before there was enough to tell."""
        return self.costs.rates

    def trusts(self, kind: str, lane: Lane | str, policy: Policy | None = None) -> bool:
        """Return whether `auto` may take a lane for a kind of content on this model.

        A window asks it of `survivor`: whether parts written after something that has changed may keep their rows.

        Args:
            kind: `text`, or what a chunk is: `image`, `page`, `video`, `audio`.
            lane: of `Lane`.
            policy: a request's own bounds; the engine's by default.
        """
        return self._log.verdict(self.adapter.fingerprint, kind, Lane(lane), policy or self.policy).open

    def record(self, kind: str, lane: Lane | str, kl: float, agrees: bool) -> bool:
        """Add a measurement made elsewhere, such as a check's; return whether it closed or opened the lane."""
        model = self.adapter.fingerprint
        turned = self._log.record(model, kind, Lane(lane), Sample(float(kl), bool(agrees)), self.policy)
        self._logs.save(self.store.owner)
        return turned

    def set_plateau(self, rank: int) -> None:
        """Keep the rank above which this model's patches were measured not to gain; patches are formed with it."""
        self._log.set_plateau(self.adapter.fingerprint, rank)
        self._logs.save(self.store.owner)

    def policy_inputs(self, model: str) -> PolicyInputs:
        """Return what `auto` decides by, for the model of a fingerprint."""
        return PolicyInputs(
            self.policy,
            lambda kind, lane, policy: self._log.verdict(model, kind, lane, policy),
            self.costs.gain,
            self._log.plateau(model),
        )

    def learn(self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge) -> None:
        """Learn from a prompt that was just linked; its table is not kept.

        Args:
            request: what was linked, with the strategy that planned it.
            prefill: the result.
            knowledge: what it was planned with.
        """
        auto = request.strategy if isinstance(request.strategy, Auto) else Auto()
        policy = auto.policy or self.policy
        if policy.forming and auto.trial is None:
            self._queue_patches(request, prefill, knowledge, policy)
        if self._comparing:
            return
        plan, trace = prefill.plan, prefill.trace
        if not plan.selectors and trace.row_layers == trace.computed * plan.layers:
            self.costs.observe(trace.computed, trace.cached, trace.patch_bytes, trace.seconds)
        if request.reused_rows == 0 and (plan.decisions or plan.strategy in ("full", "prefix")):
            self._canary.consider(prefill, policy)

    def _queue_patches(self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge, policy: Policy) -> None:
        """Queue patches of what was computed in context; those of media still to be made into chunks come after."""

        def wants(key: PatchKey, size: int) -> bool:
            return self.patch_worker.wants(self.store.owner, key, size, policy)

        due = self._seen_media.due(request.prompt, policy) if request.inline_media else {}
        later: list[PatchJob] = []
        computed = patch_jobs(self.adapter, self.store, prefill, knowledge, policy, wants, request.reused_rows, due)
        for job in computed:
            if due.keys().isdisjoint(job.key.chunks):
                self.patch_worker.submit(job, policy)
            else:
                later.append(job)
        if request.inline_media:
            self._seen_media.keep(due, later, prefill.trace.computed, policy)

    @property
    def waiting(self) -> bool:
        """Whether there is something to do when nobody waits for an answer."""
        return self._canary.waiting or self._seen_media.waiting

    def idle(self, link: Callable[[Prompt, Strategy], Prefill]) -> None:
        """Make chunks of media that came a second time, and compare the prompt that the canary took.

        On the thread that owns the model.

        Args:
            link: links a prompt again.
        """
        if self._comparing:
            return
        self._seen_media.make(self.patch_worker.submit)
        if not self._canary.waiting:
            return
        self._comparing = True
        try:
            if self._canary.run(self._held, link):
                self._logs.save(self.store.owner)
        finally:
            self._comparing = False

    def _held(self, prompt: Prompt) -> bool:
        """Whether no chunk of a prompt was deleted, and those taken as canonical are in the store.

        The pieces of a window are its own, and never were in the store.
        """
        parts = [part for part in prompt.chunk_parts if part.name]
        canonical = (part.name for part in parts if part.state is RowState.CANONICAL)
        return not self.store.deleted(part.name for part in parts) and all(name in self.store for name in canonical)

"""What an engine learns of the prompts that it links for one tenant: patches for the next time, costs, and fidelity."""

from collections.abc import Callable
from dataclasses import dataclass

from emblema.engine.upkeep.canary import Canary, CanaryStatistics, chunks_of
from emblema.engine.upkeep.formable import Formable, formable
from emblema.engine.upkeep.former import FormingStatistics, PatchWorker
from emblema.engine.upkeep.ledgers import FidelityLogs
from emblema.engine.upkeep.sightings import InlineMediaStatistics, SeenMedia
from emblema.link.executor import LinkedTable
from emblema.link.plan import LinkPlan
from emblema.link.policy.costs import Costs, Rates
from emblema.link.policy.fidelity import LaneReport, Sample
from emblema.link.policy.policy import Lane, Policy, PolicyInputs
from emblema.link.prompt import Prompt, RowState
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.models.adapter import Adapter
from emblema.store.keys import PatchKey
from emblema.store.tenant import TenantStore


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Counters of one tenant's policy; forming is counted for all tenants of the model."""

    forming: FormingStatistics
    canary: CanaryStatistics
    inline_media: InlineMediaStatistics = InlineMediaStatistics()


class PolicyRuntime:
    """An engine's policy for one tenant: what it may decide by, and what it measured. `engine.policy`.

    It looks on while prompts are linked, on the thread that owns the model. What rows cost is the machine's, and shared
    by the tenants of a model; how faithful a lane is depends on contents, and is each tenant's own.

    Args:
        adapter: the model.
        view: the tenant's door to the store.
        policy: the bounds.
        former: forms patches in the background.
        costs: what rows cost.
    """

    def __init__(self, adapter: Adapter, view: TenantStore, policy: Policy, former: PatchWorker, costs: Costs) -> None:
        self.adapter, self.view, self.policy, self.former, self.costs = adapter, view, policy, former, costs
        self._ledgers = FidelityLogs.of_store(view.store)
        self._ledger = self._ledgers.of(view.owner)
        self._canary = Canary(self._ledger, lambda: self.adapter.fingerprint)
        self._sightings = SeenMedia(adapter, view)
        self._comparing = False

    @property
    def statistics(self) -> PolicyStatistics:
        """Plain counters, for metrics."""
        return PolicyStatistics(self.former.statistics, self._canary.statistics, self._sightings.statistics)

    @property
    def standings(self) -> list[LaneReport]:
        """What was measured of every lane, by model and kind of content."""
        return self._ledger.reports()

    @property
    def rates(self) -> Rates | None:
        """What rows were measured to cost; None before there was enough to tell."""
        return self.costs.rates

    def trusts(self, kind: str, lane: Lane | str, policy: Policy | None = None) -> bool:
        """Whether `auto` may take a lane for a kind of content on this model.

        A window asks it of `survivor`: whether parts behind which something has changed may keep their rows.

        Args:
            kind: `text`, or what a chunk is: `image`, `page`, `video`, `audio`.
            lane: of `Lane`.
            policy: a request's own bounds; the engine's by default.
        """
        return self._ledger.verdict(self.adapter.fingerprint, kind, Lane(lane), policy or self.policy).open

    def record(self, kind: str, lane: Lane | str, kl: float, agrees: bool) -> bool:
        """Take in a measurement made elsewhere, such as a check's; whether it closed or opened the lane."""
        model = self.adapter.fingerprint
        turned = self._ledger.record(model, kind, Lane(lane), Sample(float(kl), bool(agrees)), self.policy)
        self._ledgers.save(self.view.owner)
        return turned

    def set_plateau(self, rank: int) -> None:
        """Keep the rank from which on this model's patches were measured not to gain; patches are formed with it."""
        self._ledger.set_plateau(self.adapter.fingerprint, rank)
        self._ledgers.save(self.view.owner)

    def policy_inputs(self, model: str) -> PolicyInputs:
        """What `auto` decides by, for the model of a fingerprint."""
        return PolicyInputs(
            self.policy,
            lambda kind, lane, policy: self._ledger.verdict(model, kind, lane, policy),
            self.costs.gain,
            self._ledger.plateau(model),
        )

    def linked(
        self,
        prompt: Prompt,
        plan: LinkPlan,
        linked: LinkedTable,
        knowledge: Knowledge,
        chosen: Strategy,
        reused_rows: int,
        inline_media: bool = False,
    ) -> None:
        """Learn from a prompt that was just linked; its table is not kept.

        Args:
            knowledge: what it was planned with.
            chosen: the strategy that was asked for.
            reused_rows: rows at its front that were in the table before.
            inline_media: whether parts without rows came with the prompt.
        """
        auto = chosen if isinstance(chosen, Auto) else Auto()
        policy = auto.policy or self.policy
        if policy.forming and auto.trial is None:

            def wants(key: PatchKey, size: int) -> bool:
                return self.former.wants(self.view.owner, key, size, policy)

            due = self._sightings.due(prompt, policy) if inline_media else {}
            later: list[Formable] = []
            for job in formable(
                self.adapter, self.view, prompt, plan, linked, knowledge, policy, wants, reused_rows, due
            ):
                if due.keys().isdisjoint(job.key.chunks):
                    self.former.submit(job, policy)
                else:
                    later.append(job)
            if inline_media:
                self._sightings.keep(due, later, linked.trace.computed, policy)
        if self._comparing:
            return
        trace = linked.trace
        if not plan.selectors and trace.row_layers == trace.computed * plan.layers:
            self.costs.observe(trace.computed, trace.cached, trace.patch_bytes, trace.seconds)
        if reused_rows == 0 and (plan.decisions or plan.strategy in ("full", "prefix")):
            self._canary.consider(prompt, plan, linked, policy)

    @property
    def waiting(self) -> bool:
        """Whether there is something to do when nobody waits for an answer."""
        return self._canary.waiting or self._sightings.waiting

    def idle(self, link: Callable[[Prompt, Strategy], tuple[LinkPlan, LinkedTable]]) -> None:
        """Make chunks of media that came a second time, and compare what the canary took, with `link` to link it again.

        On the thread that owns the model.
        """
        if self._comparing:
            return
        self._sightings.make(self.former.submit)
        if not self._canary.waiting:
            return
        self._comparing = True
        try:
            before = self._canary.statistics
            self._canary.run(self._held, link)
        finally:
            self._comparing = False
        after = self._canary.statistics
        if (before.checks, before.trials) != (after.checks, after.trials):
            self._ledgers.save(self.view.owner)

    def _held(self, prompt: Prompt) -> bool:
        """Whether nothing of a prompt was deleted, and what has to be taken as it is alone is in the store.

        The pieces of a window are its own, and never were in the store.
        """
        gone = self.view.deleted(chunks_of(prompt))
        return not gone and all(name in self.view for name in chunks_of(prompt, RowState.CANONICAL))

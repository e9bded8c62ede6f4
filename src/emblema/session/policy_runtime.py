"""What `auto` decides by for one tenant: the bounds, what was measured, what linking costs, and what came lately."""

from collections.abc import Callable
from dataclasses import dataclass

from emblema.link.lanes import Lane
from emblema.link.policy.certificate import PROVISIONAL
from emblema.link.policy.expectations import Continuations, RecentSightings, RowCosts
from emblema.link.policy.lane_stats import LaneReport
from emblema.link.policy.policy import Policy
from emblema.link.policy.samples import Sample
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, PrefixMatch
from emblema.models.adapter import Adapter
from emblema.session.comparisons import Comparisons, ComparisonStatistics
from emblema.session.fidelity_logs import FidelityLogs
from emblema.session.new_media import InlineMediaStatistics, NewMedia
from emblema.session.patch_worker import FormingStatistics, PatchWorker
from emblema.store.store import TenantStore


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Counters of one tenant's policy; forming is counted for all tenants of the model.

    `not_finite` counts prompts that were computed in full because the logits of a first attempt were not finite.
    """

    forming: FormingStatistics
    canary: ComparisonStatistics
    inline_media: InlineMediaStatistics = InlineMediaStatistics()
    not_finite: int = 0


class PolicyRuntime:
    """What `auto` decides by for one tenant, and what was measured. `engine.policy_runtime`.

    `session/after_answer.py` adds to it. How faithful a lane is depends on contents, and is each tenant's own.

    Args:
        adapter: the model.
        store: the tenant's store.
        policy: the bounds.
        patch_worker: forms patches in the background.

    Attributes:
        logs, log: the measurements of all tenants of the store, and this one's.
        sightings: lists of chunks, each a chunk and its antecedents, that came lately.
        continuations: how many prompts a later one began with.
        new_media: media that came with prompts.
        comparisons: compares answers with full prefills.
        not_finite: see `PolicyStatistics`.
    """

    def __init__(self, adapter: Adapter, store: TenantStore, policy: Policy, patch_worker: PatchWorker) -> None:
        self.adapter, self.store, self.policy, self.patch_worker = adapter, store, policy, patch_worker
        self.logs = FidelityLogs.of_store(store.parent)
        self.log = self.logs.of(store.owner)
        self.sightings, self.continuations = RecentSightings(), Continuations()
        self.new_media = NewMedia(adapter, store)
        self.comparisons = Comparisons(self.log, policy)
        self.not_finite = 0

    @property
    def statistics(self) -> PolicyStatistics:
        """Plain counters, for metrics."""
        forming, compared = self.patch_worker.statistics, self.comparisons.statistics
        return PolicyStatistics(forming, compared, self.new_media.statistics, self.not_finite)

    @property
    def lane_reports(self) -> list[LaneReport]:
        """What was measured of every lane, by model and kind of content."""
        return self.log.reports()

    @property
    def waiting(self) -> bool:
        """Whether there is idle work."""
        return self.comparisons.waiting or self.new_media.waiting

    def trusts(self, kind: str, lane: Lane | str, policy: Policy | None = None) -> bool:
        """Return whether `auto` may take a lane for a kind of content on this model.

        A window asks it of `survivor`: whether parts written after something that has changed may keep their rows.

        Args:
            kind: `text`, or what a chunk is: `image`, `page`, `video`, `audio`.
            lane: of `Lane`.
            policy: a request's own bounds; the engine's by default.
        """
        return self.log.verdict(self.adapter.fingerprint, kind, Lane(lane), policy or self.policy).open

    def record(self, kind: str, lane: Lane | str, kl: float, agrees: bool, margin: float = 1.0) -> bool:
        """Add a measurement made elsewhere, such as a check's; return whether it closed or opened the lane.

        An answer of less than the provisional margin counts as one that would not have stood.
        """
        sample, accepted = Sample(float(kl), bool(agrees), margin), margin >= PROVISIONAL
        with self.logs.changing(self.store.owner) as log:
            return log.record(self.adapter.fingerprint, kind, Lane(lane), sample, self.policy, accepted=accepted)

    def set_plateau(self, rank: int) -> None:
        """Keep the rank above which this model's patches were measured not to gain; patches are formed with it."""
        with self.logs.changing(self.store.owner) as log:
            log.set_plateau(self.adapter.fingerprint, rank)

    def knowledge(self, model: str, find_prefix: Callable[[Prompt], PrefixMatch | None]) -> Knowledge:
        """Return what a strategy may look at to plan a prompt; measurements of other processes included.

        Args:
            model: the model's fingerprint.
            find_prefix: returns the longest exact prefix of a prompt, or None.
        """
        self.logs.refresh(self.store.owner)
        costs = RowCosts(
            unsure=lambda prompt: self.log.unsure_share(model, prompt),
            continued=self.continuations.share,
            seen=self.new_media.has_seen,
        )
        return Knowledge(
            model,
            self.adapter.layouts,
            self.store.find_patch,
            find_prefix,
            policy=self.policy,
            measured=self.log.measured(model),
            costs=costs,
            recurs=lambda names: self.sightings.count(names) > 0,
            second_pass=True,
            anchor=self.adapter.anchor,
        )

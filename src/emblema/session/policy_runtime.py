"""What is learnt from the prompts of one tenant: patches for later prompts, and fidelity."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.link.lanes import Lane, lanes_of, measured_lanes
from emblema.link.plan import LinkPlan, PrefixOrigin
from emblema.link.policy.certificate import Sample
from emblema.link.policy.decide import rank_of
from emblema.link.policy.expectations import Continuations, RecentSightings, RowCosts
from emblema.link.policy.fidelity import PROVISIONAL, LaneReport, MeasuredLanes, compare
from emblema.link.policy.policy import Policy
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.models.adapter import Adapter
from emblema.session.canary import Canary, CanaryStatistics
from emblema.session.fidelity_logs import FidelityLogs
from emblema.session.new_media import InlineMediaStatistics, NewMedia
from emblema.session.patch_worker import FormingStatistics, PatchJob, PatchWorker
from emblema.session.requests import LinkRequest, Prefill
from emblema.store.store import TenantStore


@dataclass(frozen=True, slots=True)
class PolicyStatistics:
    """Counters of one tenant's policy; forming is counted for all tenants of the model.

    `not_finite` counts prompts that were computed in full because the logits of a first attempt were not finite.
    """

    forming: FormingStatistics
    canary: CanaryStatistics
    inline_media: InlineMediaStatistics = InlineMediaStatistics()
    not_finite: int = 0


class PolicyRuntime:
    """What `auto` decides by for one tenant, and what was measured. `engine.policy_runtime`.

    It learns from prompts that were linked, on the thread that owns the model. How faithful a lane is depends on
    contents, and is each tenant's own.

    Args:
        adapter: the model.
        store: the tenant's store.
        policy: the bounds.
        patch_worker: forms patches in the background.
    """

    def __init__(self, adapter: Adapter, store: TenantStore, policy: Policy, patch_worker: PatchWorker) -> None:
        self.adapter, self.store, self.policy, self.patch_worker = adapter, store, policy, patch_worker
        self._logs = FidelityLogs.of_store(store.parent)
        self._log = self._logs.of(store.owner)
        self._canary = Canary(self._log, lambda: self.adapter.fingerprint, policy)
        self.new_media = NewMedia(adapter, store)
        self._comparing = False
        self._not_finite = 0
        # Chunks by their antecedents, as they were met lately.
        self._met = RecentSightings()
        self._continuations = Continuations()

    @property
    def statistics(self) -> PolicyStatistics:
        """Plain counters, for metrics."""
        return PolicyStatistics(
            self.patch_worker.statistics,
            self._canary.statistics,
            self.new_media.statistics,
            self._not_finite,
        )

    @property
    def patches_queued(self) -> int:
        """Patches queued so far to be formed in the background, formed or not; dropped ones do not count."""
        counts = self.patch_worker.statistics
        return counts.queued + counts.formed + counts.refused + counts.lost + counts.failed

    @property
    def lane_reports(self) -> list[LaneReport]:
        """What was measured of every lane, by model and kind of content."""
        return self._log.reports()

    def trusts(self, kind: str, lane: Lane | str, policy: Policy | None = None) -> bool:
        """Return whether `auto` may take a lane for a kind of content on this model.

        A window asks it of `survivor`: whether parts written after something that has changed may keep their rows.

        Args:
            kind: `text`, or what a chunk is: `image`, `page`, `video`, `audio`.
            lane: of `Lane`.
            policy: a request's own bounds; the engine's by default.
        """
        return self._log.verdict(self.adapter.fingerprint, kind, Lane(lane), policy or self.policy).open

    def record(self, kind: str, lane: Lane | str, kl: float, agrees: bool, margin: float = 1.0) -> bool:
        """Add a measurement made elsewhere, such as a check's; return whether it closed or opened the lane.

        An answer of less than the provisional margin counts as one that would not have stood.
        """
        model = self.adapter.fingerprint
        self._logs.refresh(self.store.owner)
        turned = self._log.record(
            model,
            kind,
            Lane(lane),
            Sample(float(kl), bool(agrees), margin),
            self.policy,
            accepted=margin >= PROVISIONAL,
        )
        self._logs.save(self.store.owner)
        return turned

    def set_plateau(self, rank: int) -> None:
        """Keep the rank above which this model's patches were measured not to gain; patches are formed with it."""
        self._log.set_plateau(self.adapter.fingerprint, rank)
        self._logs.save(self.store.owner)

    def measured(self, model: str) -> MeasuredLanes:
        """Return what was measured of a model's lanes, by other processes too."""
        self._logs.refresh(self.store.owner)
        return self._log.measured(model)

    def costs(self, model: str) -> RowCosts:
        """Return what linking is expected to cost on a model."""
        return RowCosts(
            unsure=lambda prompt: self._log.unsure_share(model, prompt),
            continued=self._continuations.share,
            seen=self.new_media.has_seen,
        )

    def recurs(self, names: Sequence[str]) -> bool:
        """Return whether all of a prompt's chunks were met lately in this order, from their ids."""
        return self._met.count(names) > 0

    def _policy_of(self, request: LinkRequest) -> Policy | None:
        """Return the bounds of a request; None for a canary's trial."""
        strategy = request.strategy
        if not isinstance(strategy, Auto):
            return self.policy
        return None if strategy.trial is not None else strategy.policy or self.policy

    def note_answer(self, request: LinkRequest, plan: LinkPlan, logits: Tensor, full: Tensor | None) -> None:
        """Count an answer over linked rows.

        Args:
            request: what was asked.
            plan: how it was linked.
            logits: [vocab] of its first token.
            full: those of full prefill, where the answer did not stand; None where it did.
        """
        lanes = measured_lanes(plan.decisions)
        if self._comparing or self._policy_of(request) is None or not lanes:
            return
        model = self.adapter.fingerprint
        self._log.note_accepted(model, lanes, full is None, self.policy)
        if full is not None:
            sample = compare(full.cpu().numpy(), logits.cpu().numpy())
            for kind, lane in sorted(lanes):
                self._log.record(model, kind, lane, sample, self.policy, accepted=False)

    def note_not_finite(self, model: str, request: LinkRequest, plan: LinkPlan) -> None:
        """Count a plan whose logits were not finite, as an infinite divergence of every lane that it took."""
        self._not_finite += 1
        lanes = lanes_of(plan.decisions)
        if self._policy_of(request) is None or not lanes:
            return
        self._logs.refresh(self.store.owner)
        for kind, lane in sorted(lanes):
            self._log.record(model, kind, lane, Sample(math.inf, False), self.policy)
        self._logs.save(self.store.owner)

    def learn(self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge) -> None:
        """Learn from a prompt that was just linked; its table is not kept.

        Args:
            request: what was linked, with the strategy that planned it.
            prefill: the result.
            knowledge: what it was planned with.
        """
        auto = request.strategy if isinstance(request.strategy, Auto) else Auto()
        policy = auto.policy or self.policy
        if auto.trial is None and not self._comparing:
            for segment, chunk in request.prompt.chunk_segments:
                self._met.add((*request.prompt.antecedents(segment), chunk.id))
            if request.table is None:
                self._continuations.note(request.prompt)
        if policy.forming and auto.trial is None:
            self._queue_patches(request, prefill, knowledge, policy)
        if self._comparing:
            return
        plan = prefill.plan
        if request.reused_rows == 0 and (plan.decisions or plan.strategy in ("full", "prefix")):
            self._canary.consider(prefill, policy)

    def _queue_patches(self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge, policy: Policy) -> None:
        """Queue patches of what was computed in context; those of media still to be made into chunks come after."""
        due = self.new_media.due(request.prompt, policy) if request.inline_media else {}
        later: list[PatchJob] = []
        for job in self._patch_jobs(request, prefill, knowledge, policy, due):
            if due.keys().isdisjoint(job.key.chunks):
                self.patch_worker.submit(job, policy)
            else:
                later.append(job)
        if request.inline_media:
            self.new_media.keep(due, later, prefill.trace.computed, policy)

    def _patch_jobs(
        self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge, policy: Policy, due: Collection[str]
    ) -> Iterator[PatchJob]:
        """Yield a job for each chunk whose patch is worth forming; its rows are copied when the job is yielded.

        Such a chunk was computed in every layer, now or for an exact prefix, with all that precedes it in the table,
        and no patch of it is known.

        Args:
            due: ids of chunks that are not in the store, and will be by the time the patch is formed.
        """
        adapter, prompt, plan, linked = self.adapter, prefill.prompt, prefill.plan, prefill.linked
        if not (plan.strategy in ("full", "prefix") or plan.strategy.startswith("auto:")):
            return
        written = _written_in_context(plan)
        decisions = {decision.start: decision for decision in plan.decisions}
        held = linked.table.rows[: linked.rows].cpu()
        for segment, chunk in prompt.chunk_segments:
            leads = prompt.leads(segment, adapter.anchor)
            if leads or segment.start < request.reused_rows or not written[:, segment.start : segment.stop].all():
                continue
            canonical = chunk if chunk.id in due else self._canonical(segment)
            if canonical is None or self._met.count((*prompt.antecedents(segment), chunk.id)) < policy.sightings:
                continue
            key = ArtifactKey(chunk.model, canonical.id, prompt.antecedents(segment))
            if not all(name in due or name in self.store for name in key.antecedents):
                # The store keeps no patch of chunks that it does not have: media seen once, a window's own pieces.
                continue
            decision, rank = decisions.get(segment.start), rank_of(canonical, knowledge, policy)
            # `auto` found no patch that is large enough, though there may be one of lower rank.
            lacking = decision is not None and decision.lane is Lane.FULL
            slots = ((held >= segment.start) & (held < segment.stop)).nonzero().squeeze(1)
            if rank == 0 or len(slots) != chunk.tokens or not (lacking or not self.store.has_artifact(key)):
                continue
            size = chunk.tokens * adapter.dtype.itemsize * sum(layout.features for layout in adapter.layouts)
            # A rank that somebody chose or measured is not second-guessed.
            least_kept = 0.0 if policy.rank or knowledge.measured.plateau else policy.kept
            if self.patch_worker.found_useless(self.store.owner, key, rank, least_kept):
                continue
            if not self.patch_worker.wants(self.store.owner, key, size, policy):
                continue
            yield PatchJob(
                self.store,
                key,
                canonical,
                linked.table.gather(slots),
                tuple(adapter.layouts),
                adapter.dtype,
                adapter.phases(canonical.encoded.positions),
                adapter.phases(prompt.positions[:, segment.start : segment.stop]),
                rank,
                least_kept,
            )

    def _canonical(self, segment: Segment) -> Chunk | None:
        """Return the chunk with canonical rows of a part, if the store has it."""
        part = segment.part
        if not isinstance(part, ChunkPart) or not part.name or part.name not in self.store:
            return None
        return part.chunk if part.state is RowState.CANONICAL else self.store.find(part.name)

    @property
    def waiting(self) -> bool:
        """Whether there is idle work."""
        return self._canary.waiting or self.new_media.waiting

    def idle(self, link: Callable[[Prompt, Strategy], Prefill]) -> None:
        """Make chunks of media that came a second time, and compare the prompt that the canary took.

        On the thread that owns the model.

        Args:
            link: links a prompt again.
        """
        if self._comparing:
            return
        self.make_media()
        if not self._canary.waiting:
            return
        self._comparing = True
        self._logs.refresh(self.store.owner)
        try:
            if self._canary.run(self._can_compare, link):
                self._logs.save(self.store.owner)
        finally:
            self._comparing = False

    def make_media(self) -> None:
        """Make chunks of media that came a second time. On the thread that owns the model."""
        if self.new_media.waiting:
            self.new_media.make(self.patch_worker.submit)

    def _can_compare(self, prompt: Prompt) -> bool:
        """Return whether no chunk of a prompt was deleted, and those taken as canonical are in the store.

        The pieces of a window are its own and never in the store.
        """
        parts = [part for part in prompt.chunk_parts if part.name]
        canonical = (part.name for part in parts if part.state is RowState.CANONICAL)
        return not self.store.deleted(part.name for part in parts) and all(name in self.store for name in canonical)


def _written_in_context(plan: LinkPlan) -> numpy.ndarray:
    """Return which rows are as the prompt's own forward makes them, [layers, rows]: computed, or of an exact prefix."""
    written = plan.sources() == 0
    for part in plan.ranges:
        if isinstance(part.origin, PrefixOrigin):
            written[slice(*part.layers), part.start : part.stop] = True
    return written

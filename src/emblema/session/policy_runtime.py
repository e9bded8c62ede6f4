"""What is learnt from the prompts of one tenant: patches for later prompts, costs, and fidelity."""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from emblema.kv.chunk import Chunk
from emblema.link.plan import LinkPlan
from emblema.link.policy.choosing import rank_of
from emblema.link.policy.continuations import Continuations
from emblema.link.policy.costs import Costs, Rates
from emblema.link.policy.fidelity import LaneReport, Sample
from emblema.link.policy.frequency import FrequencySketch
from emblema.link.policy.learning_budget import LearningCosts
from emblema.link.policy.margins import MarginSample
from emblema.link.policy.policy import REPEATED, Lane, Policy, PolicyInputs, RowCosts
from emblema.link.prompt import ChunkPart, Prompt, RowState, Segment
from emblema.link.strategies.auto import Auto, second_pass_pays
from emblema.link.strategies.base import Knowledge, Strategy
from emblema.link.taken_rows import ShareSample
from emblema.models.adapter import Adapter
from emblema.session.canary import Canary, CanaryStatistics, lanes_of
from emblema.session.fidelity_logs import FidelityLogs
from emblema.session.pair_memories import PairMemories
from emblema.session.pair_memory import PairMemory
from emblema.session.pair_rows import linked_rows, names_all, teaches
from emblema.session.patch_worker import FormingStatistics, PatchJob, PatchWorker
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.seen_media import InlineMediaStatistics, SeenMedia
from emblema.store.keys import ArtifactKey, ArtifactKind
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
    learning: LearningCosts = LearningCosts()


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
        self._logs = FidelityLogs.of_store(store.parent)
        self._log = self._logs.of(store.owner)
        self._canary = Canary(self._log, lambda: self.adapter.fingerprint)
        self._seen_media = SeenMedia(adapter, store)
        self._comparing = False
        self._not_finite = 0
        self._memories = PairMemories.of_store(store.parent)
        self._pairs: PairMemory | None = None
        # Chunks by their antecedents, as they were met lately.
        self._met = FrequencySketch()
        self._continuations = Continuations()

    @property
    def statistics(self) -> PolicyStatistics:
        """Plain counters, for metrics."""
        return PolicyStatistics(
            self.patch_worker.statistics,
            self._canary.statistics,
            self._seen_media.statistics,
            self._not_finite,
            LearningCosts() if self._pairs is None else self._pairs.budget.costs,
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

    @property
    def rates(self) -> Rates | None:
        """What rows were measured to cost; None before there was enough to tell."""
        return self.costs.rates

    def has_seen(self, chunk: str) -> bool:
        """Return whether media of this id came with a prompt before and were not kept."""
        return self._seen_media.has_seen(chunk)

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
        self._logs.refresh(self.store.owner)
        turned = self._log.record(model, kind, Lane(lane), Sample(float(kl), bool(agrees)), self.policy)
        self._logs.save(self.store.owner)
        return turned

    def set_plateau(self, rank: int) -> None:
        """Keep the rank above which this model's patches were measured not to gain; patches are formed with it."""
        self._log.set_plateau(self.adapter.fingerprint, rank)
        self._logs.save(self.store.owner)

    def policy_inputs(self, model: str) -> PolicyInputs:
        """Return what `auto` decides by, for the model of a fingerprint."""
        self._logs.refresh(self.store.owner)
        return PolicyInputs(
            self.policy,
            lambda kind, lane, policy: self._log.verdict(model, kind, lane, policy),
            self.costs.gain,
            self._log.plateau(model),
            lambda names: self._met.estimate(names) > 0,
            lambda: self._log.unsure_share(model),
            lambda kinds: self._log.least_margin(model, kinds),
            self._row_costs,
            self.pairs(model).knows,
            self._continuations.share,
        )

    def pairs(self, model: str | None = None) -> PairMemory:
        """Return the memory of pairs, of the model of a fingerprint or as it is now."""
        model = model or self.adapter.fingerprint
        if self._pairs is None or self._pairs.model != model:
            self._pairs = self._memories.of(self.store, self.adapter, model)
        return self._pairs

    def sample(self, request: LinkRequest, plan: LinkPlan, knowledge: Knowledge) -> ShareSample | None:
        """Return which rows of a prompt the memory of pairs wants to learn from; None for none.

        Prompts of which chunks are not in the store teach nothing of these. Those that are too short for a second pass
        are learnt from as far as that was earned: others like them cannot be served from memory.
        """
        policy = self._policy_of(request)
        may_learn = policy is not None and policy.forming and policy.pair_share > 0 and not self._comparing
        if not may_learn or request.table is not None or not teaches(plan) or not names_all(request.prompt):
            return None
        prompt, policy = request.prompt, policy or self.policy
        held = [
            (segment, chunk) for segment, chunk in prompt.chunk_segments if segment.start and chunk.id in self.store
        ]
        keys = [
            ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment), ArtifactKind.PAIRS)
            for segment, chunk in held
        ]
        pays = second_pass_pays(
            prompt, [(chunk.tokens, policy.pair_share) for _, chunk in held], knowledge.policy_inputs
        )
        return self.pairs(knowledge.model).next_sample(keys, policy, on_credit=pays)

    def answering(self, model: str) -> AbstractContextManager[None]:
        """Return a block in which a prompt is linked for an answer; what the canary links is none."""
        return nullcontext() if self._comparing else self.pairs(model).budget.answering()

    def _policy_of(self, request: LinkRequest) -> Policy | None:
        """Return the bounds of a request; None for a canary's trial."""
        strategy = request.strategy
        if not isinstance(strategy, Auto):
            return self.policy
        return None if strategy.trial is not None else strategy.policy or self.policy

    def note_margin(self, model: str, plan: LinkPlan, margin: float, agrees: bool | None) -> None:
        """Count the answer of a plan with a second pass.

        Args:
            model: the model's fingerprint.
            plan: the plan.
            margin: by how much the probabilities of its two likeliest first tokens differed.
            agrees: whether it was full prefill's, where the prompt was computed in full after all.
        """
        if not self._comparing:
            kinds = {decision.kind for decision in plan.decisions if decision.lane in REPEATED}
            self._log.note_margin(model, kinds, MarginSample(margin, agrees))

    def note_not_finite(self, model: str, request: LinkRequest, plan: LinkPlan) -> None:
        """Count a plan whose logits were not finite, as an infinite divergence of every lane that it took."""
        self._not_finite += 1
        lanes, policy = lanes_of(plan.decisions), self._policy_of(request)
        if policy is None or not lanes:
            return
        self._logs.refresh(self.store.owner)
        for kind, lane in sorted(lanes):
            self._log.record(model, kind, lane, Sample(math.inf, False), policy)
        self._logs.save(self.store.owner)

    def _row_costs(self) -> RowCosts:
        """What a forward and a taken row cost here, in computed rows."""
        ratios = self.costs.ratios()
        return RowCosts() if ratios is None else RowCosts(*ratios)

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
        if prefill.linked.shares is not None:
            memory = self.pairs(knowledge.model)
            with memory.budget.learning():
                rows = linked_rows(self.adapter, prefill, self._canonical, memory.witnesses)
            if rows is not None:
                memory.add(rows)
        if policy.forming and auto.trial is None:
            self._queue_patches(request, prefill, knowledge, policy)
        if self._comparing:
            return
        plan, trace = prefill.plan, prefill.trace
        ran = trace.computed + trace.repeated
        if not plan.selectors and trace.row_layers == ran * plan.layers:
            forwards = 1 if plan.recomputation is None else 2
            self.costs.observe(ran, trace.cached, trace.patch_bytes, trace.seconds, forwards)
        if request.reused_rows == 0 and (plan.decisions or plan.strategy in ("full", "prefix")):
            self._canary.consider(prefill, policy)

    def _queue_patches(self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge, policy: Policy) -> None:
        """Queue patches of what was computed in context; those of media still to be made into chunks come after."""
        due = self._seen_media.due(request.prompt, policy) if request.inline_media else {}
        later: list[PatchJob] = []
        for job in self._patch_jobs(request, prefill, knowledge, policy, due):
            if due.keys().isdisjoint(job.key.chunks):
                self.patch_worker.submit(job, policy)
            else:
                later.append(job)
        if request.inline_media:
            self._seen_media.keep(due, later, prefill.trace.computed, policy)

    def _patch_jobs(
        self, request: LinkRequest, prefill: Prefill, knowledge: Knowledge, policy: Policy, due: Collection[str]
    ) -> Iterator[PatchJob]:
        """Yield a job for each chunk whose patch is worth forming; its rows are copied when the job is yielded.

        Such a chunk was computed in every layer, with all that precedes it in the table, and no patch of it is known.

        Args:
            due: ids of chunks that are not in the store, and will be by the time the patch is formed.
        """
        adapter, prompt, plan, linked = self.adapter, prefill.prompt, prefill.plan, prefill.linked
        if not (plan.strategy in ("full", "prefix") or plan.strategy.startswith("auto:")):
            return
        codes = plan.sources()
        decisions = {decision.start: decision for decision in plan.decisions}
        held = linked.table.rows[: linked.rows].cpu()
        for segment, chunk in prompt.chunk_segments:
            computed = not (codes[:, segment.start : segment.stop] != 0).any()
            if segment.start == 0 or segment.start < request.reused_rows or not computed:
                continue
            canonical = chunk if chunk.id in due else self._canonical(segment)
            if canonical is None or self._met.estimate((*prompt.antecedents(segment), chunk.id)) < policy.sightings:
                continue
            key = ArtifactKey(chunk.model, canonical.id, prompt.antecedents(segment))
            if not all(name in due or name in self.store for name in key.antecedents):
                # The store keeps no patch of chunks that it does not have: media seen once, a window's own pieces.
                continue
            decision, rank = decisions.get(segment.start), rank_of(canonical, knowledge, policy)
            # `auto` found no patch that is large enough, though there may be one of lower rank.
            lacking = decision is not None and decision.lane in (Lane.FULL, Lane.REFRESH)
            slots = ((held >= segment.start) & (held < segment.stop)).nonzero().squeeze(1)
            if rank == 0 or len(slots) != chunk.tokens or not (lacking or not self.store.has_artifact(key)):
                continue
            size = chunk.tokens * adapter.dtype.itemsize * sum(layout.features for layout in adapter.layouts)
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
                decision.key if decision is not None and decision.lane is Lane.REFRESH else None,
                policy.refresh_rank,
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
        pairs = self._pairs is not None and self._pairs.waiting
        return pairs or self._canary.waiting or self._seen_media.waiting

    def idle(self, link: Callable[[Prompt, Strategy], Prefill]) -> None:
        """Make chunks of media that came a second time, and compare the prompt that the canary took.

        On the thread that owns the model.

        Args:
            link: links a prompt again.
        """
        if self._comparing:
            return
        if self._pairs is not None:
            self._pairs.idle()
        self.make_media()
        if not self._canary.waiting:
            return
        self._comparing = True
        self._logs.refresh(self.store.owner)
        try:
            with self.pairs().budget.learning():
                if self._canary.run(self._can_compare, link):
                    self._logs.save(self.store.owner)
        finally:
            self._comparing = False

    def make_media(self) -> None:
        """Make chunks of media that came a second time. On the thread that owns the model."""
        if self._seen_media.waiting:
            self._seen_media.make(self.patch_worker.submit)

    def _can_compare(self, prompt: Prompt) -> bool:
        """Return whether no chunk of a prompt was deleted, and those taken as canonical are in the store.

        The pieces of a window are its own and never in the store.
        """
        parts = [part for part in prompt.chunk_parts if part.name]
        canonical = (part.name for part in parts if part.state is RowState.CANONICAL)
        return not self.store.deleted(part.name for part in parts) and all(name in self.store for name in canonical)

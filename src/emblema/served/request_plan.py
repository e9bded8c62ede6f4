"""From a request to a serving engine to a plan: its prompt as chunks and text, and the rows that its pages can take."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.latest import LatestDict
from emblema.link.kept_rows import TEXT
from emblema.link.known_media import KnownMedia, MediaDigest, ShownMedia
from emblema.link.lanes import Lane
from emblema.link.miss_reasons import Cause
from emblema.link.plan import ChunkOrigin, LinkPlan, PatchUse, RowSource
from emblema.link.policy.decide import COSTS_MORE, rank_of, worth_capturing
from emblema.link.policy.expectations import Continuations, Costs, RecentSightings, RowCosts
from emblema.link.policy.fidelity import MeasuredLanes
from emblema.link.policy.policy import Policy
from emblema.link.prompt import Prompt
from emblema.link.strategies.base import Knowledge, Strategy, computed, lay_out
from emblema.link.strategies.query import QueryStrategy, left_rows, recomputation
from emblema.link.strategies.registry import parse
from emblema.served.chunk_stubs import ChunkStubs, build_prompt, chunk_ids
from emblema.served.kept_prompts import KeptPromptIndex, KeptSpan
from emblema.served.model_spec import ModelSpec
from emblema.served.requests import ServedRequest
from emblema.served.row_threshold import RowThreshold
from emblema.served.spans import CachedSpans, unsupported_reason
from emblema.served.stored import StoreMemory
from emblema.served.stored_artifacts import StoredArtifacts, chunks_after
from emblema.store import Store

PatchNeed = tuple[ArtifactKey, int, tuple[int, ...]]
"""A patch to be formed: its key, its rank and its layers."""


MOST_MET = 256
"""Tenants whose latest prompts are remembered."""
MOST_CONTINUED, FEW_CONTEXTS = 0.5, 3
"""Where more of a tenant's prompts are gone on from, a chunk is captured once so many lists of others preceded it."""
EXACT = ("full", "prefix")
"""Strategies that take no rows of a conversation."""
NOT_READY = "this server was not made ready for it"


@dataclass(slots=True)
class RequestPlan:
    """The plan of a request, and how far it has been carried out.

    Attributes:
        request: the request.
        prompt: its text and its chunks, these without rows.
        plan: what is carried out; without ranges where nothing is linked.
        missing: chunks that the store lacks.
        causes: by a chunk's id, why the store lacks it.
        cached: its cached spans.
        needs: patches to form from this request's rows, once they are computed.
        lacking: whether patches are lacking, those that are not worth forming yet included.
        remark: why the plan is not what was asked for; None if it is.
        linked: cached rows that were taken so far.
        patched: how many of them have a patch, where an engine counts them.
        weighed: whether it was decided if linking pays.
        awaits: whether it is to be planned again once what is missing was prefilled alone, as it is then read.
        continued: share of new prompts like this one that a later prompt began with.
        passing: chunks that the store lacks and that are not captured in idle time: the next turn finds their rows in
            the engine's prefix cache, and few other prompts showed them.
        placed: the prompt with rows of its conversation; None where it takes none.
        kept: where these are, by the ids of its pieces.
        failed: whether what it takes could not be read or written.
        margin: of an answer that was read, see `Recomputation`; None where none was.
    """

    request: ServedRequest
    prompt: Prompt
    plan: LinkPlan
    missing: tuple[Chunk, ...] = ()
    cached: CachedSpans = field(default_factory=CachedSpans)
    needs: tuple[PatchNeed, ...] = ()
    remark: str | None = None
    lacking: bool = False
    awaits: bool = False
    continued: float = 0.0
    passing: frozenset[str] = frozenset()
    placed: Prompt | None = None
    kept: Mapping[str, KeptSpan] = field(default_factory=dict)
    linked: int = field(default=0, init=False)
    patched: int = field(default=0, init=False)
    weighed: bool = field(default=False, init=False)
    failed: bool = field(default=False, init=False)
    margin: float | None = field(default=None, init=False)
    causes: Mapping[str, Cause] = field(default_factory=dict, init=False)

    @property
    def kept_names(self) -> dict[str, str]:
        """The ids of its pictures' chunks, by the engine's names of these, where its rows are kept afterwards."""
        chunks = (chunk.id for _, chunk in self.prompt.chunk_segments)
        names = (item.identifier for item in self.request.items)
        return dict(zip(names, chunks, strict=True)) if self.request.keeps else {}

    def reads(self, ready: int) -> bool:
        """Return whether rows are chosen by what the question attends, where `ready` rows are there already."""
        again = self.plan.recomputation
        return (
            again is not None
            and bool(self.cached.spans)
            and ready < again.question[0]
            and again.after(ready) is not None
        )

    def restart(self) -> None:
        """Count from the start, as the engine schedules the request for the first time or after a preemption."""
        self.linked = self.patched = 0

    def encodings(self, ready: int) -> tuple[tuple[str, str], ...]:
        """Return the chunks of pictures with rows from `ready` on whose encoder outputs are at hand.

        They are stored, or a worker has them of the conversation; with the engine's name of the picture before each.
        Those of pictures whose rows are taken are of use too, where a step ends within such rows.
        """
        missing = set() if self.kept else {chunk.id for chunk in self.missing}
        places = zip(self.request.items, self.prompt.chunk_segments, strict=True)
        return tuple(
            (item.identifier, chunk.id)
            for item, (segment, chunk) in places
            if segment.stop > ready and chunk.id not in missing
        )

    def decline(self, remark: str) -> None:
        """Have the whole request computed."""
        self.cached, self.remark = CachedSpans(), remark

    def fail(self) -> None:
        """Have the rest of the request computed, as its cached rows could not be loaded."""
        self.cached, self.linked, self.patched, self.failed = CachedSpans(), 0, 0, True
        self.remark = "stored rows could not be loaded; they were computed"


class RequestPlanning:
    """Plans the requests to one server, as far as its store and pages allow; on the one thread that reads the store.

    Args:
        spec: of the model.
        store: is only read.
        strategy: for requests that name none.
        log_once: logs a line, once.
        policy: the bounds of `auto`.
        second_pass: why no plan with a second pass can be carried out; None where it can.

    Attributes:
        memory: what is known of the store.
        kept_prompts: whose rows the workers hold.
    """

    def __init__(
        self,
        spec: ModelSpec,
        store: Store,
        strategy: str,
        log_once: Callable[[str], None],
        policy: Policy | None = None,
        second_pass: str | None = NOT_READY,
    ) -> None:
        self.spec, self.policy, self.memory = spec, policy or Policy(), StoreMemory(store)
        self._store, self._strategy, self._log_once, self._second_pass = store, strategy, log_once, second_pass
        self.stubs = ChunkStubs(spec)
        # By tenant, the chunks after their antecedents that were met lately; of the tenants that came last.
        self.kept_prompts = KeptPromptIndex(spec)
        self._met: LatestDict[bytes, RecentSightings] = LatestDict(MOST_MET)
        self._continuations: LatestDict[bytes, Continuations] = LatestDict(MOST_MET)
        # By tenant, after how many lists of antecedents each chunk was met.
        self._contexts: LatestDict[bytes, RecentSightings] = LatestDict(MOST_MET)

    def strategy_of(self, request: ServedRequest) -> Any:
        """Return the name of the strategy that a request asks for, as it is given."""
        return request.options.get("strategy", self._strategy)

    def plan(
        self,
        request: ServedRequest,
        costs: RowCosts | RowThreshold | None = None,
        measured: MeasuredLanes | None = None,
        again: bool = False,
    ) -> RequestPlan:
        """Plan a request.

        Args:
            request: with the digests of its items.
            costs: what linking is expected to cost; nothing but rows where None. How often prompts are gone on from is
                counted here.
            measured: what was measured of the tenant's lanes.
            again: whether the request was planned before.
        """
        prompt = build_prompt(request, self.stubs)
        continued = self._count_continuation(request, prompt, again)
        costs = replace(costs or RowCosts(), continued=lambda prompt: continued)
        made = self._plan(request, prompt, costs, measured or MeasuredLanes())
        made.continued = continued
        if continued > MOST_CONTINUED and self.strategy_of(request) == "auto":
            contexts = self._contexts.latest(request.store_salt, RecentSightings)
            made.passing = frozenset(chunk.id for chunk in made.missing if contexts.count((chunk.id,)) < FEW_CONTEXTS)
        if not made.awaits:
            made.causes = self._find_causes(request, made)
        return made

    def _plan(
        self, request: ServedRequest, prompt: Prompt, costs: RowCosts | RowThreshold, measured: MeasuredLanes
    ) -> RequestPlan:
        lacking, knowledge = self._look_up(request, prompt, costs, measured)
        missing, name = tuple(lacking.values()), self.strategy_of(request)
        plain = LinkPlan("plain", prompt.tokens, knowledge.layers, ())
        if name == "auto" and not request.keeps and worth_capturing(prompt, knowledge, knowledge.costs, self.policy):
            return RequestPlan(request, prompt, plain, missing, awaits=True)
        try:
            if not isinstance(name, str):
                raise EmblemaError(f"strategy is {name!r}: give a name")
            strategy = parse(name)
            if request.keeps and name not in EXACT:
                return self._plan_kept(request, prompt, knowledge, missing, strategy)
            plan = strategy.plan(prompt, knowledge)
        except EmblemaError as error:
            return RequestPlan(request, prompt, plain, remark=str(error))
        sightings = self._count_sightings(request, prompt)
        plan, reason = self._supported(plan, bool(missing), request.options.get("margin"))
        if reason is not None:
            self._log_once(f"{plan.strategy} is computed plainly here: {reason}")
            return RequestPlan(request, prompt, plain, missing, remark=f"{plan.strategy}: {reason}")
        linked, needs, lacks = compute_chunks(plan, lacking), _forming_needs(plan), False
        remark = COSTS_MORE if any(own.reason == COSTS_MORE for own in plan.decisions) else plan.remark
        cached = CachedSpans.of(linked, _exact_rows(prompt, self.spec.anchor))
        if plan.decisions:
            wanted = _needs_of_decisions(plan, prompt, knowledge)
            lacks = bool(wanted)
            every = [segment.rows for segment, _ in prompt.chunk_segments]
            forms = bool(cached.spans) or knowledge.costs.taking_pays(prompt, every)
            least = self.policy.sightings if forms else math.inf
            needs = tuple(need for need in wanted if sightings[need[0].chunk, need[0].antecedents] >= least)
        elif any(key.chunk not in lacking for key in plan.forming):
            linked, cached, remark = plain, CachedSpans(), "patches are formed of this prompt's own rows"
        elif cached.spans:
            needs = ()
        return RequestPlan(request, prompt, linked, missing, cached, needs, remark, lacks or bool(needs))

    def _plan_kept(
        self,
        request: ServedRequest,
        prompt: Prompt,
        knowledge: Knowledge,
        missing: tuple[Chunk, ...],
        strategy: Strategy,
    ) -> RequestPlan:
        """Plan a request that takes the rows of its conversation: all others are computed in their place.

        A strategy `query-R%` says how many of them are computed again once something before them has left.
        """
        kinds = {TEXT, *(chunk.kind for _, chunk in prompt.chunk_segments)}
        policy, layers = self.policy, knowledge.layers
        trusted = frozenset(kind for kind in kinds if knowledge.measured.verdict(kind, Lane.SURVIVOR, policy).open)
        deleted = self._store.tenant(request.store_salt).deleted
        placed, kept = self.kept_prompts.place(request.store_salt, prompt, trusted, deleted)
        ranges = lay_out(placed, knowledge, lambda segment, chunk: computed(placed, layers, *segment.rows))
        ranges = tuple(dict.fromkeys(ranges))
        if not kept:
            plain = LinkPlan("plain", prompt.tokens, layers, ())
            return RequestPlan(request, prompt, plain, missing, remark="no rows of its conversation are kept yet")
        again, share = None, strategy.share if isinstance(strategy, QueryStrategy) else policy.survivor_share
        if self._second_pass is None and share > 0:
            again = recomputation(placed, left_rows(placed), share, knowledge.layouts)
        plan = LinkPlan(f"auto:{Lane.SURVIVOR}", prompt.tokens, layers, ranges, recomputation=again)
        return RequestPlan(request, prompt, plan, missing, CachedSpans.of(plan), placed=placed, kept=kept)

    def _count_continuation(self, request: ServedRequest, prompt: Prompt, again: bool) -> float:
        """Return how likely a prompt is gone on from; it is counted as one that came, once."""
        known = self._continuations.latest(request.store_salt, Continuations)
        share = known.share(prompt)
        if not again:
            known.note(prompt)
        return share

    def _look_up(
        self, request: ServedRequest, prompt: Prompt, costs: Costs, measured: MeasuredLanes
    ) -> tuple[dict[str, Chunk], Knowledge]:
        """Return a prompt's chunks that are not stored, and what is known of all."""
        self.memory.refresh()
        spec, tenant = self.spec, self._store.tenant(request.store_salt)
        chunks = {chunk.id: chunk for _, chunk in prompt.chunk_segments}
        held = self.memory.held(tenant, chunks)
        lacking = {id: chunk for id, chunk in chunks.items() if id not in held}
        knowledge = Knowledge(
            spec.fingerprint,
            spec.layouts,
            StoredArtifacts(prompt, spec, tenant, self.memory, held).find,
            lambda prompt: None,
            policy=self.policy,
            measured=measured,
            costs=costs,
            recurs=lambda names: self._met_by(request).count(names) > 0,
            lacking=lacking,
            second_pass=self._second_pass is None,
            anchor=spec.anchor,
        )
        return lacking, knowledge

    def _find_causes(self, request: ServedRequest, plan: RequestPlan) -> Mapping[str, Cause]:
        """Return why the store lacks chunks of a prompt, by their ids, and note that they were shown."""
        tenant, spec = self._store.tenant(request.store_salt), self.spec
        known, lacking = KnownMedia.of(tenant), {chunk.id for chunk in plan.missing}
        for item, (_, chunk) in zip(request.items, plan.prompt.chunk_segments, strict=True):
            if chunk.id not in lacking:
                known.note_found(chunk.id)
                continue
            facets = {
                "kind": item.kind, "tokens": item.tokens, "grid": item.grid, "seconds": item.seconds,
                "dtype": str(spec.dtype), "version": spec.version,
            }  # fmt: skip
            ids = chunk_ids(item, chunk.encoded.token_ids.tolist(), request.store_salt, spec).of
            shown = ShownMedia(chunk.id, spec.fingerprint, facets, ids, MediaDigest(item.digest))
            known.note_missing(shown, tenant)
        return {id: cause for id, cause in known.refine(plan.prompt).items() if id in lacking}

    def _met_by(self, request: ServedRequest) -> RecentSightings:
        return self._met.latest(request.store_salt, RecentSightings)

    def _count_sightings(self, request: ServedRequest, prompt: Prompt) -> dict[tuple[str, tuple[str, ...]], int]:
        """Count each chunk with its antecedents once; return how often they were met lately, this time included."""
        places, met = {(chunk.id, before) for _, chunk, before in chunks_after(prompt)}, self._met_by(request)
        counts = {(name, before): met.add((*before, name)) for name, before in sorted(places)}
        contexts = self._contexts.latest(request.store_salt, RecentSightings)
        for name in (name for (name, _), count in counts.items() if count == 1):
            contexts.add((name,))
        return counts

    def _supported(self, plan: LinkPlan, lacking: bool, margin: Any) -> tuple[LinkPlan, str | None]:
        """Return a plan, with the margin that its request asks for, and why it cannot be carried out."""
        again = plan.recomputation is not None
        reason = unsupported_reason(plan, "some of its pictures are not stored yet" if lacking else self._second_pass)
        if reason is None and not plan.decisions and any(key.orbit for key in plan.forming):
            reason = "an orbit patch is not stored, and in a serving engine none is formed: it takes other orderings"
        if reason is not None or not again or margin is None:
            return plan, reason
        if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin <= 1:
            return plan, f"margin is {margin!r}: give a number from 0 to 1"
        return replace(plan, least_margin=float(margin)), None


def _exact_rows(prompt: Prompt, anchor: tuple[int, ...]) -> int:
    """Return how many rows at the front are as plain prefill makes them: to the end of a chunk right after the anchor.

    There are none where no chunk stands there.
    """
    return next((segment.stop for segment, _ in prompt.chunk_segments if prompt.leads(segment, anchor)), 0)


def _forming_needs(plan: LinkPlan) -> tuple[PatchNeed, ...]:
    needs = {key: plan.patch_need(key) for key in plan.forming}
    return tuple((key, rank, tuple(sorted(layers))) for key, (rank, layers) in needs.items())


def compute_chunks(plan: LinkPlan, chunks: Collection[str]) -> LinkPlan:
    """Return the plan with the rows of some chunks computed; all layers of a row have the same source."""
    ranges = [
        replace(part, source=RowSource.COMPUTED, origin=None, patch=None, layers=(0, plan.layers))
        if isinstance(part.origin, ChunkOrigin) and part.origin.chunk in chunks
        else part
        for part in plan.ranges
    ]
    return replace(plan, ranges=tuple(dict.fromkeys(ranges)), forming=())


def _needs_of_decisions(plan: LinkPlan, prompt: Prompt, knowledge: Knowledge) -> tuple[PatchNeed, ...]:
    """Return patches of the chunks that `auto` computes in their place, where the store has none that serves."""
    chunks = {segment.start: (segment, chunk) for segment, chunk in prompt.chunk_segments}
    layers = tuple(range(plan.layers))
    needs: dict[ArtifactKey, PatchNeed] = {}
    for decision in plan.decisions:
        segment, chunk = chunks[decision.start]
        rank = rank_of(chunk, knowledge, knowledge.policy)
        if decision.lane is not Lane.FULL or rank == 0:
            continue
        key = ArtifactKey(knowledge.model, chunk.id, prompt.antecedents(segment))
        if not knowledge.holds(PatchUse(key, rank), chunk.tokens):
            needs[key] = (key, rank, layers)
    return tuple(needs.values())

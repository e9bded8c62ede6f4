"""Linking: a prompt's chunks are leased, it is planned, patches are formed, the plan is run, and it is remembered."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from emblema.errors import LoadError, ModelError, PromptError
from emblema.kv.chunk import Chunk
from emblema.link.context import LinkContext
from emblema.link.executor import Executor, LinkedTable
from emblema.link.forming import form_missing
from emblema.link.known_media import KnownMedia
from emblema.link.miss_reasons import Cause, MissReason
from emblema.link.misses import find_misses
from emblema.link.plan import LinkPlan
from emblema.link.prompt import ChunkPart, Prompt, RowState, TextPart
from emblema.link.prompt import Segment as PromptSegment
from emblema.link.second_pass import margin_of
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, PrefixMatch, Strategy
from emblema.link.strategies.full import Full
from emblema.link.strategies.prefix import Prefix
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
from emblema.session.after_answer import learn, note_answer, note_not_finite
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.requests import LinkRequest, Prefill, Usage
from emblema.store.identity import owner_id
from emblema.store.leases import Lease
from emblema.store.prefixes import ChunkSegment, PrefixStore, Segment, TextSegment
from emblema.store.store import TenantStore


class Linker:
    """Links prompts on one model with what one tenant's store holds.

    Args:
        adapter: the model.
        store: the tenant's store.
        policy_runtime: what `auto` decides by; it learns from what is linked.
    """

    def __init__(self, adapter: Adapter, store: TenantStore, policy_runtime: PolicyRuntime) -> None:
        self.adapter, self.store, self.policy_runtime = adapter, store, policy_runtime
        self.executor = Executor(adapter)
        self._known = KnownMedia.of(store)
        # What was linked last and is to be learnt from after its answer.
        self._unlearnt: tuple[LinkRequest, Prefill, Knowledge] | None = None

    def link(self, request: LinkRequest, *, learn_later: bool = False) -> Prefill:
        """Carry a strategy out on a prompt, and learn from it.

        The prompt's chunks are leased until the end. Chunks on a slower tier load layer by layer while the forward
        runs; chunks that are lost are prefilled alone again. If a load fails, the forward is dropped and the prompt is
        planned again without it.

        Args:
            request: the prompt, and how it is linked.
            learn_later: learn from it, and keep it as a prefix, only in `catch_up`: the next call of `link` makes up
                for it. Until then the table's rows may be added to, but not dropped.

        Raises:
            StrategyError: the strategy's name is not right.
            PromptError: a chunk was made by another model.
            ModelError: the logits are not finite, with every row computed.
            CapacityError: the prompt's chunks are larger than the store's budget.
        """
        self.catch_up()
        strategy = parse(request.strategy)
        # Read once a link: it walks over all weights to see whether they are still the same.
        model = self.adapter.fingerprint
        foreign = next((chunk for _, chunk in request.prompt.chunk_segments if chunk.model != model), None)
        if foreign is not None:
            raise PromptError(
                f"chunk {foreign.id[:12]} was made by another model, or before the weights changed: add its media here"
            )
        prefixes = None if request.table is not None else self._prefixes(model)
        knowledge = self.policy_runtime.knowledge(model, partial(_find_prefix, prefixes))
        request, captured = self.policy_runtime.new_media.capture(replace(request, strategy=strategy), knowledge)
        parts = request.prompt.chunk_parts
        # Not those that a window wrote, nor those without rows.
        chunks = {part.chunk.id: part.chunk for part in parts if part.state is RowState.CANONICAL}
        bases = {part.changed.base.id: part.changed.base for part in parts if part.changed is not None}
        repairs = {part.repair_key: part.repair for part in parts if part.state is RowState.WRITTEN and part.repair}
        recaptured, answer = 0, None
        with self.store.lease({**bases, **chunks}) as lease:
            while answer is None:
                request = _without_lost(request, bases.keys() & set(lease.missing))
                recaptured += self._recapture(chunks, lease)
                context = LinkContext(knowledge, lease.rows, repairs)
                try:
                    answer = self._answer(request, strategy, context)
                except LoadError as error:
                    if error.piece not in lease.rows:
                        raise
                    lease.drop(error)
        seconds = perf_counter() - request.began
        usage = answer.usage(request.prompt, captured, recaptured, seconds, self._causes(request, answer.plan))
        prefill = Prefill(request.prompt, answer.plan, usage, answer.linked)
        self._unlearnt = request, prefill, context.knowledge
        if not learn_later:
            self.catch_up()
        return prefill

    def catch_up(self) -> None:
        """Learn from what was linked last, if that was put off; an exact prompt is kept as a prefix."""
        unlearnt, self._unlearnt = self._unlearnt, None
        if unlearnt is None:
            return
        request, prefill, knowledge = unlearnt
        prompt = request.prompt
        if request.table is None and prefill.plan.exact and not prompt.slid_rows and self._all_stored(request):
            rows = prefill.linked.table.gather(torch.arange(prompt.tokens))
            self._prefixes(knowledge.model).put(_segments(prompt), rows)
        learn(self.policy_runtime, request, prefill, knowledge)

    def forget_prompts(self) -> None:
        """Forget the kept prompts of this model and tenant."""
        self.catch_up()
        self._prefixes(self.adapter.fingerprint).clear()

    def _recapture(self, chunks: Mapping[str, Chunk], lease: Lease) -> int:
        """Prefill alone again what the store has lost; the encoder does not run. Return the rows that ran."""
        rows = 0
        for name in lease.missing:
            chunk = chunks.get(name)
            if chunk is not None and not isinstance(chunk.rows, tuple):
                lease.fill(chunk, self.adapter.capture(chunk.encoded))
                rows += chunk.tokens
        return rows

    def _answer(self, request: LinkRequest, strategy: Strategy, context: LinkContext) -> "_Answer":
        """Plan a prompt, form what is missing, and run it; where that gives no sure answer, compute it in full.

        Raises:
            ModelError: the logits are not finite where all rows are computed either.
        """
        table, runtime, answer = request.table, self.policy_runtime, _Answer()
        held = 0 if table is None else table.length
        unsure: tuple[LinkPlan, Tensor] | None = None
        while True:
            plan = self._plan(request, strategy, context, answer)
            job = LinkJob(plan, request.prompt, context.resources, request.reused_rows)
            linked = self.executor.run(job, table=table, reserve=request.reserve)
            finite = math.isfinite(float(linked.logits.max()))
            answer.take(plan, linked, finite=finite)
            sure = plan.least_margin is None or (answer.margin or 0.0) >= plan.least_margin
            # Logits of a trial that are not finite are what it measures.
            if (finite and sure) or (isinstance(strategy, Auto) and strategy.trial is not None and not finite):
                break
            if finite:
                unsure = plan, linked.logits
                why = f"computed in full: the two likeliest first tokens differed by {answer.margin:.2f} only"
                answer.whole = answer.whole or Cause(
                    MissReason.UNSURE, f"margin {answer.margin:.4g} of {plan.least_margin:.4g}"
                )
            elif plan.strategy == Full().name:
                raise ModelError(
                    "the model's logits are not finite, with every row computed: use another dtype or model"
                )
            else:
                why = "computed in full: the logits were not finite"
                answer.whole = Cause(MissReason.REFUSED, why)
                note_not_finite(runtime, context.knowledge.model, plan)
            answer.why, answer.repeated = answer.why or why, answer.repeated + linked.trace.computed
            strategy = Prefix() if finite and isinstance(strategy, Auto) else Full()
            if table is not None:
                table.truncate(held)
        if answer.margin is not None and not request.compared:
            own, logits = unsure or (plan, linked.logits)
            note_answer(runtime, context.knowledge.model, own, logits, linked.logits if unsure else None)
        return answer

    def _plan(self, request: LinkRequest, strategy: Strategy, context: LinkContext, answer: "_Answer") -> LinkPlan:
        """Plan a prompt, and form the patches that the plan asks for.

        What the executor cannot carry out is planned in full.
        """

        def planned() -> LinkPlan:
            plan = strategy.plan(request.prompt, context.knowledge)
            return plan if request.table is None else plan.after(request.reused_rows)

        plan = planned()
        refusal = self.executor.refusal(plan, request.prompt)
        if refusal is not None:
            strategy, answer.why = Full(), answer.why or refusal
            answer.whole = answer.whole or Cause(MissReason.REFUSED, refusal)
            plan = planned()
        if plan.forming:
            patches, answer.formed = form_missing(self.executor, request.prompt, plan, context)
            for key, patch in patches.items():
                self.store.put_artifact(key, patch)
            plan = planned()
        return plan

    def _causes(self, request: LinkRequest, plan: LinkPlan) -> dict[str, Cause]:
        """Return why the store has, or had, no rows of a prompt's chunks; of those alone for which that decides."""
        if request.compared:
            return {}
        causes = self._known.refine(request.prompt)
        parts = request.prompt.chunk_parts
        wanted = {part.chunk.id for part in parts if plan.decisions or part.state is RowState.MISSING}
        return {id: cause for id, cause in causes.items() if id in wanted}

    def _all_stored(self, request: LinkRequest) -> bool:
        """Return whether the prompt's chunks are in the store, or came with it and were not deleted meanwhile.

        A chunk that was deleted must not live on in a prefix.
        """
        chunks = [part for part in request.prompt.chunk_parts if part.name]
        inline = {part.name for part in chunks if request.inline_media and part.state is RowState.MISSING}
        if self.store.deleted(inline):
            return False
        return all(part.name in self.store for part in chunks if part.name not in inline)

    def _prefixes(self, model: str) -> PrefixStore:
        """Return the exact prefixes of the model as it is now; other weights, or a LoRA adapter, are another owner."""
        return self.store.prefixes(owner_id(model, self.adapter.dtype, self.store.salt))


def _without_lost(request: LinkRequest, lost: Collection[str]) -> LinkRequest:
    """Return a request in which no picture is compared with stored ones that are lost."""

    def kept(segment: PromptSegment, part: ChunkPart) -> ChunkPart:
        return replace(part, changed=None) if part.changed is not None and part.changed.base.id in lost else part

    return replace(request, prompt=request.prompt.map_chunks(kept)) if lost else request


@dataclass(slots=True)
class _Answer:
    """What came of a prompt's plans: of one, or of a second or third that computes more where the first gave no answer.

    Attributes:
        plan: the plan that was carried out in the end.
        linked: its result.
        formed: rows run to form patches.
        repeated, margin, finite: see `Usage`.
        why: why the plan is not the strategy asked for; None if it is.
        whole: the same as the cause of all that is computed.
    """

    plan: LinkPlan = field(init=False)
    linked: LinkedTable = field(init=False)
    formed: int = 0
    repeated: int = 0
    margin: float | None = None
    finite: bool = True
    why: str | None = None
    whole: Cause | None = None

    def take(self, plan: LinkPlan, linked: LinkedTable, *, finite: bool) -> None:
        """Take the result of one plan."""
        self.plan, self.linked = plan, linked
        self.repeated += linked.trace.repeated
        self.finite = self.finite and finite
        if finite and (plan.least_margin is not None or plan.recomputation is not None):
            self.margin = margin_of(linked.logits)

    def usage(
        self, prompt: Prompt, captured: int, recaptured: int, seconds: float, causes: Mapping[str, Cause]
    ) -> Usage:
        """Return what the answer cost: rows prefilled alone before, seconds to the first token, what lacked rows."""
        trace = self.linked.trace
        return Usage(
            lane=self.plan.strategy,
            prompt_tokens=trace.cached + trace.computed,
            cached_tokens=trace.cached,
            computed_tokens=trace.computed,
            patched_tokens=trace.patched,
            forming_tokens=self.formed,
            recaptured_tokens=recaptured,
            captured_tokens=captured,
            ttft_seconds=seconds,
            repeated_tokens=self.repeated,
            margin=self.margin,
            finite=self.finite,
            fallback=self.why or self.plan.remark,
            misses=find_misses(prompt, self.plan, self.whole, causes),
        )


def _segments(prompt: Prompt) -> list[Segment]:
    """Return a prompt's segments as the prefix store compares them."""
    found: list[Segment] = []
    for segment in prompt.segments:
        part = segment.part
        if isinstance(part, TextPart):
            found.append(TextSegment(part.token_ids))
        elif part.name:
            found.append(ChunkSegment(part.name, part.tokens, part.slid))
        else:
            found.append(TextSegment(tuple(part.chunk.encoded.token_ids.tolist())))
    return found


def _find_prefix(prefixes: PrefixStore | None, prompt: Prompt) -> PrefixMatch | None:
    """Return the longest kept prefix of a prompt; none without a store of them, as a table is continued."""
    found = None if prefixes is None else prefixes.longest(_segments(prompt), prompt.tokens - 1)
    return None if found is None else PrefixMatch(found[1].id, found[0], found[1].rows)

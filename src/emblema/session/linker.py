"""Linking: a request is planned, missing patches are formed, the plan is carried out, and its result is remembered."""

from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from time import perf_counter

from emblema.errors import LoadError, ModelError, PromptError
from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch
from emblema.link.context import LinkContext
from emblema.link.executor import Executor, LinkedTable
from emblema.link.forming import form_missing
from emblema.link.plan import LinkPlan
from emblema.link.policy.fidelity import first_token
from emblema.link.policy.policy import PolicyInputs
from emblema.link.prompt import Part, Prompt, RowState, TextPart
from emblema.link.second_pass import margin_of
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, PrefixMatch, Strategy
from emblema.link.strategies.full import Full
from emblema.link.strategies.prefix import Prefix
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
from emblema.session.newcomers import Newcomers
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.requests import LinkRequest, Prefill, Usage
from emblema.store.identity import owner_id
from emblema.store.keys import ArtifactKey, ArtifactKind
from emblema.store.leases import Lease
from emblema.store.prefixes import ChunkSegment, PrefixStore, Segment, TextSegment
from emblema.store.store import TenantStore


class Linker:
    """Links prompts on one model with what one tenant's store holds.

    Args:
        adapter: the model.
        store: the tenant's store.
        policy_runtime: learns from what is linked; without one `auto` takes only patches that others formed.
    """

    def __init__(self, adapter: Adapter, store: TenantStore, policy_runtime: PolicyRuntime | None = None) -> None:
        self.adapter, self.store, self.policy_runtime = adapter, store, policy_runtime
        self.executor = Executor(adapter)
        self._newcomers = None if policy_runtime is None else Newcomers(adapter, store, policy_runtime)
        # Keys of the patches formed last; their directions are what `basis-M` pools.
        self._pool: deque[ArtifactKey] = deque(maxlen=256)
        # What was linked last and is to be learnt from after its answer.
        self._unlearnt: _Linked | None = None

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
        with nullcontext() if self.policy_runtime is None else self.policy_runtime.answering(model):
            linked = self._linked(request, strategy, model)
        self._unlearnt = linked
        if not learn_later:
            self.catch_up()
        return linked.prefill

    def _linked(self, request: LinkRequest, strategy: Strategy, model: str) -> "_Linked":
        """Link a prompt, again where rows did not come."""
        _refuse_foreign(request.prompt, model)
        captured = 0
        if self._newcomers is not None:
            prefix = _find_prefix(self._prefixes(model), request.prompt)
            exact = 0 if prefix is None else prefix.rows
            request, captured = self._newcomers.place(request, strategy, model, exact)
        chunks = _canonical_chunks(request.prompt)
        recaptured = 0
        with self.store.lease(chunks) as lease:
            while True:
                recaptured += self._recapture(chunks, lease)
                try:
                    context = self._context(request, model, lease.rows)
                    prefill = self._link(request, strategy, context, recaptured)
                    prefill = replace(prefill, usage=replace(prefill.usage, captured_tokens=captured))
                    return _Linked(replace(request, strategy=strategy), prefill, context)
                except LoadError as error:
                    if error.piece not in lease.rows:
                        raise
                    lease.drop(error)

    def catch_up(self) -> None:
        """Learn from what was linked last, if that was put off, and keep it as a prefix."""
        linked, self._unlearnt = self._unlearnt, None
        if linked is not None:
            self._keep_prefix(linked.request, linked.prefill, linked.context)
            if self.policy_runtime is not None:
                self.policy_runtime.learn(linked.request, linked.prefill, linked.context.knowledge)

    def forget_prompts(self) -> None:
        """Forget the kept prompts of this model and tenant."""
        self.catch_up()
        self._prefixes(self.adapter.fingerprint).clear()

    def _recapture(self, chunks: Mapping[str, Chunk], lease: Lease) -> int:
        """Prefill alone again what the store has lost; the encoder does not run. Return the rows that ran."""
        rows = 0
        for name in lease.missing:
            chunk = chunks[name]
            if not isinstance(chunk.rows, tuple):
                lease.fill(chunk, self.adapter.capture(chunk.encoded))
                rows += chunk.tokens
        return rows

    def _context(self, request: LinkRequest, model: str, rows: Mapping[str, KVRows]) -> LinkContext:
        """Return the look-ups of one link; a prompt that continues a table takes no kept prefix."""
        prefixes = None if request.table is not None else self._prefixes(model)
        stored = Knowledge(
            model,
            self.adapter.layouts,
            lambda key: self._find_artifact(key, model),
            lambda prompt: _find_prefix(prefixes, prompt),
            artifact_keys=self.store.artifact_keys,
            policy_inputs=PolicyInputs() if self.policy_runtime is None else self.policy_runtime.policy_inputs(model),
            second_pass=True,
        )
        context = LinkContext(stored, rows, self._pool)
        context.add(_repairs(request.prompt))
        return context

    def _find_artifact(self, key: ArtifactKey, model: str) -> Artifact | None:
        """Return a stored artifact, or a patch that the memory of pairs puts together."""
        if key.kind is ArtifactKind.PAIRS:
            return None if self.policy_runtime is None else self.policy_runtime.pairs(model).find(key)
        return self.store.find_artifact(key)

    def _link(self, request: LinkRequest, strategy: Strategy, context: LinkContext, recaptured: int) -> Prefill:
        """Plan, form what is missing and plan again, and execute.

        A plan that the executor cannot carry out falls back to `full`.
        """
        plan = _plan(strategy, request, context)
        refusal = self.executor.refusal(plan)
        if refusal is not None:
            strategy = Full()
            plan = _plan(strategy, request, context)
        formed_rows = 0
        if plan.forming:
            artifacts, formed_rows = form_missing(self.executor, request.prompt, plan, context)
            self._keep_artifacts(artifacts)
            plan = _plan(strategy, request, context)
        outcome = self._executed(plan, strategy, request, context)
        plan, linked, trace = outcome.plan, outcome.linked, outcome.linked.trace
        usage = Usage(
            lane=plan.strategy,
            prompt_tokens=trace.cached + trace.computed,
            cached_tokens=trace.cached,
            computed_tokens=trace.computed,
            patched_tokens=trace.patched,
            forming_tokens=formed_rows,
            recaptured_tokens=recaptured,
            ttft_seconds=perf_counter() - request.began,
            repeated_tokens=outcome.repeated,
            margin=outcome.margin,
            finite=outcome.finite,
            fallback=refusal or outcome.again or plan.remark,
        )
        return Prefill(request.prompt, plan, usage, linked)

    def _executed(self, plan: LinkPlan, strategy: Strategy, request: LinkRequest, context: LinkContext) -> "_Outcome":
        """Carry a plan out; where its logits are not finite or its second pass is not sure, compute in full instead.

        Raises:
            ModelError: the logits are not finite where all rows are computed either.
        """
        held = 0 if request.table is None else request.table.length
        model, trial = context.knowledge.model, isinstance(strategy, Auto) and strategy.trial is not None
        linked = self._run(plan, request, context)
        first = _Outcome(plan, linked, linked.trace.repeated)
        finite = first_token(linked.logits.cpu().numpy()) >= 0
        if finite and plan.recomputation is not None:
            first = replace(first, margin=margin_of(linked.logits))
        sure = plan.recomputation is None or (first.margin or 0.0) >= plan.recomputation.least_margin
        if finite and sure:
            self._note_margin(model, first, None)
            return first
        if not finite and trial:
            # What the canary measures.
            return first
        if not finite and isinstance(strategy, Full):
            raise ModelError("the model's logits are not finite, with every row computed: use another dtype or model")
        if request.table is not None:
            request.table.truncate(held)
        exact = Prefix() if finite and isinstance(strategy, Auto) and not trial else Full()
        whole = self._executed(_plan(exact, request, context), exact, request, context)
        if finite:
            self._note_margin(model, first, int(linked.logits.argmax()) == int(whole.linked.logits.argmax()))
            again = f"computed in full: the two likeliest first tokens differed by {first.margin:.2f} only"
        else:
            again = "computed in full: the logits were not finite"
            if self.policy_runtime is not None:
                self.policy_runtime.note_not_finite(model, request, plan)
        repeated = first.repeated + linked.trace.computed + whole.repeated
        return replace(whole, repeated=repeated, margin=first.margin, finite=finite and whole.finite, again=again)

    def _note_margin(self, model: str, outcome: "_Outcome", agrees: bool | None) -> None:
        if self.policy_runtime is not None and outcome.margin is not None:
            self.policy_runtime.note_margin(model, outcome.plan, outcome.margin, agrees)

    def _run(self, plan: LinkPlan, request: LinkRequest, context: LinkContext) -> LinkedTable:
        runtime = self.policy_runtime
        sample = None if runtime is None else runtime.sample(request, plan, context.knowledge)
        job = LinkJob(plan, request.prompt, context.resources, request.reused_rows, sample)
        linked = self.executor.run(job, table=request.table, reserve=request.reserve)
        if runtime is not None and linked.shares is not None:
            runtime.pairs(context.knowledge.model).budget.spend(linked.shares.seconds)
        return linked

    def _keep_artifacts(self, artifacts: Mapping[ArtifactKey, Artifact]) -> None:
        for key, artifact in artifacts.items():
            kept = self.store.put_artifact(key, artifact)
            if kept and key.kind is ArtifactKind.PATCH and key not in self._pool:
                self._pool.append(key)

    def _keep_prefix(self, request: LinkRequest, prefill: Prefill, context: LinkContext) -> None:
        """Keep an exact prompt as a prefix; a chunk deleted meanwhile must not live on in it."""
        prompt = request.prompt
        if request.table is None and prefill.plan.exact and not prompt.slid_rows and self._all_held(request):
            prefixes = self._prefixes(context.knowledge.model)
            prefixes.put(_segments(prompt), _copied(prefill.linked, prompt.tokens))

    def _all_held(self, request: LinkRequest) -> bool:
        """Return whether the prompt's chunks are in the store, or came with it and were not deleted meanwhile."""
        chunks = [part for part in request.prompt.chunk_parts if part.name]
        inline = {part.name for part in chunks if request.inline_media and part.state is RowState.MISSING}
        if self.store.deleted(inline):
            return False
        return all(part.name in self.store for part in chunks if part.name not in inline)

    def _prefixes(self, model: str) -> PrefixStore:
        """Return the exact prefixes of the model as it is now; other weights, or a LoRA adapter, are another owner."""
        return self.store.prefixes(owner_id(model, self.adapter.dtype, self.store.salt))


@dataclass(frozen=True, slots=True)
class _Linked:
    """A request that was linked: its strategy as it was parsed, the result, and what it was planned with."""

    request: LinkRequest
    prefill: Prefill
    context: LinkContext


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a plan.

    Attributes:
        plan: the plan that was carried out in the end.
        linked: its result.
        repeated, margin, finite: see `Usage`.
        again: why the prompt was computed in full after all.
    """

    plan: LinkPlan
    linked: LinkedTable
    repeated: int = 0
    margin: float | None = None
    finite: bool = True
    again: str | None = None


def _segments(prompt: Prompt) -> list[Segment]:
    """Return a prompt's segments as the prefix store compares them."""
    return [
        TextSegment(_text(segment.part))
        if isinstance(segment.part, TextPart) or not segment.part.name
        else ChunkSegment(segment.part.name, segment.part.tokens, segment.part.slid)
        for segment in prompt.segments
    ]


def _refuse_foreign(prompt: Prompt, model: str) -> None:
    for _, chunk in prompt.chunk_segments:
        if chunk.model != model:
            raise PromptError(
                f"chunk {chunk.id[:12]} was made by another model, or before the weights changed: add its media here"
            )


def _canonical_chunks(prompt: Prompt) -> dict[str, Chunk]:
    """Return the chunks whose rows are the store's, by id: not those that a window wrote, nor those without rows."""
    return {part.chunk.id: part.chunk for part in prompt.chunk_parts if part.state is RowState.CANONICAL}


def _plan(strategy: Strategy, request: LinkRequest, context: LinkContext) -> LinkPlan:
    plan = strategy.plan(request.prompt, context.knowledge)
    return plan if request.table is None else plan.after(request.reused_rows)


def _repairs(prompt: Prompt) -> dict[ArtifactKey, Patch]:
    """Return the patches that a window adds to rows that it wrote."""
    return {
        part.repair_key: part.repair
        for part in prompt.chunk_parts
        if part.state is RowState.WRITTEN and part.repair is not None
    }


def _find_prefix(prefixes: PrefixStore | None, prompt: Prompt) -> PrefixMatch | None:
    found = None if prefixes is None else prefixes.longest(_segments(prompt), prompt.tokens - 1)
    if found is None:
        return None
    rows, prefix = found
    return PrefixMatch(prefix.id, rows, prefix.rows)


def _text(part: Part) -> tuple[int, ...]:
    return part.token_ids if isinstance(part, TextPart) else tuple(part.chunk.encoded.token_ids.tolist())


def _copied(linked: LinkedTable, rows: int) -> KVRows:
    layers = (linked.table.read(layer, 0, rows) for layer in range(len(linked.table.layouts)))
    return tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in layers)

"""Linking: a request is planned, missing patches are formed, the plan is carried out, and its result is remembered."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

from torch import Tensor

from emblema.errors import LoadError, ModelError, PromptError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch
from emblema.link.context import LinkContext
from emblema.link.executor import Executor, LinkedTable
from emblema.link.forming import form_missing
from emblema.link.plan import LinkPlan
from emblema.link.policy.fidelity import first_token
from emblema.link.prompt import Part, Prompt, RowState, TextPart
from emblema.link.second_pass import margin_of
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Knowledge, PrefixMatch, Strategy
from emblema.link.strategies.full import Full
from emblema.link.strategies.prefix import Prefix
from emblema.link.strategies.registry import parse
from emblema.link.taken_rows import LinkJob
from emblema.models.adapter import Adapter
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
        policy_runtime: learns from what is linked; without one `auto` takes only patches that others formed.
    """

    def __init__(self, adapter: Adapter, store: TenantStore, policy_runtime: PolicyRuntime | None = None) -> None:
        self.adapter, self.store, self.policy_runtime = adapter, store, policy_runtime
        self.executor = Executor(adapter)
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
        request = replace(request, strategy=parse(request.strategy))
        # Read once a link: it walks over all weights to see whether they are still the same.
        model, captured, recaptured = self.adapter.fingerprint, 0, 0
        _refuse_foreign(request.prompt, model)
        knowledge = self._knowledge(request, model)
        if self.policy_runtime is not None:
            request, captured = self.policy_runtime.new_media.capture(request, knowledge)
        chunks = _canonical_chunks(request.prompt)
        with self.store.lease(chunks) as lease:
            while True:
                recaptured += self._recapture(chunks, lease)
                context = LinkContext(knowledge, lease.rows)
                context.add(_repairs(request.prompt))
                try:
                    answer = self._answer(request, context)
                    break
                except LoadError as error:
                    if error.piece not in lease.rows:
                        raise
                    lease.drop(error)
        usage = answer.usage(captured, recaptured, perf_counter() - request.began)
        prefill = Prefill(request.prompt, answer.plan, usage, answer.linked)
        self._unlearnt = request, prefill, context.knowledge
        if not learn_later:
            self.catch_up()
        return prefill

    def catch_up(self) -> None:
        """Learn from what was linked last, if that was put off, and keep it as a prefix."""
        unlearnt, self._unlearnt = self._unlearnt, None
        if unlearnt is not None:
            request, prefill, knowledge = unlearnt
            self._keep_prefix(request, prefill, knowledge.model)
            if self.policy_runtime is not None:
                self.policy_runtime.learn(request, prefill, knowledge)

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

    def _knowledge(self, request: LinkRequest, model: str) -> Knowledge:
        """Return the look-ups of one link; a prompt that continues a table takes no kept prefix."""
        prefixes = None if request.table is not None else self._prefixes(model)
        stored = Knowledge(
            model,
            self.adapter.layouts,
            self.store.find_patch,
            lambda prompt: _find_prefix(prefixes, prompt),
            artifact_keys=self.store.artifact_keys,
            second_pass=True,
            anchor=self.adapter.anchor,
        )
        runtime = self.policy_runtime
        if runtime is None:
            return stored
        return replace(
            stored,
            policy=runtime.policy,
            measured=runtime.measured(model),
            costs=runtime.costs(model),
            recurs=runtime.recurs,
        )

    def _answer(self, request: LinkRequest, context: LinkContext) -> "_Answer":
        """Plan a prompt, form what is missing, and run it; where that gives no sure answer, compute it in full.

        A plan that the executor cannot carry out falls back to `full`.

        Raises:
            ModelError: the logits are not finite where all rows are computed either.
        """
        strategy, table = parse(request.strategy), request.table
        held, answer = 0 if table is None else table.length, _Answer()
        unsure: tuple[LinkPlan, Tensor] | None = None
        while True:
            plan = _plan(strategy, request, context)
            refusal = self.executor.refusal(plan)
            if refusal is not None:
                strategy, answer.why = Full(), answer.why or refusal
                plan = _plan(strategy, request, context)
            if plan.forming:
                patches, answer.formed = form_missing(self.executor, request.prompt, plan, context)
                for key, patch in patches.items():
                    self.store.put_artifact(key, patch)
                plan = _plan(strategy, request, context)
            job = LinkJob(plan, request.prompt, context.resources, request.reused_rows)
            linked = self.executor.run(job, table=table, reserve=request.reserve)
            answer.plan, answer.linked = plan, linked
            answer.repeated += linked.trace.repeated
            finite = first_token(linked.logits.cpu().numpy()) >= 0
            answer.finite = answer.finite and finite
            if finite and (plan.least_margin is not None or plan.recomputation is not None):
                answer.margin = margin_of(linked.logits)
            if finite and (plan.least_margin is None or (answer.margin or 0.0) >= plan.least_margin):
                break
            if not finite and isinstance(strategy, Auto) and strategy.trial is not None:
                # What the check measures.
                return answer
            if not finite and isinstance(strategy, Full):
                raise ModelError(
                    "the model's logits are not finite, with every row computed: use another dtype or model"
                )
            if finite:
                unsure = plan, linked.logits
                why = f"computed in full: the two likeliest first tokens differed by {answer.margin:.2f} only"
            else:
                why = "computed in full: the logits were not finite"
                if self.policy_runtime is not None:
                    self.policy_runtime.note_not_finite(context.knowledge.model, request, plan)
            answer.why, answer.repeated = answer.why or why, answer.repeated + linked.trace.computed
            strategy = Prefix() if finite and isinstance(strategy, Auto) else Full()
            if table is not None:
                table.truncate(held)
        if self.policy_runtime is not None and answer.margin is not None:
            own, full = (unsure, answer.linked.logits) if unsure else ((answer.plan, answer.linked.logits), None)
            self.policy_runtime.note_answer(request, *own, full)
        return answer

    def _keep_prefix(self, request: LinkRequest, prefill: Prefill, model: str) -> None:
        """Keep an exact prompt as a prefix; a chunk deleted meanwhile must not live on in it."""
        prompt = request.prompt
        if request.table is None and prefill.plan.exact and not prompt.slid_rows and self._all_held(request):
            prefixes = self._prefixes(model)
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


@dataclass(slots=True)
class _Answer:
    """What came of a prompt's plans: of one, or of a second or third that computes more where the first gave no answer.

    Attributes:
        plan: the plan that was carried out in the end.
        linked: its result.
        formed: rows run to form patches.
        repeated, margin, finite: see `Usage`.
        why: why the plan is not the strategy asked for; None if it is.
    """

    plan: LinkPlan = field(init=False)
    linked: LinkedTable = field(init=False)
    formed: int = 0
    repeated: int = 0
    margin: float | None = None
    finite: bool = True
    why: str | None = None

    def usage(self, captured: int, recaptured: int, seconds: float) -> Usage:
        """Return what the answer cost, with the rows prefilled alone before, and the seconds to the first token."""
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
        )


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

"""From a prompt and a strategy's name to a linked table: plan, form what is missing, plan again, execute, remember."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from emblema.engine.upkeep.upkeep import PolicyRuntime
from emblema.errors import LoadError, PromptError
from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch
from emblema.link.executor import Executor, LinkedTable
from emblema.link.findings import LinkContext
from emblema.link.forming import form_missing
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Part, Prompt, RowState, TextPart
from emblema.link.strategies.base import PrefixMatch, Strategy
from emblema.link.strategies.full import Full
from emblema.link.strategies.registry import parse
from emblema.models.adapter import Adapter
from emblema.store.identity import owner_id
from emblema.store.keys import ArtifactKind, PatchKey
from emblema.store.leases import Lease
from emblema.store.prefixes import ChunkSegment, PrefixStore, Segment, TextSegment
from emblema.store.tenant import TenantStore


@dataclass(frozen=True, slots=True)
class LinkResult:
    """A linked prompt.

    Attributes:
        plan: the plan that was carried out.
        linked: what came of it.
        forming: rows run to form patches.
        recaptured: rows of chunks whose stored KV could not be had, prefilled alone again.
        fallback: why the plan is not what was asked for; None if it is.
    """

    plan: LinkPlan
    linked: LinkedTable
    forming: int
    recaptured: int
    fallback: str | None


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table under way, that answers for the first `rows` rows of a continued prompt."""

    linked: LinkedTable
    rows: int


class Linker:
    """Links prompts on one adapter with what one tenant's view of a store knows.

    Args:
        adapter: the model.
        view: the tenant's door to the store.
        upkeep: learns from what is linked; without one `auto` takes only patches that others formed.
    """

    def __init__(self, adapter: Adapter, view: TenantStore, upkeep: PolicyRuntime | None = None) -> None:
        self.adapter, self.view, self.upkeep = adapter, view, upkeep
        self.executor = Executor(adapter)
        # Keys of the patches formed last; their directions are what `basis-M` pools.
        self._pool: deque[PatchKey] = deque(maxlen=256)

    def link(
        self,
        prompt: Prompt,
        strategy: str | Strategy,
        reserve: int = 0,
        live: LiveTable | None = None,
        *,
        inline_media: bool = False,
    ) -> LinkResult:
        """Carry a strategy out on a prompt, with room for `reserve` more rows, or go on with a table under way.

        The prompt's chunks are leased to the end. Those on a slower tier load layer by layer while lost ones are
        prefilled again and the forward runs; a load that fails drops the forward, and it is planned again without it. A
        plan that the executor cannot carry out falls back to `full`. Patches that the plan lacks are formed by one
        conditioned forward, stored, and the plan is made again.

        Args:
            inline_media: whether parts without rows came with the prompt, to be made into chunks if they come again; a
                window's are its own.

        Raises:
            StrategyError: the strategy's name is not right.
            PromptError: a chunk was made by another model.
            CapacityError: the prompt's chunks are larger than the store's budget.
        """
        chosen = parse(strategy)
        # Read once a link: it walks over all weights to see whether they are still the same.
        model = self.adapter.fingerprint
        strange = next((chunk for _, chunk in prompt.chunk_segments if chunk.model != model), None)
        if strange is not None:
            raise PromptError(
                f"chunk {strange.id[:12]} was made by another model, or before the weights changed: add its media here"
            )
        recaptured = 0
        # Rows that a window wrote are its own; those that are to be computed are nowhere yet.
        chunks = {part.chunk.id: part.chunk for part in prompt.chunk_parts if part.state is RowState.CANONICAL}
        with self.view.lease(chunks) as lease:
            while True:
                recaptured += self._recapture(chunks, lease)
                try:
                    outcome = self._link(prompt, chosen, model, lease.rows, reserve, live, inline_media)
                    return replace(outcome, recaptured=recaptured)
                except LoadError as error:
                    if error.piece not in lease.rows:
                        raise
                    lease.drop(error)

    def _recapture(self, chunks: Mapping[str, Chunk], lease: Lease) -> int:
        """Prefill alone, once more, what the store has lost; the encoder does not run. Returns the rows that ran."""
        rows = 0
        for name in lease.missing:
            chunk = chunks[name]
            if not isinstance(chunk.rows, tuple):
                lease.fill(chunk, self.adapter.capture(chunk.encoded))
                rows += chunk.tokens
        return rows

    def _link(
        self,
        prompt: Prompt,
        chosen: Strategy,
        model: str,
        rows: Mapping[str, KVRows],
        reserve: int,
        live: LiveTable | None,
        inline_media: bool,
    ) -> LinkResult:
        prefixes = self._prefixes(model)
        find_prefix = None if live is not None else prefixes
        findings = LinkContext(
            model,
            self.adapter.layouts,
            self.view.find_artifact,
            lambda one: _find_prefix(find_prefix, one),
            rows,
            self._pool,
            self.view.patch_keys,
            None if self.upkeep is None else self.upkeep.policy_inputs(model),
        )
        findings.add(_repairs(prompt))
        plan = _plan(chosen, prompt, findings, live)
        fallback = self.executor.refusal(plan)
        if fallback is not None:
            chosen = Full()
            plan = _plan(chosen, prompt, findings, live)
        forming = 0
        if plan.forming:
            forming = self._form(plan, prompt, findings)
            plan = _plan(chosen, prompt, findings, live)
        if live is None:
            linked = self.executor.run(plan, prompt, findings.resources, reserve)
        else:
            linked = self.executor.run(plan, prompt, findings.resources, table=live.linked.table, reused_rows=live.rows)
        # A chunk deleted meanwhile must not live on in a kept prefix.
        if live is None and plan.exact and not prompt.slid_rows and self._all_held(prompt, inline_media):
            prefixes.put(segments_of(prompt), _copied(linked, prompt.tokens))
        if self.upkeep is not None:
            reused_rows = 0 if live is None else live.rows
            self.upkeep.linked(prompt, plan, linked, findings.knowledge, chosen, reused_rows, inline_media)
        return LinkResult(plan, linked, forming, 0, fallback or plan.remark)

    def _all_held(self, prompt: Prompt, inline_media: bool) -> bool:
        """Whether the prompt's chunks are in the store, or came with it and were not deleted meanwhile."""
        chunks = [part for part in prompt.chunk_parts if part.name]
        own = {part.name for part in chunks if inline_media and part.state is RowState.MISSING}
        return not self.view.deleted(own) and all(part.name in self.view for part in chunks if part.name not in own)

    def _form(self, plan: LinkPlan, prompt: Prompt, findings: LinkContext) -> int:
        def keep(key: PatchKey, artifact: Artifact) -> None:
            kept = self.view.put_patch(key, artifact)
            if kept and key.kind is ArtifactKind.PATCH and key not in self._pool:
                self._pool.append(key)

        return form_missing(self.executor, prompt, plan, findings, keep)

    def _prefixes(self, model: str) -> PrefixStore:
        """Exact prefixes of the model as it is now; other weights, or an adapter switched on, are another owner."""
        return self.view.prefixes(owner_id(model, self.adapter.dtype, self.view.salt))

    def idle(self) -> None:
        """Do what waits for a moment in which nobody waits for an answer: the canary's comparison, if one is due."""
        if self.upkeep is not None and self.upkeep.waiting:
            self.upkeep.idle(self._again)

    def _again(self, prompt: Prompt, strategy: Strategy) -> tuple[LinkPlan, LinkedTable]:
        outcome = self.link(prompt, strategy)
        return outcome.plan, outcome.linked

    def forget_prompts(self) -> None:
        """Forget the kept prompts of this model and tenant."""
        self._prefixes(self.adapter.fingerprint).clear()


def _plan(chosen: Strategy, prompt: Prompt, findings: LinkContext, live: LiveTable | None) -> LinkPlan:
    plan = chosen.plan(prompt, findings.knowledge)
    return plan if live is None else plan.after(live.rows)


def _repairs(prompt: Prompt) -> dict[PatchKey, Patch]:
    """What a window adds to rows that it wrote."""
    return {
        part.repair_key: part.repair
        for part in prompt.chunk_parts
        if part.state is RowState.WRITTEN and part.repair is not None
    }


def _find_prefix(prefixes: PrefixStore | None, prompt: Prompt) -> tuple[PrefixMatch, KVRows] | None:
    found = None if prefixes is None else prefixes.longest(segments_of(prompt), prompt.tokens - 1)
    if found is None:
        return None
    return PrefixMatch(found.entry.id, found.rows), found.entry.rows


def segments_of(prompt: Prompt) -> list[Segment]:
    """A prompt as the prefix store compares it."""
    return [
        TextSegment(_text(segment.part))
        if isinstance(segment.part, TextPart) or not segment.part.name
        else ChunkSegment(segment.part.name, segment.part.tokens, segment.part.slid)
        for segment in prompt.segments
    ]


def _text(part: Part) -> tuple[int, ...]:
    return part.token_ids if isinstance(part, TextPart) else tuple(part.chunk.encoded.token_ids.tolist())


def _copied(linked: LinkedTable, rows: int) -> KVRows:
    layers = (linked.table.read(layer, 0, rows) for layer in range(len(linked.table.layouts)))
    return tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in layers)

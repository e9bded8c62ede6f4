"""From a prompt and a strategy's name to a linked table: plan, form what is missing, plan again, execute, remember."""

from collections import deque
from dataclasses import dataclass

from emblema.errors import PromptError
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Patch
from emblema.link.executor import Executor, Linked
from emblema.link.findings import Findings
from emblema.link.forming import form_missing
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, TextPart
from emblema.link.strategies.base import PrefixMatch, Strategy
from emblema.link.strategies.full import Full
from emblema.link.strategies.registry import parse
from emblema.models.adapter import Adapter
from emblema.store.identity import owner_id
from emblema.store.keys import PatchKey
from emblema.store.memory import MemoryStore
from emblema.store.prefixes import ChunkSegment, PrefixStore, Segment, TextSegment


@dataclass(frozen=True, slots=True)
class Outcome:
    """A linked prompt with its plan, the rows run to form patches, and why another plan was taken, if one was."""

    plan: LinkPlan
    linked: Linked
    forming: int
    fallback: str | None


class Linker:
    """Links prompts on one adapter with what one store knows, for one tenant."""

    def __init__(self, adapter: Adapter, store: MemoryStore, salt: bytes) -> None:
        self.adapter, self.store, self.salt = adapter, store, salt
        self.executor = Executor(adapter)
        # Keys of the patches formed last; their directions are what `basis-M` pools.
        self._pool: deque[PatchKey] = deque(maxlen=256)

    def link(self, prompt: Prompt, strategy: str | Strategy, reserve: int = 0) -> Outcome:
        """Carry a strategy out on a prompt, with room for `reserve` more rows.

        A plan that the executor cannot carry out falls back to `full`. Patches that the plan lacks are formed by one
        conditioned forward, stored, and the plan is made again.

        Raises:
            StrategyError: the strategy's name is not right.
            PromptError: a chunk was made by another model.
        """
        chosen = parse(strategy)
        # Read once a link: it walks over all weights to see whether they are still the same.
        model = self.adapter.fingerprint
        strange = next((chunk for _, chunk in prompt.chunk_segments if chunk.model != model), None)
        if strange is not None:
            raise PromptError(
                f"chunk {strange.id[:12]} was made by another model, or before the weights changed: add its media here"
            )
        prefixes = self._prefixes(model)
        findings = Findings(
            model, self.adapter.layouts, self.store.find_patch, lambda one: _find_prefix(prefixes, one), {}, self._pool
        )
        plan = chosen.plan(prompt, findings.knowledge)
        fallback = self.executor.refusal(plan)
        if fallback is not None:
            chosen = Full()
            plan = chosen.plan(prompt, findings.knowledge)
        forming = 0
        if plan.forming:
            forming = self._form(plan, prompt, findings)
            plan = chosen.plan(prompt, findings.knowledge)
        linked = self.executor.run(plan, prompt, findings.resources, reserve)
        # A chunk deleted meanwhile must not live on in a kept prefix.
        if plan.exact and not prompt.slid_rows and all(chunk.id in self.store for _, chunk in prompt.chunk_segments):
            prefixes.put(segments_of(prompt), _copied(linked, prompt.tokens))
        return Outcome(plan, linked, forming, fallback or plan.remark)

    def _form(self, plan: LinkPlan, prompt: Prompt, findings: Findings) -> int:
        def keep(key: PatchKey, patch: Patch) -> None:
            if self.store.put_patch(key, patch) and not key.kind and not key.orbit and key not in self._pool:
                self._pool.append(key)

        return form_missing(self.executor, prompt, plan, findings, keep)

    def _prefixes(self, model: str) -> PrefixStore:
        """Exact prefixes of the model as it is now; other weights, or an adapter switched on, are another owner."""
        return self.store.prefixes(owner_id(model, self.adapter.dtype, self.salt))

    def forget_prompts(self) -> None:
        """Forget the kept prompts of this model and tenant."""
        self._prefixes(self.adapter.fingerprint).clear()


def _find_prefix(prefixes: PrefixStore, prompt: Prompt) -> tuple[PrefixMatch, KVRows] | None:
    found = prefixes.longest(segments_of(prompt), prompt.tokens - 1)
    if found is None:
        return None
    return PrefixMatch(found.entry.id, found.rows), found.entry.rows


def segments_of(prompt: Prompt) -> list[Segment]:
    """A prompt as the prefix store compares it."""
    return [
        TextSegment(segment.part.token_ids)
        if isinstance(segment.part, TextPart)
        else ChunkSegment(segment.part.chunk.id, segment.part.tokens, segment.part.slid)
        for segment in prompt.segments
    ]


def _copied(linked: Linked, rows: int) -> KVRows:
    layers = (linked.table.read(layer, 0, rows) for layer in range(len(linked.table.layouts)))
    return tuple(LayerRows(layer.keys.clone(), layer.values.clone()) for layer in layers)

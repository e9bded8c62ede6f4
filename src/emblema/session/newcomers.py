"""New media of a conversation that goes on without its beginning: prefilled alone before the prompt is linked."""

from collections.abc import Mapping
from dataclasses import replace

from emblema.errors import CapacityError
from emblema.kv.chunk import Chunk
from emblema.link.policy.policy import Lane
from emblema.link.prompt import ChunkPart, Prompt, RowState
from emblema.link.strategies.auto import Auto, second_pass_pays
from emblema.link.strategies.base import Strategy
from emblema.models.adapter import Adapter
from emblema.session.policy_runtime import PolicyRuntime
from emblema.session.requests import LinkRequest
from emblema.store.store import TenantStore


class Newcomers:
    """Prefills alone the new media of a prompt most of whose media are known, and keeps them.

    What is new in such a prompt will come again, and is served as the others are. Where an exact prefix holds the
    others, it is computed after them instead.

    Args:
        adapter: the model.
        store: the tenant's store.
        runtime: says which lanes are trusted and what they cost.
    """

    def __init__(self, adapter: Adapter, store: TenantStore, runtime: PolicyRuntime) -> None:
        self.adapter, self.store, self.runtime = adapter, store, runtime

    def place(self, request: LinkRequest, strategy: Strategy, model: str, exact_rows: int) -> tuple[LinkRequest, int]:
        """Return a request with the rows of its new media, and how many rows ran for that.

        Args:
            request: what is asked.
            strategy: how it will be planned; only `auto` serves newcomers so.
            model: the model's fingerprint.
            exact_rows: rows at the front that an exact prefix holds.
        """
        if not isinstance(strategy, Auto) or strategy.trial is not None or not request.inline_media:
            return request, 0
        new = self._worth_capturing(request.prompt, strategy, model, exact_rows)
        captured = {id: replace(chunk, rows=self.adapter.capture(chunk.encoded)) for id, chunk in new.items()}
        kept = {id: chunk for id, chunk in captured.items() if self._keep(chunk)}
        rows = sum(chunk.tokens for chunk in new.values())
        return (replace(request, prompt=_with_rows(request.prompt, kept)) if kept else request), rows

    def _worth_capturing(self, prompt: Prompt, strategy: Auto, model: str, exact_rows: int) -> dict[str, Chunk]:
        """Return the new media by id, where others are the most and a second pass over all of them pays."""
        policy = strategy.policy or self.runtime.policy
        if policy.query_share == 0 or not policy.forming:
            return {}
        rest = (segment.part for segment in prompt.segments if segment.start >= exact_rows)
        parts = [part for part in rest if isinstance(part, ChunkPart)]
        new = {part.chunk.id: part.chunk for part in parts if part.state is RowState.MISSING and part.name}
        known = sum(part.tokens for part in parts if part.state is RowState.CANONICAL and not part.slid)
        if not 0 < sum(chunk.tokens for chunk in new.values()) <= known:
            return {}
        if not all(self.runtime.trusts(chunk.kind, Lane.QUERY, policy) for chunk in new.values()):
            return {}
        # What came before would be prefilled alone after this answer in any case.
        unseen = sum(chunk.tokens for id, chunk in new.items() if not self.runtime.has_seen(id))
        shares = [(part.tokens, policy.query_share) for part in parts if part.name and not part.slid]
        return new if second_pass_pays(prompt, shares, self.runtime.policy_inputs(model), unseen) else {}

    def _keep(self, chunk: Chunk) -> bool:
        """Keep a chunk; return whether the store has it now."""
        try:
            return self.store.put_unless_deleted(chunk)
        except CapacityError:
            return False


def _with_rows(prompt: Prompt, kept: Mapping[str, Chunk]) -> Prompt:
    """Return the prompt with chunks by id in place of the parts that had no rows."""
    segments = (
        replace(segment, part=replace(segment.part, chunk=kept[segment.part.chunk.id], state=RowState.CANONICAL))
        if isinstance(segment.part, ChunkPart) and segment.part.chunk.id in kept
        else segment
        for segment in prompt.segments
    )
    return Prompt(tuple(segments), prompt.axes, prompt.next_position)

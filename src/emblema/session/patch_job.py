"""Patches from rows that a request computed in context anyway: which rows are copied, and the algebra.

Kamera forms a patch by one conditioned forward; here that forward is a request's own, so the patch costs no rows.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows, kv_bytes
from emblema.kv.patch import Patch, compose, deficit, form_patch, remaining
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.executor import LinkedTable
from emblema.link.policy.choosing import rank_of
from emblema.link.policy.policy import Decision, Lane, Policy
from emblema.link.prompt import ChunkPart, RowState, Segment
from emblema.link.strategies.base import Knowledge
from emblema.models.adapter import Adapter
from emblema.session.requests import Prefill
from emblema.store.keys import PatchKey
from emblema.store.store import TenantStore


@dataclass(frozen=True, slots=True, eq=False)
class PatchJob:
    """One chunk's rows as they were computed in context, with all that its patch is formed from.

    Attributes:
        store: the tenant's store that will hold the patch.
        key: what it will be found by.
        chunk: the chunk, with its canonical rows.
        rows: the conditioned rows, copied out of the table.
        layouts, dtype: of the model.
        source, target: phases of the canonical and of the conditioned rows, worked out already: no model is asked.
        rank: of the patch.
        base: a stored patch to update instead, by `update` directions.
    """

    store: TenantStore
    key: PatchKey
    chunk: Chunk
    rows: KVRows
    layouts: tuple[LayerLayout, ...]
    dtype: torch.dtype
    source: PhaseBook
    target: PhaseBook
    rank: int
    base: PatchKey | None = None
    update: int = 32

    @property
    def bytes(self) -> int:
        return kv_bytes(self.rows)

    @torch.inference_mode()
    def form(self) -> Patch:
        """The patch; algebra only, on any thread.

        Raises:
            LoadError: the canonical rows are lost.
        """
        deficits: list[LayerRows | None] = []
        for conditioned, canonical, layout in zip(self.rows, self.chunk.rows, self.layouts, strict=True):
            own = unplace(canonical.to(conditioned.keys.device), layout, self.source)
            deficits.append(deficit(unplace(conditioned, layout, self.target), own))
        stored = None if self.base is None else self.store.find_patch(self.base)
        if stored is None:
            return form_patch(deficits, self.rank, self.dtype)
        return compose(stored, form_patch(remaining(deficits, stored), self.update, self.dtype), self.rank)


def patch_jobs(
    adapter: Adapter,
    store: TenantStore,
    prefill: Prefill,
    knowledge: Knowledge,
    policy: Policy,
    wants: Callable[[PatchKey, int], bool],
    reused_rows: int = 0,
    due: Collection[str] = (),
) -> Iterator[PatchJob]:
    """Yield a job for each chunk of a prefill whose patch is worth forming; its rows are copied when it is asked for.

    Such a chunk was computed in every layer, with all that precedes it in the table, and no patch of it is known.

    Args:
        adapter: the model.
        store: the tenant's store.
        prefill: a prompt just linked.
        knowledge: what it was planned with.
        policy: the bounds.
        wants: whether to copy rows of so many bytes for the patch of a key.
        reused_rows: rows at the front that a continued table held already.
        due: ids of chunks that are not in the store, and will be by the time the patch is formed.
    """
    prompt, plan, linked = prefill.prompt, prefill.plan, prefill.linked
    if not (plan.strategy in ("full", "prefix") or plan.strategy.startswith("auto:")):
        return
    codes = plan.sources()
    decisions = {decision.start: decision for decision in plan.decisions}
    held = linked.table.rows[: linked.rows].cpu()
    for segment, chunk in prompt.chunk_segments:
        if segment.start == 0 or segment.start < reused_rows or (codes[:, segment.start : segment.stop] != 0).any():
            continue
        canonical = chunk if chunk.id in due else _canonical(store, segment, chunk)
        if canonical is None:
            continue
        key = PatchKey(chunk.model, canonical.id, prompt.antecedents(segment))
        if not all(name in due or name in store for name in key.antecedents):
            # No patch is kept of what is not: media that came once, or pieces that a window alone knows.
            continue
        decision, rank = decisions.get(segment.start), rank_of(canonical, knowledge, policy)
        slots = ((held >= segment.start) & (held < segment.stop)).nonzero().squeeze(1)
        if rank == 0 or len(slots) != chunk.tokens or (not _wanted(decision) and store.has_patch(key)):
            continue
        size = chunk.tokens * adapter.dtype.itemsize * sum(layout.features for layout in adapter.layouts)
        if not wants(key, size):
            continue
        yield PatchJob(
            store,
            key,
            canonical,
            _copied(linked, slots),
            tuple(adapter.layouts),
            adapter.dtype,
            _phases(adapter, canonical.encoded.positions),
            _phases(adapter, prompt.positions[:, segment.start : segment.stop]),
            rank,
            decision.key if decision is not None and decision.lane is Lane.REFRESH else None,
            policy.refresh_rank,
        )


def _wanted(decision: Decision | None) -> bool:
    """Whether `auto` found no patch that serves, though there may be a thinner patch."""
    return decision is not None and decision.lane in (Lane.FULL, Lane.REFRESH)


def _canonical(store: TenantStore, segment: Segment, chunk: Chunk) -> Chunk | None:
    """Return the chunk with canonical rows of a part, if the store has it."""
    part = segment.part
    if not isinstance(part, ChunkPart) or not part.name or part.name not in store:
        return None
    return chunk if part.state is RowState.CANONICAL else store.find(part.name)


def _copied(linked: LinkedTable, slots: Tensor) -> KVRows:
    where = slots.to(linked.table.rows.device)
    return tuple(linked.table.read(layer, 0, linked.rows).select(where) for layer in range(len(linked.table.layouts)))


def _phases(adapter: Adapter, positions: Tensor) -> PhaseBook:
    book = PhaseBook(adapter.tables, positions.to(adapter.device))
    for layout in adapter.layouts:
        if layout.rotary is not None:
            book(layout.rotary)
    return book

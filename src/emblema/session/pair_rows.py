"""Rows that a linked prompt computed in context, copied out of its table, for the memory of pairs to learn from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, RowState, Segment
from emblema.models.adapter import Adapter
from emblema.session.requests import Prefill
from emblema.store.keys import ArtifactKey, ArtifactKind


@dataclass(frozen=True, slots=True, eq=False)
class ChunkShares:
    """Rows of one chunk in `LinkedRows`.

    Attributes:
        chunk: the chunk, with its canonical rows.
        antecedents: ids of the chunks before it, each once.
        rows: [r] int64, rows of the chunk.
        mass, alone: [antecedents, r] float32, see `PairSighting`.
    """

    chunk: Chunk
    antecedents: tuple[str, ...]
    rows: Tensor
    mass: Tensor
    alone: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class LinkedRows:
    """Rows that one prompt computed in context, copied out of its table.

    Attributes:
        chunks: whose rows they are, in order.
        rows: all of them, one chunk's after another's.
        source, target: phases of their canonical and of their present positions.
        witnesses: ids of all chunks that they may hold traces of.
    """

    chunks: tuple[ChunkShares, ...]
    rows: KVRows
    source: PhaseBook
    target: PhaseBook
    witnesses: frozenset[str]

    def differences(self, layouts: Sequence[LayerLayout]) -> Tensor:
        """Return what the canonical rows lack, [rows, G] float32 on the CPU, position-free.

        Raises:
            LoadError: canonical rows are lost.
        """
        pieces = []
        held = [shares.chunk.rows for shares in self.chunks]
        for layer, (layout, conditioned) in enumerate(zip(layouts, self.rows, strict=True)):
            device = conditioned.keys.device
            own = [
                rows[layer].select(shares.rows.to(rows[layer].keys.device)).to(device)
                for rows, shares in zip(held, self.chunks, strict=True)
            ]
            canonical = LayerRows(
                torch.cat([rows.keys for rows in own], dim=1), torch.cat([rows.values for rows in own], dim=1)
            )
            new, old = unplace(conditioned, layout, self.target), unplace(canonical, layout, self.source)
            for after, before in ((new.keys, old.keys), (new.values, old.values)):
                pieces.append((after - before).transpose(0, 1).reshape(after.shape[1], -1))
        return torch.cat(pieces, dim=1).cpu()


def teaches(plan: LinkPlan) -> bool:
    """Return whether the rows that a plan computes have absorbed what is before them, as the model's own forward has.

    Rows over what another method left out, or computed blind, are no measure.
    """
    return plan.strategy in ("full", "prefix") or plan.strategy.startswith(("auto:", "query-", "pair+query-"))


def names_all(prompt: Prompt) -> bool:
    """Return whether all that a prompt's rows can hold traces of is named in it: no rows that a window wrote."""
    return all(part.name and part.state is not RowState.WRITTEN for part in prompt.chunk_parts)


def linked_rows(
    adapter: Adapter,
    prefill: Prefill,
    canonical: Callable[[Segment], Chunk | None],
    served: Callable[[ArtifactKey], frozenset[str] | None],
) -> LinkedRows | None:
    """Return the rows whose attention was noted, copied; None where there is nothing to learn from.

    Args:
        adapter: the model.
        prefill: the linked prompt.
        canonical: returns the stored chunk of a part, with its canonical rows, if there is one.
        served: returns the chunks that a patch from memory was learnt from.
    """
    prompt, linked, shares = prefill.prompt, prefill.linked, prefill.linked.shares
    if shares is None or not teaches(prefill.plan) or not names_all(prompt):
        return None
    witnesses = {part.name for part in prompt.chunk_parts}
    for key in {part.patch.key for part in prefill.plan.ranges if part.patch is not None}:
        traces = served(key) if key.kind is ArtifactKind.PAIRS else key.chunks
        if traces is None:
            return None
        witnesses |= traces
    held = torch.full((prompt.tokens,), -1)
    held[linked.table.rows[: linked.rows].cpu()] = torch.arange(linked.rows)
    parts, indices = [], []
    for index, (segment, _) in enumerate(prompt.chunk_segments):
        inside = (shares.rows >= segment.start) & (shares.rows < segment.stop) & (held[shares.rows] >= 0)
        own = inside.nonzero().squeeze(1)
        chunk = canonical(segment) if index and len(own) else None
        if chunk is not None:
            antecedents, mass, alone = _merged(prompt, index, shares.mass[own], shares.alone[own])
            parts.append(ChunkShares(chunk, antecedents, shares.rows[own] - segment.start, mass, alone))
            indices.append(own)
    if not parts:
        return None
    rows = shares.rows[torch.cat(indices)]
    where = held[rows].to(linked.table.rows.device)
    copied = tuple(linked.table.read(layer, 0, linked.rows).select(where) for layer in range(len(adapter.layouts)))
    source = torch.cat([part.chunk.encoded.positions[:, part.rows] for part in parts], dim=1)
    return LinkedRows(
        tuple(parts),
        copied,
        _phases(adapter, source),
        _phases(adapter, prompt.positions[:, rows]),
        frozenset(witnesses),
    )


def _merged(prompt: Prompt, index: int, mass: Tensor, alone: Tensor) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Return the antecedents of a chunk part, each once, with [antecedents, rows] mass and alone share.

    Args:
        prompt: the prompt.
        index: of the part among the chunk parts.
        mass, alone: [rows, parts].
    """
    names = [part.name for part in prompt.chunk_parts[:index]]
    unique = tuple(dict.fromkeys(names))
    if len(unique) == len(names):
        return unique, mass[:, :index].T, alone[:, :index].T
    places = torch.tensor([unique.index(name) for name in names])
    total = torch.zeros(len(unique), len(mass)).index_add_(0, places, mass[:, :index].T)
    largest = torch.zeros(len(unique), len(mass)).index_reduce_(0, places, alone[:, :index].T, "amax")
    return unique, total, largest


def _phases(adapter: Adapter, positions: Tensor) -> PhaseBook:
    book = PhaseBook(adapter.tables, positions.to(adapter.device))
    for layout in adapter.layouts:
        if layout.rotary is not None:
            book(layout.rotary)
    return book

"""Rows that a linked prompt computed in context, copied out of its table, for the memory of pairs to learn from."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows, LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, RowState, Segment
from emblema.link.row_shares import RowShares
from emblema.link.taken_rows import ModelGeometry
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
        # A stored chunk is looked up each time that its rows are read.
        held = [tuple(shares.chunk.rows) for shares in self.chunks]
        pieces: dict[int, Tensor] = {}
        alike: dict[tuple[LayerLayout, torch.device], list[int]] = {}
        for layer, layout in enumerate(layouts):
            alike.setdefault((layout, self.rows[layer].keys.device), []).append(layer)
        for (layout, _), layers in alike.items():
            new = unplace(_side_by_side([self.rows[layer] for layer in layers]), layout, self.target)
            old = unplace(_side_by_side([self._canonical(held, layer) for layer in layers]), layout, self.source)
            both = [
                (after - before).unflatten(0, (len(layers), -1)).permute(2, 0, 1, 3).flatten(2)
                for after, before in ((new.keys, old.keys), (new.values, old.values))
            ]
            pieces.update(zip(layers, torch.cat(both, dim=2).unbind(1), strict=True))
        home = pieces[0].device
        return torch.cat([pieces[layer].to(home) for layer in range(len(layouts))], dim=1).cpu()

    def _canonical(self, held: Sequence[KVRows], layer: int) -> LayerRows:
        """Return the canonical rows of a layer, in order."""
        device = self.rows[layer].keys.device
        own = [
            rows[layer].select(shares.rows.to(rows[layer].keys.device)).to(device)
            for rows, shares in zip(held, self.chunks, strict=True)
        ]
        return LayerRows(torch.cat([rows.keys for rows in own], dim=1), torch.cat([rows.values for rows in own], dim=1))


def _side_by_side(layers: Sequence[LayerRows]) -> LayerRows:
    """Return the rows of layers of one layout as those of one layer with the heads of all."""
    return LayerRows(torch.cat([rows.keys for rows in layers]), torch.cat([rows.values for rows in layers]))


def teaches(plan: LinkPlan) -> bool:
    """Return whether the rows that a plan computes have absorbed what is before them, as the model's own forward has.

    Rows over what another method left out, or computed blind, are no measure.
    """
    return plan.strategy in ("full", "prefix") or plan.strategy.startswith(("auto:", "query-", "pair+query-"))


def names_all(prompt: Prompt) -> bool:
    """Return whether all that a prompt's rows can hold traces of is named in it: no rows that a window wrote."""
    return all(part.name and part.state is not RowState.WRITTEN for part in prompt.chunk_parts)


def witnesses_of(
    prompt: Prompt, plan: LinkPlan, served: Callable[[ArtifactKey], frozenset[str] | None]
) -> frozenset[str] | None:
    """Return ids of all chunks that rows which a plan computes may hold traces of; None where these are not known.

    Args:
        prompt: the prompt.
        plan: its plan.
        served: returns the chunks that a patch from memory was learnt from.
    """
    witnesses = {part.name for part in prompt.chunk_parts}
    for key in {part.patch.key for part in plan.ranges if part.patch is not None}:
        traces = served(key) if key.kind is ArtifactKind.PAIRS else key.chunks
        if traces is None:
            return None
        witnesses |= traces
    return frozenset(witnesses)


def linked_rows(
    adapter: Adapter,
    prefill: Prefill,
    canonical: Callable[[Segment], Chunk | None],
    served: Callable[[ArtifactKey], frozenset[str] | None],
) -> LinkedRows | None:
    """Return the rows of a linked prompt whose attention was noted, copied; None where there is nothing to learn from.

    Args:
        adapter: the model.
        prefill: the linked prompt.
        canonical: returns the stored chunk of a part, with its canonical rows, if there is one.
        served: see `witnesses_of`.
    """
    prompt, linked, shares = prefill.prompt, prefill.linked, prefill.linked.shares
    if shares is None or not teaches(prefill.plan) or not names_all(prompt):
        return None
    witnesses = witnesses_of(prompt, prefill.plan, served)
    if witnesses is None:
        return None
    held = torch.full((prompt.tokens,), -1)
    held[linked.table.rows[: linked.rows].cpu()] = torch.arange(linked.rows)
    # Rows that have left the table are not learnt from.
    kept = (held[shares.rows] >= 0).nonzero().squeeze(1)
    shares = RowShares(shares.rows[kept], shares.mass[kept], shares.alone[kept], shares.seconds)

    def read(indices: Tensor) -> KVRows:
        return linked.table.gather(held[shares.rows[indices]])

    return noted_chunks(adapter, prompt, shares, read, canonical, witnesses)


def noted_chunks(
    model: ModelGeometry,
    prompt: Prompt,
    shares: RowShares,
    read: Callable[[Tensor], KVRows],
    canonical: Callable[[Segment], Chunk | None],
    witnesses: frozenset[str],
) -> LinkedRows | None:
    """Return rows whose attention was noted by their chunks; None where no chunk of theirs is stored.

    Args:
        model: whose rows they are.
        prompt: the prompt.
        shares: of the rows.
        read: returns a copy of some of the noted rows, by their indices [n] in `shares`.
        canonical: see `linked_rows`.
        witnesses: see `LinkedRows`.
    """
    order = shares.rows.tolist()
    parts, found = [], []
    for index, (segment, _) in enumerate(prompt.chunk_segments):
        own = slice(bisect_left(order, segment.start), bisect_left(order, segment.stop))
        chunk = canonical(segment) if index and own.start < own.stop else None
        if chunk is not None:
            antecedents, masses, shared = _merged(prompt, index, shares.mass[own], shares.alone[own])
            parts.append(ChunkShares(chunk, antecedents, shares.rows[own] - segment.start, masses, shared))
            found.append(torch.arange(own.start, own.stop))
    if not parts:
        return None
    indices = torch.cat(found)
    source = torch.cat([part.chunk.encoded.positions[:, part.rows] for part in parts], dim=1)
    target = prompt.positions[:, shares.rows[indices]]
    book = PhaseBook(model.tables, torch.cat((source.to(target.device), target), dim=1).to(model.device))
    for band in {layout.rotary for layout in model.layouts if layout.rotary is not None}:
        # Worked out here, so that any thread may read them.
        book(band)
    count = len(indices)
    return LinkedRows(tuple(parts), read(indices), book.slice(0, count), book.slice(count, 2 * count), witnesses)


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

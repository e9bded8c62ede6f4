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
        alike: dict[LayerLayout, list[int]] = {}
        for layer, layout in enumerate(layouts):
            alike.setdefault(layout, []).append(layer)
        for layout, layers in alike.items():
            new = unplace(_side_by_side([self.rows[layer] for layer in layers]), layout, self.target)
            old = unplace(_side_by_side([self._canonical(held, layer) for layer in layers]), layout, self.source)
            both = [
                (after - before).unflatten(0, (len(layers), -1)).permute(2, 0, 1, 3).flatten(2)
                for after, before in ((new.keys, old.keys), (new.values, old.values))
            ]
            pieces.update(zip(layers, torch.cat(both, dim=2).unbind(1), strict=True))
        return torch.cat([pieces[layer] for layer in range(len(layouts))], dim=1).cpu()

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
    # Rows that have left the table are not learnt from.
    kept = (held[shares.rows] >= 0).nonzero().squeeze(1)
    noted, mass, alone = (whole[kept] for whole in (shares.rows, shares.mass, shares.alone))
    order = noted.tolist()
    parts, found = [], []
    for index, (segment, _) in enumerate(prompt.chunk_segments):
        own = slice(bisect_left(order, segment.start), bisect_left(order, segment.stop))
        chunk = canonical(segment) if index and own.start < own.stop else None
        if chunk is not None:
            antecedents, masses, shared = _merged(prompt, index, mass[own], alone[own])
            parts.append(ChunkShares(chunk, antecedents, noted[own] - segment.start, masses, shared))
            found.append(noted[own])
    if not parts:
        return None
    rows = torch.cat(found)
    where = held[rows].to(linked.table.rows.device)
    copied = tuple(linked.table.read(layer, 0, linked.rows).select(where) for layer in range(len(adapter.layouts)))
    source = torch.cat([part.chunk.encoded.positions[:, part.rows] for part in parts], dim=1)
    target = prompt.positions[:, rows]
    book = adapter.phases(torch.cat((source.to(target.device), target), dim=1))
    return LinkedRows(
        tuple(parts),
        copied,
        book.slice(0, len(rows)),
        book.slice(len(rows), 2 * len(rows)),
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

"""Patches that bring survivors' rows close to those that the parts before them now would give (Kamera, section 5)."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch

from emblema.errors import CapacityError, WindowError
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Patch, deficit, form_patch, rank_for_share
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.prompt import RowState
from emblema.link.taken_rows import ModelGeometry
from emblema.window.budget import WindowBudget
from emblema.window.linking import WindowLinker, WindowQuestion
from emblema.window.log import LogEntry
from emblema.window.parts import WindowPart, WrittenRows
from emblema.window.state import WindowState

REPAIR_RANK = 64
"""Directions of a removal patch that the paper states."""
PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")


@dataclass(frozen=True, slots=True)
class RepairRank:
    """How many directions a repair keeps: a number of them, or a share of the rows' bytes that they may weigh."""

    directions: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, rank: int | str) -> Self:
        """Read a rank as callers write it: 64, or "25%".

        Raises:
            WindowError: it is neither.
        """
        found = PERCENT.fullmatch(rank) if isinstance(rank, str) else None
        if type(rank) is int and rank > 0:
            return cls(directions=rank)
        if found is None or not 0 < float(found[1]) <= 100:
            raise WindowError(
                f"a rank of {rank!r}: give a whole number from 1 on, or a share of the rows such as '25%'"
            )
        return cls(share=float(found[1]) / 100)

    def for_tokens(self, tokens: int, geometry: ModelGeometry) -> int:
        """Return the rank for a piece; 0 where not even one direction fits the share."""
        if self.directions is not None:
            return self.directions
        return rank_for_share(self.share or 1.0, tokens, geometry.layouts, range(len(geometry.layouts)))


def repair_parts(
    linker: WindowLinker,
    geometry: ModelGeometry,
    parts: Sequence[WindowPart],
    stale: Collection[int],
    rank: RepairRank,
    entry: LogEntry,
) -> dict[int, WrittenRows]:
    """Compute stale parts in one forward, and return their rows with repairs, by number.

    Parts before them that have no rows get theirs by the same forward.

    Args:
        linker: runs the forward.
        geometry: the model's.
        parts: the window's.
        stale: numbers of the parts to repair.
        rank: how many directions are kept.
        entry: counts the cost of the forward.
    """
    last = max((place for place, part in enumerate(parts) if part.number in stale), default=-1)
    if last < 0:
        return {}
    parts = parts[: last + 1]
    new = {part.number for part in parts if part.number in stale or part.rows is None}
    sources = {part.number: RowState.MISSING if part.number in new else RowState.WRITTEN for part in parts}
    prefill = linker.link(parts, sources, (), WindowQuestion("", "blind"), entry)
    written = linker.copy_rows(parts, new, prefill, entry)
    for part in parts:
        if part.number in stale and part.rows is not None:
            written[part.number] = _repair_rows(geometry, part.rows, written[part.number], rank)
    return written


def refuse_repairs_over(budget: WindowBudget, state: WindowState, size: int, row_bytes: int) -> None:
    """Raise CapacityError where a state with repairs of `size` bytes is over its window's budget."""
    if not budget.holds(state, row_bytes):
        raise CapacityError(
            f"repairs of {size} bytes do not fit into the window's budget: keep fewer directions, or refresh "
            "the parts, which takes no more than their rows"
        )


def _repair_rows(geometry: ModelGeometry, first: WrittenRows, new: WrittenRows, rank: RepairRank) -> WrittenRows:
    """Return rows as first written, with patches that bring them close to new rows, which are dropped.

    A piece too short for a share, or with numbers that are NaN or infinite, has the new rows instead. The first rows
    may hold something of what has left, so they still count as having absorbed it.
    """
    pieces: list[Chunk] = []
    repairs: list[Patch | None] = []
    for old_piece, new_piece in zip(first.pieces, new.pieces, strict=True):
        directions = rank.for_tokens(old_piece.tokens, geometry) if old_piece.finite else 0
        pieces.append(old_piece if directions else new_piece)
        repairs.append(_form_repair(geometry, old_piece, new_piece, directions) if directions else None)
    return replace(new, pieces=tuple(pieces), repairs=tuple(repairs), absorbed=first.absorbed | new.absorbed)


@torch.inference_mode()
def _form_repair(geometry: ModelGeometry, old: Chunk, new: Chunk, rank: int) -> Patch:
    """Return the leading directions, position-free, of the new rows less the old."""
    source, target = (
        PhaseBook(geometry.tables, (piece.encoded.positions + piece.base).to(geometry.device)) for piece in (old, new)
    )
    layers = zip(new.rows, old.rows, geometry.layouts, strict=True)
    return form_patch(
        [deficit(unplace(now, layout, target), unplace(before, layout, source)) for now, before, layout in layers],
        rank,
        geometry.dtype,
    )

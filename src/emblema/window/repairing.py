"""What brings the rows of survivors close to what they would be behind what stands there now (Kamera, section 5)."""

import re
from dataclasses import dataclass, replace
from typing import Self

import torch

from emblema.errors import WindowError
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Patch, deficit, form_patch, rank_for_share
from emblema.kv.rotation import PhaseBook, unplace
from emblema.link.assemble import ModelGeometry
from emblema.window.parts import Written

PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)%")


@dataclass(frozen=True, slots=True)
class Rank:
    """How many directions a repair keeps: a number of them, or a share of the rows' bytes that they may weigh."""

    directions: int | None = None
    share: float | None = None

    @classmethod
    def of(cls, rank: int | str) -> Self:
        """A rank as callers write it: 64, or "25%".

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

    def for_tokens(self, tokens: int, shape: ModelGeometry) -> int:
        """The rank for a piece; 0 where not even one direction fits the share."""
        if self.directions is not None:
            return self.directions
        return rank_for_share(self.share or 1.0, tokens, shape.layouts, range(len(shape.layouts)))


def repaired(shape: ModelGeometry, written: Written, anew: Written, rank: Rank) -> Written:
    """Rows as first written with what brings them close to rows written anew, which are let go.

    A piece too short for a share has the new rows instead. The old rows may hold something of what has left, so they
    still count as having absorbed it.
    """
    pieces: list[Chunk] = []
    repairs: list[Patch | None] = []
    for old, new in zip(written.pieces, anew.pieces, strict=True):
        most = rank.for_tokens(old.tokens, shape)
        pieces.append(old if most else new)
        repairs.append(_difference(shape, old, new, most) if most else None)
    return replace(anew, pieces=tuple(pieces), repairs=tuple(repairs), absorbed=written.absorbed | anew.absorbed)


@torch.inference_mode()
def _difference(shape: ModelGeometry, old: Chunk, new: Chunk, rank: int) -> Patch:
    """The leading directions, position-free, of one chunk's rows less another's."""
    source, target = (_phases(shape, one) for one in (old, new))
    layers = zip(new.rows, old.rows, shape.layouts, strict=True)
    return form_patch(
        [deficit(unplace(now, layout, target), unplace(before, layout, source)) for now, before, layout in layers],
        rank,
        shape.dtype,
    )


def _phases(shape: ModelGeometry, piece: Chunk) -> PhaseBook:
    return PhaseBook(shape.tables, (piece.encoded.positions + piece.base).to(shape.device))

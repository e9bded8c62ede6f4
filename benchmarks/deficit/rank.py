"""How many directions the deficit has, and which of them the answer needs (Kamera, sections 3, 4 and C.2).

The patch cut to a rank, on one slot alone, and on directions pooled over other items, of this task or another.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benchmarks.deficit.subject import Case, CaseAnswer, Subject
from emblema.kv.layout import LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch, form_patch
from emblema.link.forming import Directions, pooled_directions, project

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENERGY = 0.9
NOISE = 1e-4
"""Relative norm under which a layer has no deficit to speak of: the first layer's rows depend on nothing in front."""
SLOTS = ("keys", "values")
THIN = 16
SLOT_NAMES = {"heads": ("keys", "values"), "latent": ("latent", "rotary key")}
BASIS_RANKS = (4, 16, 32)
KEPT_DIRECTIONS = 64
"""Directions that each item leaves to the pool."""
POOLED_SUBJECTS = 16
"""Items that a pool is made of, at most."""
Pool = list[Directions | None]


def ranks_of(subject: Subject) -> list[int]:
    """Return the ranks below full, then full rank."""
    return [rank for rank in RANKS if rank < subject.full_rank] + [subject.full_rank]


def rank_figures(subject: Subject) -> dict[str, float]:
    """Return, by layer and slot, directions that hold 90 % of the energy, their share of the tokens, energy by rank."""
    figures: dict[str, float] = {"tokens": subject.chunk.tokens}
    for layer, (delta, rows) in enumerate(zip(subject.deficits, subject.conditioned, strict=True)):
        for slot in SLOTS:
            weights = singular(matrix(getattr(delta, slot)))
            if float(weights.norm()) < NOISE * float(getattr(rows, slot).norm()):
                continue
            found = directions(weights)
            figures[f"e90/{slot}/{layer}"] = found
            figures[f"e90 per token/{slot}/{layer}"] = found / subject.chunk.tokens
            energy = (weights.square().cumsum(0) / weights.square().sum()).cpu().numpy()
            for rank in RANKS:
                figures[f"energy/{slot}/{layer}/{rank}"] = float(energy[min(rank, len(energy)) - 1])
    for slot in SLOTS:
        own = [value for name, value in figures.items() if name.startswith(f"e90/{slot}/")]
        if own:
            figures[f"e90/{slot}/largest"] = max(own)
            figures[f"e90 per token/{slot}/largest"] = max(own) / subject.chunk.tokens
    return figures


def rank_answers(case: Case) -> dict[str, CaseAnswer]:
    """Return the answer with the patch cut to each rank; the last is full rank."""
    subject = case.subject
    found = {f"rank/{rank}": case.patched(subject.patch, rank) for rank in ranks_of(subject)[:-1]}
    found["rank/full"] = case.patched(subject.patch, subject.full_rank)
    return found


def matrix(rows: Tensor) -> Tensor:
    """Return rows [heads, tokens, width] as [tokens, heads * width]."""
    return rows.transpose(0, 1).reshape(rows.shape[1], -1).float()


def singular(rows: Tensor) -> Tensor:
    """Return singular values, largest first."""
    values: Tensor = torch.linalg.svdvals(rows)
    return values


def directions(weights: Tensor, share: float = ENERGY) -> int:
    """Return how many leading singular values hold a share of the energy; none for a matrix of zeros."""
    energy = weights.double().square().cpu().numpy()
    if energy.sum() == 0:
        return 0
    return int(np.searchsorted(energy.cumsum() / energy.sum(), share - 1e-12) + 1)


def relative(delta: LayerRows, rows: LayerRows) -> dict[str, float]:
    """Return norms of a deficit over the norms of the rows, by slot."""
    return {slot: float(getattr(delta, slot).norm() / getattr(rows, slot).norm()) for slot in SLOTS}


def slot_answers(case: Case) -> dict[str, CaseAnswer]:
    """Answer with the patch on one slot of every layer, at full rank and rank 16; rotated and fixed keys apart.

    Where only a part of each key is rotated, and for a latent cache, position and content are apart already.
    """
    subject = case.subject
    found = {}
    for place, name in enumerate(slot_names(subject)):
        for label, rank in (("full", subject.full_rank), (str(THIN), THIN)):
            found[f"{name} only/{label}"] = case.patched(one_slot(subject.patch, place), rank)
    layouts = subject.adapter.layouts
    if all(layout.rotary is not None and layout.rotary.slot == "keys" for layout in layouts) and any(
        layout.rotary is not None and layout.rotary.width < layout.keys[1] for layout in layouts
    ):
        found["rotated keys only/full"] = case.ask(_band(subject, rotated=True))
        found["fixed keys only/full"] = case.ask(_band(subject, rotated=False))
    return found


def slot_names(subject: Subject) -> tuple[str, str]:
    """Return what the two slots are called, by the kind of cache."""
    return SLOT_NAMES[subject.adapter.layouts[0].kind]


def one_slot(patch: Patch, place: int) -> Patch:
    """Return the patch on the first or the second slot alone."""

    def nothing(factors: Factors) -> Factors:
        return Factors(factors.left[:, :0], factors.right[:0])

    return Patch(
        tuple(
            None
            if layer is None
            else LayerPatch(
                layer.keys if place == 0 else nothing(layer.keys), layer.values if place == 1 else nothing(layer.values)
            )
            for layer in patch.layers
        )
    )


def _band(subject: Subject, *, rotated: bool) -> list[LayerRows]:
    kept = []
    for layout, delta in zip(subject.adapter.layouts, subject.deficits, strict=True):
        mask = delta.keys.new_zeros(delta.keys.shape[2])
        if layout.rotary is not None:
            mask[layout.rotary.start : layout.rotary.start + layout.rotary.width] = 1
        kept.append(LayerRows(delta.keys * (mask if rotated else 1 - mask), delta.values * 0))
    return kept


def pool_of(subjects: Sequence[Subject]) -> Pool:
    """Return the leading directions of several subjects' deficits, per layer."""
    kept = [
        form_patch(subject.deficits, min(KEPT_DIRECTIONS, subject.full_rank), subject.adapter.dtype)
        for subject in subjects[:POOLED_SUBJECTS]
    ]
    return pooled_directions(kept, max(BASIS_RANKS))


def basis_answers(case: Case, own: Pool, carried: Pool | None) -> dict[str, CaseAnswer]:
    """Return the deficit as coefficients on pooled directions; `rank/M` is what the item's own directions give."""
    found = {}
    for rank in BASIS_RANKS:
        if rank > case.subject.full_rank:
            continue
        found[f"pooled basis/{rank}"] = _on(case, own, rank)
        if carried is not None:
            found[f"carried basis/{rank}"] = _on(case, carried, rank)
    return found


def _on(case: Case, directions: Pool, rank: int) -> CaseAnswer:
    cut = [None if pair is None else (pair[0][:rank], pair[1][:rank]) for pair in directions]
    patch = project(case.subject.deficits, cut, case.subject.adapter.dtype)
    return case.patched(patch, rank)

"""How many directions the deficit has, and how many of them the answer needs (Kamera, section 4 and C.2)."""

import numpy as np
import torch
from torch import Tensor

from benchmarks.deficit.subject import Case, CaseAnswer, Subject
from emblema.kv.layout import LayerRows

RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ENERGY = 0.9
NOISE = 1e-4
"""Relative norm under which a layer has no deficit to speak of: the first layer's rows depend on nothing in front."""
SLOTS = ("keys", "values")


def ranks_of(subject: Subject) -> list[int]:
    """The ranks below full, then full rank."""
    return [rank for rank in RANKS if rank < subject.full_rank] + [subject.full_rank]


def of_subject(subject: Subject) -> dict[str, float]:
    """Per layer and slot: directions that hold 90 % of the energy, also as a share of the tokens; energy by rank."""
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


def of_case(case: Case) -> dict[str, CaseAnswer]:
    """The answer with the patch cut to each rank; the last is full rank."""
    subject = case.subject
    found = {f"rank/{rank}": case.patched(subject.patch, rank) for rank in ranks_of(subject)[:-1]}
    found["rank/full"] = case.patched(subject.patch, subject.full_rank)
    return found


def matrix(rows: Tensor) -> Tensor:
    """Rows [heads, tokens, width] as [tokens, heads * width]."""
    return rows.transpose(0, 1).reshape(rows.shape[1], -1).float()


def singular(rows: Tensor) -> Tensor:
    """Singular values, largest first."""
    values: Tensor = torch.linalg.svdvals(rows)
    return values


def directions(weights: Tensor, share: float = ENERGY) -> int:
    """How many leading singular values hold a share of the energy; none for a matrix of zeros."""
    energy = weights.double().square().cpu().numpy()
    if energy.sum() == 0:
        return 0
    return int(np.searchsorted(energy.cumsum() / energy.sum(), share - 1e-12) + 1)


def relative(delta: LayerRows, rows: LayerRows) -> dict[str, float]:
    """Norms of a deficit over the norms of the rows, by slot."""
    return {slot: float(getattr(delta, slot).norm() / getattr(rows, slot).norm()) for slot in SLOTS}

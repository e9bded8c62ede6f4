"""Cheap signals that might tell where the deficit is, and what it goes with (Kamera, figure 4 and appendix B)."""

from collections.abc import Mapping
from math import ceil

import numpy as np
import torch
from torch import Tensor

from benchmarks.deficit.rank import matrix
from benchmarks.deficit.subject import Case, CaseAnswer, Subject, alone, chunk_of, masked
from benchmarks.deficit.tokens import token_energies

REDUNDANCY = ("motion", "similarity", "embedding difference")
"""What `redundancy` sets beside a deficit's size."""
PERCENT = 25
"""Share of the tokens that each selector names."""


def recall_figures(subject: Subject) -> dict[str, float]:
    """Return of the quarter of tokens with the largest deficit, the share that each signal's own quarter holds."""
    count = ceil(subject.chunk.tokens * PERCENT / 100)
    true = set(token_energies(subject).topk(count).indices.tolist())
    return {
        f"recall/{name}": len(true & set(score.topk(count).indices.tolist())) / count
        for name, score in signals(subject).items()
    }


def selector_answers(case: Case) -> dict[str, CaseAnswer]:
    """Return true rows for the quarter of tokens that a signal names."""
    subject = case.subject
    count = ceil(subject.chunk.tokens * PERCENT / 100)
    found = {}
    for name, score in signals(subject).items():
        rows = torch.zeros(subject.chunk.tokens, dtype=torch.bool)
        rows[score.topk(count).indices] = True
        found[f"selector/{name}"] = case.ask(masked(subject.deficits, rows))
    return found


def signals(subject: Subject) -> Mapping[str, Tensor]:
    """Return scores [tokens] of the chunk's rows, large where a deficit is guessed.

    Cross-attention mass is what the rows paid to the antecedents in the conditioned forward; deviation is the change of
    the second layer's rows (CacheBlend's check). The others need no forward with the antecedents.
    """
    tokens = subject.chunk.tokens
    last = chunk_of(subject.front.chunk_segments[-2][0])
    embeds, before = (chunk.encoded.embeds.float().cpu() for chunk in (subject.chunk, last))
    deep = subject.layers // 2
    keys = matrix(subject.canonical[deep].keys).cpu()
    found = {
        "first": -torch.arange(tokens, dtype=torch.float32),
        "chance": torch.rand(tokens, generator=torch.Generator().manual_seed(int(subject.chunk.id[:12], 16))),
        "key norm": keys.norm(dim=1),
        "value norm": matrix(subject.canonical[deep].values).cpu().norm(dim=1),
        "key similarity": _nearest(keys, matrix(_keys(subject, last.id, deep)).cpu()),
        "embedding novelty": -_nearest(embeds, before),
        "deviation": _energy(subject, min(1, subject.layers - 1)),
    }
    rows = torch.tensor([row for start, stop in subject.antecedents for row in range(start, stop)])
    if subject.seen.attention:
        mass = sum(weights[:, rows.to(weights.device)].sum(dim=1).cpu() for weights in subject.seen.attention.values())
        found["attention mass"] = torch.as_tensor(mass)
    return found


def redundancy(subject: Subject) -> dict[str, float]:
    """Return what the chunk has in common with the last antecedent, to be set against the size of its deficit.

    Motion is the mean absolute difference of pixels, similarity the correlation of pixels; embedding difference the
    mean distance of embeddings at the same place, over their mean norm. Those of pixels need two pictures of one size.
    """
    last = chunk_of(subject.front.chunk_segments[-2][0])
    figures = {}
    deficit = sum(float(rows.keys.square().sum() + rows.values.square().sum()) for rows in subject.deficits)
    whole = sum(float(rows.keys.square().sum() + rows.values.square().sum()) for rows in subject.conditioned)
    figures["size"] = (deficit / whole) ** 0.5
    if last.tokens == subject.chunk.tokens:
        here, there = (chunk.encoded.embeds.float() for chunk in (subject.chunk, last))
        figures["embedding difference"] = float((here - there).norm(dim=1).mean() / here.norm(dim=1).mean())
    if subject.pictures is not None and subject.pictures[0].shape == subject.pictures[1].shape:
        before, own = (picture.astype(np.float64) for picture in subject.pictures)
        figures["motion"] = float(np.abs(own - before).mean() / 255)
        figures["similarity"] = float(np.corrcoef(own.ravel(), before.ravel())[0, 1])
    return figures


def _keys(subject: Subject, chunk: str, layer: int) -> Tensor:
    found = next(piece for _, piece in subject.front.chunk_segments if piece.id == chunk)
    return alone(subject.adapter, found)[layer].keys


def _nearest(own: Tensor, others: Tensor) -> Tensor:
    """Return [tokens] the largest cosine of each row with any of the others."""
    normal = torch.nn.functional.normalize
    nearest: Tensor = (normal(own, dim=1) @ normal(others, dim=1).T).amax(dim=1)
    return nearest


def _energy(subject: Subject, layer: int) -> Tensor:
    delta = subject.deficits[layer]
    energy: Tensor = (delta.keys.square().sum(dim=(0, 2)) + delta.values.square().sum(dim=(0, 2))).cpu()
    return energy

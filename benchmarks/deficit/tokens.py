"""How the deficit spreads over tokens and heads, and how few antecedent keys carry it (Kamera, sections 4 and C.3)."""

from itertools import groupby
from math import ceil

import numpy as np
import torch
from torch import Tensor

from benchmarks.deficit.rank import directions, singular
from benchmarks.deficit.subject import Case, CaseAnswer, Subject, masked
from emblema.kv.layout import LayerRows
from emblema.link.plan import ChunkOrigin, RowRange, RowSource

SHARES = (5, 10, 20, 30, 40, 50, 60, 70, 80, 90)
"""Percent of the chunk's tokens that are given their true rows."""
AGAIN = (10, 25, 50, 75)
"""Percent of the tokens that are computed again in context, among canonical ones."""
CELLS = (10, 25, 50, 75)
"""Percent of (layer, slot, head) cells that are given their true rows."""
ENERGY = 0.9


def token_figures(subject: Subject) -> dict[str, float]:
    """Return shares of tokens and of (layer, head) cells that hold 90 % of the deficit's energy."""
    cells = cell_energies(subject.deficits)
    return {
        "energy share/tokens": needed(token_energies(subject)),
        "energy share/heads": needed(cells),
    }


def token_answers(case: Case) -> dict[str, CaseAnswer]:
    """Answer with true rows for the tokens of largest deficit, the first tokens, and the cells of largest deficit."""
    subject = case.subject
    best = token_energies(subject).argsort(descending=True)
    found = {}
    for share in SHARES:
        found[f"oracle tokens/{share}"] = case.ask(masked(subject.deficits, chosen(best, share)))
        found[f"first tokens/{share}"] = case.ask(masked(subject.deficits, chosen(torch.arange(len(best)), share)))
    for share in AGAIN:
        found[f"oracle again/{share}"] = again(case, chosen(best, share))
        found[f"first again/{share}"] = again(case, chosen(torch.arange(len(best)), share))
    order = cell_energies(subject.deficits).argsort(descending=True)
    for share in CELLS:
        found[f"oracle heads/{share}"] = case.ask(on_cells(subject.deficits, chosen(order, share)))
    return found


def token_energies(subject: Subject) -> Tensor:
    """Return [tokens] squared norm of the deficit, each slot's weighed by the norm of its layer's rows."""
    total = torch.zeros(subject.chunk.tokens)
    for delta, rows in zip(subject.deficits, subject.conditioned, strict=True):
        for slot in ("keys", "values"):
            own = getattr(delta, slot).square().sum(dim=(0, 2)) / getattr(rows, slot).square().sum()
            total += own.cpu()
    return total


def cell_energies(deficits: tuple[LayerRows, ...]) -> Tensor:
    """Return squared norms of the deficit by layer, slot and head, one after another."""
    pieces = [getattr(delta, slot).square().sum(dim=(1, 2)).cpu() for delta in deficits for slot in ("keys", "values")]
    return torch.cat(pieces)


def on_cells(deficits: tuple[LayerRows, ...], cells: Tensor) -> list[LayerRows]:
    """Return the deficits on some cells alone; `cells` [layers * heads of both slots] bool, as in `cell_energies`."""
    kept, start = [], 0
    for delta in deficits:
        slots = []
        for rows in (delta.keys, delta.values):
            mask = cells[start : start + rows.shape[0]].to(rows.device)
            slots.append(rows * mask[:, None, None])
            start += rows.shape[0]
        kept.append(LayerRows(*slots))
    return kept


def chosen(order: Tensor, percent: float) -> Tensor:
    """Return [n] bool: the first `percent` of an order of places, rounded up."""
    mask = torch.zeros(len(order), dtype=torch.bool)
    mask[order[: ceil(len(order) * percent / 100)]] = True
    return mask


def needed(energies: Tensor, share: float = ENERGY) -> float:
    """Return the smallest share of the places that hold a share of the energy; NaN where there is none."""
    sizes = np.sort(energies.double().numpy())[::-1]
    if sizes.sum() == 0:
        return float("nan")
    return float(np.searchsorted(sizes.cumsum() / sizes.sum(), share - 1e-12) + 1) / len(sizes)


def again(case: Case, rows: Tensor) -> CaseAnswer:
    """Return some of the chunk's rows computed in context, the others taken (the strongest CacheBlend form)."""
    subject, layers = case.subject, case.subject.layers
    ranges = []
    for ours, run in groupby(range(len(rows)), lambda row: bool(rows[row])):
        held = list(run)
        first, stop = subject.segment.start + held[0], subject.segment.start + held[-1] + 1
        if ours:
            ranges.append(RowRange(first, stop, RowSource.COMPUTED, (0, layers)))
        else:
            origin = ChunkOrigin(subject.chunk.id, held[0])
            ranges.append(RowRange(first, stop, RowSource.TAKEN, (0, layers), origin))
    return case.run(ranges)


def link_figures(subject: Subject) -> dict[str, float]:
    """Return per layer, of the attention that the chunk's rows pay to antecedents' keys in the conditioned forward:

    how many keys carry 90 % of it, their share of the keys, the directions that hold 90 % of its energy, and how much
    of all attention it is.
    """
    rows = [row for start, stop in subject.antecedents for row in range(start, stop)]
    figures: dict[str, float] = {"antecedent keys": len(rows)}
    for layer, weights in sorted(subject.seen.attention.items()):
        own = weights[:, torch.tensor(rows, device=weights.device)].float().cpu()
        share = needed(own.sum(dim=0))
        figures[f"landmarks/{layer}"] = share * len(rows)
        figures[f"landmarks per key/{layer}"] = share
        figures[f"link rank/{layer}"] = directions(singular(own))
        figures[f"link mass/{layer}"] = float(own.sum() / weights.sum())
    found = [value for name, value in figures.items() if name.startswith("landmarks/")]
    if found:
        figures["landmarks/mean"] = sum(found) / len(found)
    return figures

"""How far rows are from re-prefill's in units of bf16, and relocation alone at far places (Kamera, figure 12)."""

import torch
from torch import Tensor

from benchmarks.deficit.rank import SLOTS
from benchmarks.deficit.subject import Subject
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, place, relocate

RANKS = (16, 64)
SHIFTS = (1, 16, 256, 4096)
MANTISSA = 7
"""Stored bits of a bf16 fraction: numbers of size 2^e are 2^(e - 7) apart."""


def of_subject(subject: Subject) -> dict[str, float]:
    """Root mean square of the error in ULP, all layers: keys and values of raw, relocated and patched rows.

    All rows are rounded to bf16 and set against the conditioned ones, rounded too. An ULP is the true number's own, but
    at least that of the root mean square of its row, so that numbers near zero count for no more than they weigh.
    """
    adapter = subject.adapter
    source = PhaseBook(adapter.tables, subject.chunk.encoded.positions.to(adapter.device))
    segment = subject.segment
    target = PhaseBook(adapter.tables, subject.front.positions[:, segment.start : segment.stop].to(adapter.device))
    patch = subject.patch
    ways: dict[str, list[LayerRows]] = {"raw": [], "relocated": [], "patched full": []}
    ways |= {f"patched {rank}": [] for rank in RANKS if rank < subject.full_rank}
    truth = []
    for layer, layout in enumerate(adapter.layouts):
        base, held = subject.canonical[layer], patch.layers[layer]
        truth.append(place(subject.conditioned[layer], layout, target, torch.bfloat16))
        ways["raw"].append(place(base, layout, source, torch.bfloat16))
        ways["relocated"].append(place(base, layout, target, torch.bfloat16))
        for name in ways:
            if name.startswith("patched") and held is not None:
                rank = subject.full_rank if name.endswith("full") else int(name.split()[1])
                cut = type(held)(held.keys.slice(rank), held.values.slice(rank))
                ways[name].append(place(cut.apply(base), layout, target, torch.bfloat16))
    figures = {}
    for name, rows in ways.items():
        for slot in SLOTS:
            errors = torch.cat(
                [in_ulp(getattr(one, slot), getattr(own, slot)).flatten() for one, own in zip(rows, truth, strict=True)]
            )
            figures[f"ulp/{name}/{slot}"] = float(errors.square().mean().sqrt())
            figures[f"within one ulp/{name}/{slot}"] = float((errors <= 1).float().mean())
    return figures


def relocation(subject: Subject) -> dict[str, float]:
    """Relocation alone: the chunk prefilled `SHIFT` positions further on, against its canonical rows relocated there.

    The largest error in ULP over both slots and all layers. Attention looks at distances only, so the two agree but for
    rounding.
    """
    adapter, encoded = subject.adapter, subject.chunk.encoded
    figures = {}
    source = PhaseBook(adapter.tables, encoded.positions.to(adapter.device))
    for shift in SHIFTS:
        if shift + encoded.span > adapter.context_length:
            continue
        native, _ = adapter.prefill(encoded, shift)
        target = PhaseBook(adapter.tables, encoded.positions.to(adapter.device) + shift)
        figures[f"relocation/{shift}"] = max(
            _largest(relocate(subject.chunk.rows[layer], layout, source, target), native[layer], layout)
            for layer, layout in enumerate(adapter.layouts)
        )
    return figures


def in_ulp(rows: Tensor, truth: Tensor) -> Tensor:
    """|rows - truth| of rows [heads, tokens, width], in bf16 units of the true number, or of its row's RMS."""
    own = truth.float()
    size = own.square().mean(dim=-1, keepdim=True).sqrt().maximum(own.abs()).clamp_min(torch.finfo(torch.float32).tiny)
    unit = torch.exp2(torch.floor(torch.log2(size)) - MANTISSA)
    return (rows.float() - own).abs() / unit


def _largest(rows: LayerRows, truth: LayerRows, layout: LayerLayout) -> float:
    return max(
        float(in_ulp(getattr(rows, slot).bfloat16(), getattr(truth, slot).bfloat16()).max())
        for slot in SLOTS
        if getattr(truth, slot).shape[2] > 0
    )

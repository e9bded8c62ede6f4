"""What single rows show: errors in units of bf16 (Kamera, figure 12), and MPIC's three insights about image tokens.

The insights are of MPIC's sections 2.3 and 4.2 and figures 4 and 8.
"""

import numpy as np
import torch
from torch import Tensor

from benchmarks.deficit.rank import SLOTS, matrix
from benchmarks.deficit.recorder import recorded
from benchmarks.deficit.subject import Case, Subject, alone, chunk_of, in_context
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.kv.rotation import PhaseBook, place, relocate
from emblema.link.executor import Executor
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, TextPart
from emblema.link.strategies.base import computed
from emblema.link.taken_rows import LinkJob

ROUNDED_RANKS = (16, 64)
SHIFTS = (1, 16, 256, 4096)
MANTISSA = 7
"""Stored bits of a bf16 fraction: numbers of size 2^e are 2^(e - 7) apart."""
THRESHOLDS = (1e-4, 1e-3, 1e-2, 1e-1)
FRONT = 500 / 1176
"""The share of an image's tokens that the paper finds to hold about 80 % of the attention."""
TOP_SHARE = 50 / 1176
"""The paper's top 50 of 1,176 tokens, as a share."""
TENTHS = 10


def rounding_figures(subject: Subject) -> dict[str, float]:
    """Return root mean square of the error in ULP, all layers: keys and values of raw, relocated and patched rows.

    All rows are rounded to bf16 and set against the conditioned ones, rounded too. An ULP is the true number's own, but
    at least that of the root mean square of its row, so that numbers near zero count for no more than they weigh.
    """
    adapter = subject.adapter
    source = PhaseBook(adapter.tables, subject.chunk.encoded.positions.to(adapter.device))
    segment = subject.segment
    target = PhaseBook(adapter.tables, subject.front.positions[:, segment.start : segment.stop].to(adapter.device))
    patch = subject.patch
    ways: dict[str, list[LayerRows]] = {"raw": [], "relocated": [], "patched full": []}
    ways |= {f"patched {rank}": [] for rank in ROUNDED_RANKS if rank < subject.full_rank}
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
                [
                    in_ulp(getattr(made, slot), getattr(own, slot)).flatten()
                    for made, own in zip(rows, truth, strict=True)
                ]
            )
            figures[f"ulp/{name}/{slot}"] = float(errors.square().mean().sqrt())
            figures[f"within one ulp/{name}/{slot}"] = float((errors <= 1).float().mean())
    return figures


def relocation_figures(subject: Subject) -> dict[str, float]:
    """Compare the chunk prefilled `SHIFTS` positions further on with its canonical rows relocated there.

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
    """Return |rows - truth| of rows [heads, tokens, width], in bf16 units of the true number, or of its row's RMS."""
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


def attention_figures(case: Case) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Return figures of the chunk alone with a question, as in the paper's experiments.

    Returns:
        Figures: per threshold, the share of the chunk's tokens that the first output token attends more, mean over
        layers; the share of its attention in the front; of each token's tenth of the chunk. Then cumulative attention
        [layers, tokens] by token, and [tokens] the share of layers in which a token's keys are among those that differ
        most between the chunk before and after the question.
    """
    adapter, chunk = case.subject.adapter, case.subject.chunk
    text = [segment.part for segment in case.prompt.segments if isinstance(segment.part, TextPart)][-1]
    part = case.subject.segment.part
    before = Prompt.of([part, text], adapter.axes)
    layers = len(adapter.layouts)
    plan = LinkPlan("deficit", before.tokens, layers, tuple(computed(before, layers, 0, before.tokens)))
    with recorded(adapter, before.tokens - 1, before.tokens) as seen:
        Executor(adapter).run(LinkJob(plan, before))
    figures: dict[str, float] = {}
    cumulative = np.zeros((0, chunk.tokens))
    if seen.attention:
        heads = case.subject.adapter.config.num_attention_heads
        scores = torch.stack([seen.attention[layer][0, : chunk.tokens] for layer in sorted(seen.attention)])
        scores = (scores / heads).float().cpu()
        for threshold in THRESHOLDS:
            figures[f"attention above/{threshold:g}"] = float((scores > threshold).float().mean())
        shares = (scores / scores.sum(dim=1, keepdim=True)).numpy()
        cumulative = shares.cumsum(axis=1)
        figures["attention in front"] = float(cumulative[:, round(FRONT * chunk.tokens) - 1].mean())
        figures["attention expected"] = round(FRONT * chunk.tokens) / chunk.tokens
        order = np.sort(shares, axis=1)[:, ::-1].cumsum(axis=1)
        figures["tokens for 80 % of attention"] = float(((order < 0.8).sum(axis=1) + 1).mean() / chunk.tokens)
    after, _, _ = in_context(adapter, Prompt.of([text, part], adapter.axes))
    counts = np.zeros(chunk.tokens)
    top = max(1, round(TOP_SHARE * chunk.tokens))
    own = alone(adapter, chunk_of(case.subject.segment))
    book = PhaseBook(
        adapter.tables, Prompt.of([text, part], adapter.axes).positions[:, text.tokens :].to(adapter.device)
    )
    for name in ("relocated", "raw"):
        counted = np.zeros(chunk.tokens)
        for layer, (moved, base) in enumerate(zip(after, own, strict=True)):
            layout = adapter.layouts[layer]
            later = moved if name == "relocated" else place(moved, layout, book, torch.float32)
            first = base if name == "relocated" else chunk.rows[layer]
            slot = "values" if layout.kind == "latent" and name == "raw" else "keys"
            gap = (matrix(getattr(later, slot)) - matrix(getattr(first, slot).to(later.keys.device))).abs().sum(dim=1)
            if layer == 0 and name == "relocated":
                continue
            counted[gap.topk(top).indices.cpu().numpy()] += 1 / (layers - (name == "relocated"))
        tenth = max(1, chunk.tokens // TENTHS)
        figures[f"moved most, in the first tenth/{name}"] = float(counted[:tenth].sum() / counted.sum())
        counts = counted if name == "raw" else counts
    return figures, cumulative, counts

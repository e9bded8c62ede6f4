"""MPIC's three insights about image tokens, measured (sections 2.3 and 4.2, figures 4 and 8)."""

import numpy as np
import torch

from benchmarks.deficit.rank import matrix
from benchmarks.deficit.recorder import recorded
from benchmarks.deficit.subject import Case, alone, behind, chunk_of
from emblema.kv.rotation import PhaseBook, place
from emblema.link.executor import Executor
from emblema.link.plan import LinkPlan
from emblema.link.prompt import Prompt, TextPart
from emblema.link.strategies.base import computed
from emblema.link.taken_rows import LinkJob

THRESHOLDS = (1e-4, 1e-3, 1e-2, 1e-1)
FRONT = 500 / 1176
"""The share of an image's tokens that the paper finds to hold about 80 % of the attention."""
TOP = 50 / 1176
"""The paper's top 50 of 1,176 tokens, as a share."""
TENTHS = 10


def of_case(case: Case) -> tuple[dict[str, float], np.ndarray, np.ndarray]:
    """Figures of the chunk alone with a question, as in the paper's experiments.

    Returns:
        Figures: per threshold, the share of the chunk's tokens that the first output token attends more, mean over
        layers; the share of its attention in the front; of each token's tenth of the chunk. Then cumulative attention
        [layers, tokens] by token, and [tokens] the share of layers in which a token's keys are among those that differ
        most between the chunk before and after the question.
    """
    adapter, chunk = case.subject.adapter, case.subject.chunk
    text = [one.part for one in case.prompt.segments if isinstance(one.part, TextPart)][-1]
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
    after, _, _ = behind(adapter, Prompt.of([text, part], adapter.axes))
    counts = np.zeros(chunk.tokens)
    top = max(1, round(TOP * chunk.tokens))
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

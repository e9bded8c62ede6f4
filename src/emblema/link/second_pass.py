"""Which rows a second pass computes again, and how sure its answer is.

They are the rows that the question attends most.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from emblema.link.plan import Recomputation
from emblema.link.prompt import Rows


def spanned_rows(spans: Sequence[Rows]) -> Tensor:
    """Return the rows of ranges [rows] int64, each once and in order."""
    if not spans:
        return torch.arange(0)
    starts, stops = torch.tensor(spans).unbind(1)
    counts = stops - starts
    # Many short ranges at once are quicker than one after another.
    before = counts.cumsum(0) - counts
    rows: Tensor = (torch.repeat_interleave(starts - before, counts) + torch.arange(int(counts.sum()))).unique()
    return rows


def chosen_rows(again: Recomputation, scores: Tensor) -> Tensor:
    """Return the rows that a second pass computes beside the question [chosen] int64, in order.

    Of what is computed whole or not at all, that which the question attends most comes first, as far as there is room.

    Args:
        again: the second pass.
        scores: [candidates] float32 on the CPU, how much the question attends each candidate, in the order of
            `spanned_rows(again.candidates)`.
    """
    candidates = spanned_rows(again.candidates)
    if not again.whole:
        best = scores.topk(min(again.budget, len(candidates))).indices
        return candidates[best].sort().values
    chosen, left = torch.zeros(len(candidates), dtype=torch.bool), again.budget
    places = [torch.searchsorted(candidates, torch.tensor(span)) for span in again.whole]
    for start, stop in sorted(places, key=lambda span: -float(scores[span[0] : span[1]].sum())):
        if int(stop - start) <= left:
            chosen[start:stop], left = True, left - int(stop - start)
    single = torch.ones(len(candidates), dtype=torch.bool)
    for start, stop in places:
        single[start:stop] = False
    best = scores.masked_fill(~single, -torch.inf).topk(min(left, int(single.sum()))).indices
    chosen[best] = True
    return candidates[chosen]


def runs_of(rows: Tensor) -> tuple[Rows, ...]:
    """Return rows [n], in order, as ranges."""
    if len(rows) == 0:
        return ()
    edges = (rows.diff() != 1).nonzero().squeeze(1)
    starts = torch.cat((rows[:1], rows[edges + 1])).tolist()
    stops = torch.cat((rows[edges], rows[-1:])).tolist()
    return tuple((start, stop + 1) for start, stop in zip(starts, stops, strict=True))


def margin_of(logits: Tensor) -> float:
    """Return by how much the probabilities of the two likeliest tokens differ, of logits [vocab]; 0 if not finite."""
    likeliest = torch.softmax(logits.double(), dim=0).topk(min(2, logits.shape[0])).values
    margin = float(likeliest[0] - likeliest[-1]) if len(likeliest) > 1 else 1.0
    return margin if math.isfinite(margin) else 0.0

"""What computed rows of chunks attend of the chunks before them: which are noted, in which layers, and the outcome."""

from dataclasses import dataclass

import torch
from torch import Tensor

from emblema.link.prompt import Prompt
from emblema.link.taken_rows import ShareSample


@dataclass(frozen=True, slots=True)
class RowShares:
    """What some computed rows of chunks attended.

    Attributes:
        rows: [r] int64, rows of the prompt, in order.
        mass: [r, chunks] float32, attention to each of the prompt's chunk parts, mean of heads and noted layers.
        alone: [r, chunks] float32, what share each would have if it were the only one before the row's own chunk.
        seconds: of the processor, that noting took.
    """

    rows: Tensor
    mass: Tensor
    alone: Tensor
    seconds: float


def noted_layers(layers: int) -> frozenset[int]:
    """Return the layers of a model whose attention is noted for shares: one, in the middle.

    Earlier layers were measured to name the wrong antecedent where two of them are alike; more layers cost as much
    again each.
    """
    return frozenset((layers // 2,))


def owners_of(prompt: Prompt) -> Tensor:
    """Return which of a prompt's chunk parts each row belongs to [rows] int64; their number for rows of text."""
    segments = [segment for segment, _ in prompt.chunk_segments]
    owners = torch.full((prompt.tokens,), len(segments))
    for index, segment in enumerate(segments):
        owners[segment.start : segment.stop] = index
    return owners


def noted_rows(prompt: Prompt, rows: Tensor, sample: ShareSample) -> Tensor:
    """Return which of some rows are noted [noted] int64, in order: of chunks after others, at most as many.

    Args:
        prompt: the prompt.
        rows: [n] int64, computed rows of it, in order.
        sample: how many.
    """
    owners = owners_of(prompt)[rows]
    found = ((owners > 0) & (owners < len(prompt.chunk_segments))).nonzero().squeeze(1)
    if len(found) > sample.rows:
        generator = torch.Generator().manual_seed(sample.seed)
        found = found[torch.randperm(len(found), generator=generator)[: sample.rows]].sort().values
    return found

"""Streams written down plainly: the rows of a turn, their positions, and one forward over all of them."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from emblema.engine.engine import Engine
from emblema.models.batch import RowBatch
from emblema.models.frames import encode_frames
from tests.families import loaded, picture


def shown(name: str, count: int, seed: int = 0) -> list[Image.Image]:
    """Frames of one size."""
    return [picture(*loaded(name).case.sizes[0], seed=seed + index) for index in range(count)]


def plain_logits(made: Engine, opening: Sequence[int], frames: Sequence[Any], closing: Sequence[int]) -> Tensor:
    """Return logits after a whole turn: one forward of opening, frames and question, each row over all before it."""
    adapter, preparer = made.adapter, made.session.chunk_builder.preparer
    begin, end = (adapter.embed(torch.tensor(list(ids), dtype=torch.int64)) for ids in (opening, closing))
    # Each frame goes through the encoder alone.
    codes = [encode_frames(adapter, preparer, [frame]) for frame in frames]
    span, axes, tokens = int(codes[0].offsets.max()) + 1, adapter.axes, codes[0].tokens
    positions = [torch.arange(len(opening)).expand(axes, -1)]
    positions += [code.offsets + len(opening) + index * span for index, code in enumerate(codes)]
    after = len(opening) + len(frames) * span
    positions.append(torch.arange(after, after + len(closing)).expand(axes, -1))
    embeds = torch.cat([begin, *(code.embeds[0] for code in codes), end])
    visual = torch.zeros(len(embeds), dtype=torch.bool)
    visual[len(opening) : len(opening) + len(frames) * tokens] = True
    deepstack = tuple(
        torch.cat([code.deepstack[index][0] for code in codes]) for index in range(len(codes[0].deepstack))
    )
    rows = torch.arange(len(embeds))
    table = adapter.table(len(embeds))
    table.allocate(rows)
    return adapter.logits(adapter.forward(RowBatch(embeds, torch.cat(positions, 1), rows, visual, deepstack), table))[
        -1
    ]

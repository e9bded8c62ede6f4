"""Frames through the decoder: a block sees the memory as it was when it began, and each frame those before it."""

import torch

from emblema.models.adapter import Adapter
from emblema.models.batch import RowBatch
from emblema.models.frames import FrameCodes
from emblema.stream.local import Local
from emblema.stream.method import Method, Sight
from emblema.stream.reading import Reading, forward_reading
from emblema.stream.source import MemorySource


def encode(adapter: Adapter, method: Method, local: Local, codes: FrameCodes, batched: bool) -> None:
    """Run frames of the block under way; there is room for them. Their rows stay in its table.

    For a method that does not encode, only their place is kept.

    Args:
        batched: in one forward, or as few as the adapter's rows at once allow, under a mask that keeps each frame to
            what came before it; else frame by frame.
    """
    together = max(1, adapter.block_rows // codes.tokens) if batched else 1
    sight = Sight(0, local.done, local.done)
    for start in range(0, codes.frames, together):
        part = codes.slice(start, min(start + together, codes.frames))
        batch, groups = _batch(adapter, local, part)
        if not method.encodes:
            continue
        method.prepare(sight)
        source = MemorySource(adapter, method, local, sight, local.places.corner(local.done), asked=False)
        run = Reading(adapter, batch, groups, part.frames, "frames", source, local.phases)
        forward_reading(adapter, batch, local.table, run)


def _batch(adapter: Adapter, local: Local, codes: FrameCodes) -> tuple[RowBatch, torch.Tensor]:
    """Rows of frames that come next, slots for them, and the group of each row: its frame in the batch."""
    tokens, first = codes.tokens, local.count
    numbers = torch.arange(codes.frames, device=adapter.device)
    positions = local.places.written(numbers + first)
    groups = numbers.repeat_interleave(tokens)
    rows = torch.arange(local.table.length, local.table.length + len(groups), device=adapter.device)
    together = groups + first if adapter.kind.bidirectional else torch.full_like(groups, -1)
    slots = local.table.allocate(rows, together)
    batch = RowBatch(
        codes.embeds.reshape(len(groups), -1),
        positions,
        torch.arange(slots.start, slots.stop, device=adapter.device),
        torch.ones_like(groups, dtype=torch.bool),
        tuple(layer.reshape(len(groups), -1) for layer in codes.deepstack),
    )
    return batch, groups

"""A chunk's residual stream at a layer, kept so that its rows can be computed from there on.

It is what enters the layer where the chunk is prefilled alone: like the canonical KV it belongs to the chunk whatever
stands before it, and holds no position. It is kept in the store beside the chunk's patches, as one left factor without
directions: budgets, tiers and deletion treat it as any other piece that was made from the chunk.
"""

import torch
from torch import Tensor

from emblema.errors import PlanError
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Factors, LayerPatch, Patch
from emblema.models.adapter import Adapter
from emblema.store.keys import PatchKey

KIND = "residual-"


def residual_key(model: str, chunk: str, layer: int) -> PatchKey:
    """What the residual stream that enters a layer is found by."""
    return PatchKey.of(f"{KIND}{layer}", model, chunk)


def form_residual(adapter: Adapter, key: PatchKey, chunk: Chunk) -> tuple[Patch, int]:
    """The piece of a key that `residual_key` gave, and the rows that were run to have it."""
    layer = int(key.kind.removeprefix(KIND))
    stream = adapter.residual(chunk.encoded, layer)
    nothing = Factors(stream.new_empty(chunk.tokens, 0), stream.new_empty(0, 0))
    held = LayerPatch(Factors(stream, stream.new_empty(stream.shape[1], 0)), nothing)
    return Patch(tuple(held if index == layer else None for index in range(len(adapter.layouts)))), chunk.tokens


def residual_stream(piece: Patch) -> Tensor:
    """The stream [tokens, hidden] of a piece that `form_residual` made.

    Raises:
        PlanError: it is something else.
    """
    held = [layer for layer in piece.layers if layer is not None]
    if len(held) != 1 or not torch.is_tensor(held[0].keys.left) or held[0].keys.right.shape[1] != 0:
        raise PlanError("a patch was handed over in place of a residual stream")
    return held[0].keys.left

"""Chunks and patches of chosen sizes."""

import torch

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import KVRows, LayerRows
from emblema.kv.patch import Factors, LayerPatch, Patch


def rows(tokens: int, layers: int = 1) -> KVRows:
    """Rows of 16 bytes a token and layer."""
    return tuple(LayerRows(torch.zeros(1, tokens, 2), torch.zeros(1, tokens, 2)) for _ in range(layers))


def chunk(name: str, tokens: int = 5) -> Chunk:
    """A chunk of 20 bytes a token: 16 of rows, 4 of embeddings."""
    encoded = Encoded(
        torch.zeros(tokens, dtype=torch.long),
        torch.zeros(tokens, 1),
        torch.arange(tokens)[None],
        tokens,
        torch.ones(tokens, dtype=torch.bool),
        (),
        torch.full((tokens,), -1),
    )
    return Chunk(name, "image", "model", encoded, rows(tokens))


def patch(rank: int = 1) -> Patch:
    """A patch of 40 bytes a rank."""
    factors = Factors(torch.zeros(3, rank), torch.zeros(rank, 2))
    return Patch((LayerPatch(factors, factors),))

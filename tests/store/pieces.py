"""Chunks and patches of chosen sizes."""

from dataclasses import replace

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


def name(number: int) -> str:
    """A chunk's id as the slower tiers take it."""
    return f"{number:064x}"


def numbered(number: int, tokens: int = 5, layers: int = 3) -> Chunk:
    """A chunk that a number can be read from: in every element of every layer's rows, `number + layer / 8`."""
    layered = tuple(
        LayerRows(torch.full((1, tokens, 2), number + layer / 8), torch.full((1, tokens, 2), -number - layer / 8))
        for layer in range(layers)
    )
    return replace(chunk(name(number), tokens), rows=layered)


def is_numbered(number: int, found: KVRows, layers: int = 3) -> bool:
    """Whether rows are those of the numbered chunk; waits for what is under way."""
    return len(found) == layers and all(
        bool((layer.keys == number + index / 8).all() and (layer.values == -number - index / 8).all())
        for index, layer in enumerate(found)
    )

"""Chunks with random rows, for measurements that need bytes and no model."""

from dataclasses import dataclass

import numpy as np
import torch

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows

MODEL = "0" * 64
"""The fingerprint of the model that never was."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How much KV a token has: layers of `heads` heads of `width` features, keys and values, in bfloat16."""

    layers: int
    heads: int
    width: int
    hidden: int

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.heads * self.width * torch.bfloat16.itemsize


SEVEN_BILLION = Shape(layers=28, heads=4, width=128, hidden=3584)
"""The KV of Qwen2.5-VL-7B."""
SMALL = Shape(layers=2, heads=2, width=16, hidden=32)


def random_chunk(tokens: int, random: np.random.Generator, shape: Shape = SMALL) -> Chunk:
    """A chunk of normally distributed rows under an id of its own."""
    generator = torch.Generator().manual_seed(int(random.integers(2**62)))

    def numbers(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(torch.bfloat16)

    encoded = Encoded(
        token_ids=torch.zeros(tokens, dtype=torch.int64),
        embeds=numbers(tokens, shape.hidden),
        positions=torch.arange(tokens).repeat(3, 1),
        span=tokens,
        visual=torch.ones(tokens, dtype=torch.bool),
        deepstack=(),
        groups=torch.full((tokens,), -1, dtype=torch.int64),
    )
    size = (shape.heads, tokens, shape.width)
    rows = tuple(LayerRows(numbers(*size), numbers(*size)) for _ in range(shape.layers))
    return Chunk(random.bytes(32).hex(), "image", MODEL, encoded, rows)

"""What turns chunks and queries into vectors."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray

from emblema.kv.chunk import Chunk
from emblema.models.adapter import Adapter

Vectors = NDArray[numpy.float32]


class Embedder(Protocol):
    """Vectors of chunks and of queries in one space, where a larger inner product is nearer."""

    @property
    def name(self) -> str:
        """Everything that shapes the vectors: those made under another name are made again."""

    def chunk(self, chunk: Chunk) -> Vectors:
        """One or several vectors [vectors, width] of a chunk."""

    def query(self, text: str) -> Vectors:
        """One or several vectors [vectors, width] of a query, for each of which a chunk's nearest counts."""


class MeanEmbedder:
    """The plain one: the mean of what the decoder is fed, of unit length.

    Args:
        adapter: the model's.
        read: a text to token ids.
    """

    def __init__(self, adapter: Adapter, read: Callable[[str], Sequence[int]]) -> None:
        self._adapter, self._read = adapter, read

    @property
    def name(self) -> str:
        return "mean of embeddings/1"

    def chunk(self, chunk: Chunk) -> Vectors:
        embeds, visual = chunk.encoded.embeds, chunk.encoded.visual
        return _unit(embeds[visual] if bool(visual.any()) else embeds)

    def query(self, text: str) -> Vectors:
        return _unit(self._adapter.embed(torch.tensor(list(self._read(text)), dtype=torch.int64)))


def _unit(embeds: torch.Tensor) -> Vectors:
    mean = embeds.float().mean(0, keepdim=True)
    vectors: Vectors = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
    return vectors

"""What turns chunks and queries into vectors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from emblema.kv.chunk import Chunk
from emblema.models.adapter import Adapter
from emblema.models.queries import key_states, queries

Vectors = NDArray[numpy.float32]


class Embedder(Protocol):
    """Vectors of chunks and of queries in one space, where a larger inner product is nearer."""

    @property
    def name(self) -> str:
        """Everything that shapes the vectors: those made under another name are made again."""

    def chunk(self, chunk: Chunk) -> Vectors:
        """Return one or several vectors [vectors, width] of a chunk."""

    def query(self, text: str) -> Vectors:
        """Return one or several vectors [vectors, width] of a query, for each of which a chunk's nearest counts."""


SUMMARY = 8
"""Keys that a chunk is summarised by."""
PROBES, DRAWS = 32, 8
"""Tokens that stand for questions while a space is chosen, and how often they are drawn."""


@dataclass(frozen=True, slots=True)
class Space:
    """Where queries and keys meet: a layer, and one of its query heads with the key head that it asks."""

    layer: int
    head: int


class AttentionEmbedder:
    """Query states of a question's tokens, and a chunk's farthest keys, in one space.

    Args:
        adapter: the model's; `query` runs it, so only the thread that owns the model may search.
        read: a text to token ids.
        space: which head; `choose_space` finds it.
        summary: keys kept of a chunk.
    """

    def __init__(
        self, adapter: Adapter, read: Callable[[str], Sequence[int]], space: Space, summary: int = SUMMARY
    ) -> None:
        self._adapter, self._read, self.space, self.summary = adapter, read, space, summary

    @property
    def name(self) -> str:
        return f"attention/{self.space.layer}.{self.space.head}/{self.summary} farthest keys/1"

    def chunk(self, chunk: Chunk) -> Vectors:
        keys = key_states(self._adapter, chunk.encoded, chunk.rows, self.space.layer)
        group = max(1, self._heads // keys.shape[0])
        key = keys[min(self.space.head // group, keys.shape[0] - 1)]
        vectors: Vectors = farthest(key[None], self.summary)[0].cpu().numpy()
        return vectors

    def query(self, text: str) -> Vectors:
        states = queries(self._adapter, list(self._read(text)))[self.space.layer]
        vectors: Vectors = states[self.space.head].cpu().numpy()
        return vectors

    @property
    def _heads(self) -> int:
        return int(self._adapter.config.num_attention_heads)


def farthest(keys: Tensor, count: int) -> Tensor:
    """Return, per head of keys [heads, tokens, width], the mean and the `count` - 1 farthest from it and each other."""
    mean = keys.mean(1)
    chosen = [mean]
    distance = (keys - mean[:, None]).norm(dim=-1)
    for _ in range(min(count - 1, keys.shape[1])):
        index = distance.argmax(-1)
        key = keys.gather(1, index[:, None, None].expand(-1, 1, keys.shape[-1]))
        chosen.append(key[:, 0])
        distance = torch.minimum(distance, (keys - key).norm(dim=-1))
    return torch.stack(chosen, 1)


def choose_space(adapter: Adapter, chunks: Sequence[Chunk], summary: int = SUMMARY) -> Space:
    """Choose the head that answers different questions with different chunks, without labels.

    Tokens drawn from the vocabulary stand for questions. Of each head's scores, the share of variance is taken that
    belongs to neither the question nor the chunk alone: a head that likes one chunk whatever is asked has none of it.
    One draw may mislead, so the shares of several are averaged.
    """
    vocabulary = int(adapter.decoder.get_input_embeddings().num_embeddings)
    # Convolutions and linear attention keep rows that no query meets.
    attended = [layer for layer, layout in enumerate(adapter.layouts) if layout.kind in ("heads", "latent")]
    summaries = {
        layer: torch.stack(
            [
                _padded(farthest(key_states(adapter, chunk.encoded, chunk.rows, layer), summary), summary)
                for chunk in chunks
            ]
        )
        for layer in attended
    }
    shares: dict[Space, float] = {}
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        asked = queries(adapter, torch.randperm(vocabulary, generator=generator)[:PROBES])
        for layer in attended:
            for head, share in enumerate(answering(asked[layer], summaries[layer]).tolist()):
                shares[Space(layer, head)] = shares.get(Space(layer, head), 0.0) + share
    return max(shares, key=lambda space: shares[space])


def answering(states: Tensor, summaries: Tensor) -> Tensor:
    """Per head, the share of its scores' variance that lies in which question meets which chunk.

    Args:
        states: of questions, [query heads, questions, width].
        summaries: of chunks, [chunks, key heads, keys, width].
    """
    keys = summaries.repeat_interleave(states.shape[0] // summaries.shape[1], dim=1)
    scores = torch.einsum("hqw,chkw->hqck", states, keys).amax(-1)
    centred = scores - scores.mean((1, 2), keepdim=True)
    own = centred - centred.mean(1, keepdim=True) - centred.mean(2, keepdim=True)
    return own.square().mean((1, 2)) / centred.square().mean((1, 2)).clamp_min(1e-12)


def _padded(keys: Tensor, count: int) -> Tensor:
    """Summaries [heads, count, width] of chunks with fewer tokens than that: the last key is repeated."""
    return torch.cat((keys, keys[:, -1:].expand(-1, count - keys.shape[1], -1)), dim=1)

"""A chunk: a piece of media or text with its own KV, kept without a place in any prompt."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from emblema.kv.layout import KVRows, all_finite, kv_bytes, rows_finite

ChunkKind = Literal["image", "video", "page", "audio", "text"]


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a decoder is fed for one chunk, start and end markers included.

    Embeddings and features are on the device that they are used on; all else is on the CPU, which plans by it.

    Attributes:
        token_ids: [tokens] int64, placeholder ids at media tokens.
        embeds: [tokens, hidden] in the model's dtype.
        positions: [axes, tokens] int64, counted from the chunk's start; one axis, or three for M-RoPE.
        span: the position after the chunk, counted from its start.
        visual: [tokens] bool, rows that carry media features.
        deepstack: per early decoder layer, [visual tokens, hidden] features added after that layer; empty for most.
        groups: [tokens] int64, rows of one group (>= 0) attend each other both ways; -1 is causal.
    """

    token_ids: Tensor
    embeds: Tensor
    positions: Tensor
    span: int
    visual: Tensor
    deepstack: tuple[Tensor, ...]
    groups: Tensor

    @property
    def tokens(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def bytes(self) -> int:
        return self.embeds.nbytes + sum(features.nbytes for features in self.deepstack)

    @property
    def made(self) -> "Encoded":
        """What the encoder has made, once it has."""
        return self


class DeferredEncoded(Encoded):
    """What the encoder will make of a piece of media: it runs when embeddings or features are first asked for.

    Args:
        like: of a piece that has the same tokens and places.
        encode: runs the encoder; it is dropped once it has.
    """

    __slots__ = ("_encode", "_made")
    _encode: Callable[[], Encoded] | None
    _made: Encoded

    def __init__(self, like: Encoded, encode: Callable[[], Encoded]) -> None:
        for name in ("token_ids", "positions", "span", "visual", "groups"):
            object.__setattr__(self, name, getattr(like, name))
        object.__setattr__(self, "_made", like)
        object.__setattr__(self, "_encode", encode)

    @property
    def made(self) -> Encoded:
        if self._encode is not None:
            object.__setattr__(self, "_made", self._encode())
            object.__setattr__(self, "_encode", None)
        return self._made

    @property
    def embeds(self) -> Tensor:
        """See `Encoded`."""
        return self.made.embeds

    @property
    def deepstack(self) -> tuple[Tensor, ...]:
        """See `Encoded`."""
        return self.made.deepstack

    @property
    def bytes(self) -> int:
        return self._made.bytes


@dataclass(frozen=True, slots=True, eq=False)
class EncodedChunk:
    """What the encoder made of one piece of media, to be kept in place of its KV and prefilled later.

    Attributes:
        id: the id of the chunk that it becomes.
        kind: what the piece is.
        owner: digest of the model, dtype and tenant that it was made for.
        encoded: what the decoder will be fed.
    """

    id: str
    kind: ChunkKind
    owner: str
    encoded: Encoded

    @property
    def bytes(self) -> int:
        return self.encoded.bytes


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Canonical KV of one piece of media: prefilled alone from position 0, rows as first written.

    Attributes:
        id: 256-bit digest, hex (see `store.identity`).
        kind: what the piece is.
        model: fingerprint of the model that made it.
        encoded: what the decoder was fed; its positions are the canonical ones.
        rows: per layer, the canonical rows; of a chunk that a store keeps, read from there when they are used.
        base: the position that its rows were first written from; 0 for canonical ones.
    """

    id: str
    kind: ChunkKind
    model: str
    encoded: Encoded
    rows: KVRows
    base: int = 0

    @property
    def tokens(self) -> int:
        return self.encoded.tokens

    @property
    def bytes(self) -> int:
        """Bytes of the canonical KV; the kept embeddings are `encoded.bytes`."""
        return kv_bytes(self.rows)

    @property
    def finite(self) -> bool:
        """Whether no number of its rows or embeddings is NaN or infinite; rows under way are waited for."""
        return rows_finite(self.rows) and all_finite((self.encoded.embeds, *self.encoded.deepstack))

    def __repr__(self) -> str:
        return f"Chunk({self.id[:12]}, {self.kind}, {self.tokens} tokens, {self.bytes} bytes)"


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """Chunks that belong together, in order: the segments of a video, or the pages of a document.

    Attributes:
        id: digest of the members' ids, hex.
        kind: `video` or `document`.
        chunks: the members.
    """

    id: str
    kind: Literal["video", "document"]
    chunks: tuple[Chunk, ...]

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def bytes(self) -> int:
        """Bytes of the members' canonical KV."""
        return sum(chunk.bytes for chunk in self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.chunks)

    def __getitem__(self, index: int) -> Chunk:
        return self.chunks[index]

    def __repr__(self) -> str:
        return f"Clip({self.id[:12]}, {self.kind}, {len(self)} chunks, {self.tokens} tokens, {self.bytes} bytes)"

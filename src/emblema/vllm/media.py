"""From what vLLM knows of a request to a prompt of this project: each picture a chunk with its id and its positions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from emblema.kv.chunk import Chunk, Encoded
from emblema.link.prompt import ChunkPart, Prompt, Segment, TextPart
from emblema.models.positions import Grid, chunk_positions
from emblema.store.identity import chunk_id
from emblema.vllm.shape import Shape


@dataclass(frozen=True, slots=True)
class Item:
    """A piece of media in a request, as vLLM placed it.

    Attributes:
        index: its place among the request's media.
        kind: `image`, `video`, ….
        identifier: vLLM's digest of its content and of the processor's options.
        start: row of its first token.
        tokens: how many rows it takes.
        grid: frames, height and width in patches, where the model places media on a grid.
    """

    index: int
    kind: str
    identifier: str
    start: int
    tokens: int
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What there is to know of a request.

    Attributes:
        id: vLLM's id of it.
        token_ids: the prompt's, placeholders written out.
        items: its media in order.
        salt: the tenant's `cache_salt`.
        wishes: `kv_transfer_params["emblema"]`.
        refusal: why it has to be computed plainly, whatever is stored; None where nothing speaks against linking.
        source: the engine's own request, which only the engine's side looks into.
    """

    id: str
    token_ids: Sequence[int]
    items: tuple[Item, ...]
    salt: str | None = None
    wishes: Mapping[str, Any] = field(default_factory=dict)
    refusal: str | None = None
    source: Any = None

    @property
    def store_salt(self) -> bytes:
        """The salt of the tenant's view of a store."""
        return b"" if self.salt is None else self.salt.encode()


def prompt_of(asked: Asked, shape: Shape) -> Prompt:
    """The request's prompt, with a stub of a chunk for each piece of media: id, tokens, positions, and no rows."""
    segments: list[Segment] = []
    row = position = 0
    for item in asked.items:
        start, stop = span_of(item, asked.token_ids, shape)
        if start > row:
            segments.append(Segment(TextPart(tuple(asked.token_ids[row:start])), row, position))
            position += start - row
        chunk = stub(item, asked.token_ids[start:stop], item.start - start, asked.store_salt, shape)
        segments.append(Segment(ChunkPart(chunk), start, position))
        row, position = stop, position + chunk.encoded.span
    if row < len(asked.token_ids):
        segments.append(Segment(TextPart(tuple(asked.token_ids[row:])), row, position))
        position += len(asked.token_ids) - row
    return Prompt(tuple(segments), shape.axes, position)


def span_of(item: Item, token_ids: Sequence[int], shape: Shape) -> tuple[int, int]:
    """The rows of a piece with the family's markers around it, where they stand."""
    before, after = shape.markers
    start, stop = item.start - len(before), item.start + item.tokens + len(after)
    marked = start >= 0 and tuple(token_ids[start : item.start]) == before
    marked = marked and tuple(token_ids[item.start + item.tokens : stop]) == after
    return (start, stop) if marked else (item.start, item.start + item.tokens)


def stub(item: Item, token_ids: Sequence[int], lead: int, salt: bytes, shape: Shape) -> Chunk:
    """A chunk that is known by its id and its geometry; `lead` tokens stand before its media tokens."""
    grids: tuple[Grid, ...] = ()
    if item.grid is not None and shape.axes > 1:
        frames, height, width = item.grid
        grids = (Grid(lead, frames, height // shape.merge, width // shape.merge),)
    positions, span = chunk_positions(len(token_ids), shape.axes, grids)
    ids = torch.tensor(list(token_ids), dtype=torch.int64)
    visual = torch.zeros(len(token_ids), dtype=torch.bool)
    visual[lead : lead + item.tokens] = True
    none = torch.full((len(token_ids),), -1, dtype=torch.int64)
    encoded = Encoded(ids, torch.empty(len(token_ids), 0, dtype=shape.dtype), positions, span, visual, (), none)
    name = chunk_id(
        (item.kind.encode(), item.identifier.encode(), numpy.asarray(token_ids, dtype="<i8").tobytes()),
        options={},
        model_fingerprint=shape.fingerprint,
        dtype=shape.dtype,
        adapter_version=shape.version,
        geometry=item.grid or (),
        salt=salt,
    )
    return Chunk(name, "image", shape.fingerprint, encoded, ())

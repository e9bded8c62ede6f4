"""A request's prompt as text and chunks that have an id and a geometry, and no rows."""

from collections.abc import Hashable, Sequence

import numpy
import torch

from emblema.kv.chunk import Chunk, Encoded
from emblema.latest import LatestDict
from emblema.link.prompt import ChunkPart, Part, Prompt, TextPart
from emblema.models.positions import Grid, chunk_positions
from emblema.served.model_spec import ModelSpec
from emblema.served.requests import MediaItem, ServedRequest
from emblema.store.identity import ChunkIds

REMEMBERED_STUBS = 1024


class ChunkStubs:
    """Chunks that have an id and a geometry, and no rows; those made last are remembered.

    Args:
        spec: of the model.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._made: LatestDict[Hashable, Chunk] = LatestDict(REMEMBERED_STUBS)

    def make(self, item: MediaItem, token_ids: Sequence[int], lead: int, salt: bytes) -> Chunk:
        """Return the chunk of a picture or clip; `lead` tokens come before its own."""
        key = (item.kind, item.digest, item.tokens, item.grid, item.seconds, item.runs, tuple(token_ids), lead, salt)
        return self._made.latest(key, lambda: _chunk_stub(item, token_ids, lead, salt, self.spec))


def build_prompt(request: ServedRequest, stubs: ChunkStubs) -> Prompt:
    """Return the request's prompt, with a chunk for each picture that has an id, tokens and positions, and no rows.

    A chunk has the family's markers around its picture too, where the prompt has them.
    """
    tokens, (before, after), salt = request.token_ids, stubs.spec.markers, request.store_salt
    parts: list[Part] = []
    row = 0
    for item in request.items:
        start, stop = item.start - len(before), item.start + item.tokens + len(after)
        if start < 0 or (*tokens[start : item.start], *tokens[item.start + item.tokens : stop]) != (*before, *after):
            start, stop = item.start, item.start + item.tokens
        parts.append(TextPart(tuple(tokens[row:start])))
        parts.append(ChunkPart(stubs.make(item, tokens[start:stop], item.start - start, salt)))
        row = stop
    return Prompt.of([*parts, TextPart(tuple(tokens[row:]))], stubs.spec.axes)


def _chunk_stub(item: MediaItem, token_ids: Sequence[int], lead: int, salt: bytes, spec: ModelSpec) -> Chunk:
    tokens = len(token_ids)
    positions, span = chunk_positions(tokens, spec.axes, _grids(item, lead, spec))
    visual = torch.zeros(tokens, dtype=torch.bool)
    for start, stop in item.runs or ((0, item.tokens),):
        visual[lead + start : lead + stop] = True
    encoded = Encoded(
        torch.tensor(list(token_ids), dtype=torch.int64),
        torch.empty(tokens, 0, dtype=spec.dtype),
        positions,
        span,
        visual,
        (),
        torch.full((tokens,), -1, dtype=torch.int64),
    )
    name = chunk_ids(item, token_ids, salt, spec).of(spec.fingerprint, spec.dtype)
    return Chunk(name, "video" if item.kind == "video" else "image", spec.fingerprint, encoded, ())


def chunk_ids(item: MediaItem, token_ids: Sequence[int], salt: bytes, spec: ModelSpec) -> ChunkIds:
    return ChunkIds(
        (item.kind.encode(), item.digest.encode(), numpy.asarray(token_ids, dtype="<i8").tobytes()),
        options={} if item.seconds is None else {"seconds": item.seconds},
        version=spec.version,
        geometry=item.grid or (),
        anchor=spec.anchor,
        salt=salt,
    )


def _grids(item: MediaItem, lead: int, spec: ModelSpec) -> tuple[Grid, ...]:
    """Return where the engine places an item's media tokens on grids: a clip with time stamps on one for each step."""
    if item.grid is None or spec.axes == 1:
        return ()
    frames, height, width = item.grid[0], item.grid[1] // spec.merge, item.grid[2] // spec.merge
    if item.runs:
        return tuple(Grid(lead + start, 1, height, width) for start, _ in item.runs)
    interval = 1.0 if item.kind != "video" else (1.0 if item.seconds is None else item.seconds) * spec.tokens_per_second
    # As vLLM, which rounds down without slack.
    return (Grid(lead, frames, height, width, interval, 0.0),)

"""What libraries keep of an item, and what they answer."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from emblema.errors import StoreError
from emblema.kv.chunk import Chunk, Clip

ChunkOrClip = Chunk | Clip
NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class SourceNote:
    """Where an item's media can be read again.

    Attributes:
        digest: of the kept bytes, hex; empty where nothing was kept.
        bytes: kept.
        address: of media that are fetched instead.
        options: what the media are added with, JSON values.
    """

    digest: str = ""
    bytes: int = 0
    address: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """An item of a library.

    Attributes:
        name: unique in its library.
        id: of the chunk or clip.
        kind: what it is: a chunk's kind, or `document` or `video` for a clip.
        chunks: ids of its chunks, in order.
        clip: whether it is a clip, also where that has one chunk.
        tokens, bytes: of its chunks' KV.
        created: Unix time in seconds.
        expires: Unix time in seconds; None never.
        source: where its media can be read again; None nowhere.
    """

    name: str
    id: str
    kind: str
    chunks: tuple[str, ...]
    clip: bool
    tokens: int
    bytes: int
    created: float
    expires: float | None = None
    source: SourceNote | None = None

    @classmethod
    def of(
        cls,
        name: str,
        piece: ChunkOrClip,
        created: float,
        expires: float | None = None,
        source: SourceNote | None = None,
    ) -> "Listing":
        """Return the listing of a piece."""
        chunks = tuple(chunk.id for chunk in chunks_of(piece))
        clip = not isinstance(piece, Chunk)
        return cls(name, piece.id, piece.kind, chunks, clip, piece.tokens, piece.bytes, created, expires, source)

    def json(self) -> str:
        """Return the listing as text."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, text: str) -> "Listing":
        """Return the listing of a text that `json` wrote.

        Raises:
            ValueError: it is another text.
        """
        try:
            fields = json.loads(text)
            source = fields.pop("source")
            fields["chunks"] = tuple(fields["chunks"])
            return cls(**fields, source=None if source is None else SourceNote(**source))
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"no listing: {error}") from error


@dataclass(frozen=True, slots=True)
class LibraryItem:
    """A source with the options that it is added with.

    Attributes:
        piece: what was made of it already; None where it is still to be added.
    """

    source: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    piece: ChunkOrClip | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found for a query.

    Attributes:
        name: of the item that it belongs to.
        index: its place in that item, 0 for a single chunk.
        chunk: usable as a part of a prompt.
        score: larger is nearer; comparable within one search only.
    """

    name: str
    index: int
    chunk: Chunk
    score: float


def checked_name(name: object) -> str:
    """Return the name if it is valid.

    Raises:
        StoreError: it is empty, too long, or holds characters that cannot be read.
    """
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_LENGTH or not name.isprintable():
        raise StoreError(
            f"{str(name)[:40]!r} is no name for a library's item: give 1 to {NAME_LENGTH} printable characters"
        )
    return name


def chunks_of(piece: ChunkOrClip) -> tuple[Chunk, ...]:
    """Return the chunks of a piece, in order."""
    return piece.chunks if isinstance(piece, Clip) else (piece,)

"""Parts of a window, their members, and the rows written for them. All immutable, so that forks share them."""

from dataclasses import dataclass, field, replace

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.patch import Patch


@dataclass(frozen=True, slots=True)
class PartHandle:
    """A part's name in its window, and in that window's forks.

    Attributes:
        number: parts are numbered as they come.
        kind: `text`, `image`, `page`, `audio`, `video` or `document`.
        tokens: how many rows the part takes.
        family: id of the window, with its forks, that it belongs to.
    """

    number: int
    kind: str
    tokens: int
    family: str = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class PartMember:
    """A run of text or one chunk; a clip has several.

    Attributes:
        encoded: the decoder's input.
        chunk: the chunk's handle; None for text.
        text: a text as a string; None for a chunk, and for text that was given as token ids.
    """

    encoded: Encoded
    chunk: Chunk | None = None
    text: str | None = None

    @property
    def tokens(self) -> int:
        return self.encoded.tokens

    @property
    def source(self) -> str:
        """Id of the chunk; empty for text."""
        return "" if self.chunk is None else self.chunk.id

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.encoded.token_ids.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class WrittenRows:
    """A part's rows as first written.

    Attributes:
        pieces: for each member, a chunk that holds its rows; its `base` is the position they were written at.
        version: unique to this writing.
        preceding: number and version of the parts before it when the rows were written, in order.
        absorbed: ids of every chunk that the rows may hold something of, their own included.
        repairs: for each piece a patch added to its rows when they are read, or None; empty for rows without.
    """

    pieces: tuple[Chunk, ...]
    version: int
    preceding: tuple[tuple[int, int], ...]
    absorbed: frozenset[str]
    repairs: tuple[Patch | None, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of the rows, without `repair_bytes`."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def repair_bytes(self) -> int:
        return sum(patch.bytes for patch in self.repairs if patch is not None)

    @property
    def finite(self) -> bool:
        """Whether no number of the rows or of their repairs is NaN or infinite."""
        repaired = all(patch.finite for patch in self.repairs if patch is not None)
        return repaired and all(piece.finite for piece in self.pieces)


@dataclass(frozen=True, slots=True, eq=False)
class WindowPart:
    """One thing that was appended.

    Attributes:
        handle: its name.
        members: in order; they move together.
        pinned: whether it stays when the window slides.
        rows: its rows; None until a question has computed them.
    """

    handle: PartHandle
    members: tuple[PartMember, ...]
    pinned: bool = False
    rows: WrittenRows | None = None

    @property
    def number(self) -> int:
        return self.handle.number

    @property
    def tokens(self) -> int:
        return self.handle.tokens

    @property
    def sources(self) -> tuple[str, ...]:
        """Ids of its chunks, in order."""
        return tuple(member.source for member in self.members if member.chunk is not None)

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of its chunks; `text` for text."""
        return frozenset("text" if member.chunk is None else member.chunk.kind for member in self.members)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of the encoder's output, from which the part can be computed again without the encoder."""
        return sum(member.encoded.bytes for member in self.members if member.chunk is not None)

    def without_rows(self) -> "WindowPart":
        """Return the part without rows."""
        return self if self.rows is None else replace(self, rows=None)

"""What a window is made of: parts, their members, and the rows written for them. Immutable, so forks share them."""

from dataclasses import dataclass, field, replace

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.patch import Patch
from emblema.session.chat_template import TokenIds


@dataclass(frozen=True, slots=True)
class Handle:
    """A part's name in its window, and in that window's forks.

    Attributes:
        number: parts are numbered as they come.
        kind: `text`, `image`, `page`, `audio`, `video` or `document`.
        tokens: how many rows the part takes.
        family: the window, with its forks, that it belongs to.
    """

    number: int
    kind: str
    tokens: int
    family: str = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A run of text or one chunk; a clip has several.

    Attributes:
        encoded: what the decoder is fed.
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
    def token_ids(self) -> TokenIds:
        return tuple(self.encoded.token_ids.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """A part's rows as first written.

    Attributes:
        pieces: for each member, a chunk that holds its rows; its `base` is where they were written.
        version: no two writings have the same.
        behind: number and version of the parts that stood before, in order.
        absorbed: ids of every chunk that the rows may hold something of, their own included.
        repairs: for each piece what is added to its rows where they are read, or None; empty for rows without.
    """

    pieces: tuple[Chunk, ...]
    version: int
    behind: tuple[tuple[int, int], ...]
    absorbed: frozenset[str]
    repairs: tuple[Patch | None, ...] = ()

    @property
    def bytes(self) -> int:
        """Of the rows; `repair_bytes` come on top."""
        return sum(piece.bytes for piece in self.pieces)

    @property
    def repair_bytes(self) -> int:
        return sum(patch.bytes for patch in self.repairs if patch is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One thing that was appended.

    Attributes:
        handle: its name.
        members: in order; they move together.
        pinned: whether it stays when the window slides.
        written: its rows; None until an answer has computed them.
    """

    handle: Handle
    members: tuple[Member, ...]
    pinned: bool = False
    written: Written | None = None

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
        """What its chunks are; of text `text`."""
        return frozenset("text" if member.chunk is None else member.chunk.kind for member in self.members)

    @property
    def embedding_bytes(self) -> int:
        """Bytes of what the encoder made, from which the part can be computed again without it."""
        return sum(member.encoded.bytes for member in self.members if member.chunk is not None)

    def bare(self) -> "Part":
        """The part without rows."""
        return self if self.written is None else replace(self, written=None)

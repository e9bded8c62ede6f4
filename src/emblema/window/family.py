"""What a window shares with its forks: names, versions, and the rows that more than one of them holds."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from uuid import uuid4

from emblema.window.parts import Handle
from emblema.window.state import State


class Family:
    """Names parts and rows, so that no two of a window and its forks mean different things by one name."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self._numbers, self._versions = count(1), count(1)
        self._named = 0

    def handle(self, kind: str, tokens: int) -> Handle:
        """A name for a new part."""
        self._named = next(self._numbers)
        return Handle(self._named, kind, tokens, self.name)

    def version(self) -> int:
        """A number that no rows have yet."""
        return next(self._versions)

    def named(self, handle: Handle) -> bool:
        """Whether a part of this name ever was in the family."""
        return handle.family == self.name and 0 < handle.number <= self._named


@dataclass(frozen=True, slots=True)
class Memory:
    """What a window holds, in bytes.

    Attributes:
        rows: rows that are written.
        repairs: factors kept beside them.
        embeddings: what the encoder made of the parts in the window.
        departed: what the encoder made of parts that have left and can be recalled.
        departed_rows: what their rows would take; they are not held.
    """

    rows: int
    repairs: int
    embeddings: int
    departed: int
    departed_rows: int


def memory_of(state: State, row_bytes: int) -> Memory:
    """A state's bytes by what they are; a picture that stands in it twice counts twice."""
    return Memory(
        sum(one.bytes for one in state.written),
        sum(one.repair_bytes for one in state.written),
        sum(part.embedding_bytes for part in state.parts),
        sum(part.embedding_bytes for part in state.departed),
        row_bytes * sum(part.tokens for part in state.departed),
    )


def bytes_of(states: Iterable[State]) -> int:
    """Bytes of the parts' rows, repairs and embeddings, each counted once, however many of the states hold it."""
    found: dict[int, int] = {}
    for state in states:
        for written in state.written:
            found.update((id(piece), piece.bytes) for piece in written.pieces)
            found.update((id(patch), patch.bytes) for patch in written.repairs if patch is not None)
        for part in state.parts:
            found.update((id(one.encoded), one.encoded.bytes) for one in part.members if one.chunk is not None)
    return sum(found.values())

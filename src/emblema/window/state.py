"""All that a window holds at one time, as plain data: a snapshot is a reference to it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal
from uuid import uuid4

from emblema.errors import WindowError
from emblema.kv.chunk import Chunk
from emblema.session.turn_tokenizer import PrecedingText
from emblema.window.parts import PartHandle, WindowPart, WrittenRows

RowView = Literal["conditioned", "clean"]


@dataclass(frozen=True, slots=True)
class WindowMemory:
    """What a window holds, in bytes.

    Attributes:
        rows: rows that are written.
        repairs: factors kept beside them.
        embeddings: encoder output of the parts in the window.
        evicted: encoder output of parts that have left and can be recalled.
        evicted_rows: what the rows of those parts would take; they are not held.
    """

    rows: int
    repairs: int
    embeddings: int
    evicted: int
    evicted_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class WindowState:
    """Parts in order.

    Attributes:
        opening: the template's text before the first part; None without one.
        parts: what is in the window.
        evicted: what has left it and can be recalled, the longest gone first; without rows.
    """

    opening: WindowPart | None
    parts: tuple[WindowPart, ...] = ()
    evicted: tuple[WindowPart, ...] = ()

    @property
    def all_parts(self) -> tuple[WindowPart, ...]:
        """The opening and the parts."""
        return self.parts if self.opening is None else (self.opening, *self.parts)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.all_parts)

    @property
    def rows(self) -> Iterator[WrittenRows]:
        """The rows of all parts that have some."""
        return (part.rows for part in self.all_parts if part.rows is not None)

    @property
    def sources(self) -> frozenset[str]:
        """Ids of every chunk that is here, has left, or may have left something in the rows."""
        parts = (*self.parts, *self.evicted)
        return frozenset(id for part in parts for id in part.sources).union(*(rows.absorbed for rows in self.rows))

    def memory(self, row_bytes: int) -> WindowMemory:
        """Return the state's bytes by what they are; a picture that is in it twice counts twice."""
        return WindowMemory(
            sum(rows.bytes for rows in self.rows),
            sum(rows.repair_bytes for rows in self.rows),
            sum(part.embedding_bytes for part in self.parts),
            sum(part.embedding_bytes for part in self.evicted),
            row_bytes * sum(part.tokens for part in self.evicted),
        )

    def find_chunk(self, ids: Iterable[str]) -> Chunk | None:
        """Return a chunk of one of the ids, where a part in the window, or one that has left, has it encoded."""
        members = [member for part in (*self.parts, *self.evicted) for member in part.members]
        known = {member.source: member.chunk for member in members if member.chunk is not None}
        return next((known[id] for id in ids if id in known), None)

    def last_text(self) -> PrecedingText:
        """Return the text at the window's end."""
        texts: list[str] = []
        ids: list[int] = []
        for part in reversed(self.parts):
            for member in reversed(part.members):
                if member.text is None:
                    return PrecedingText(tuple(reversed(texts)), tuple(ids), False)
                texts.append(member.text)
                ids[:0] = member.token_ids
        front = () if self.opening is None else self.opening.members[0].token_ids
        return PrecedingText(tuple(reversed(texts)), (*front, *ids), True)

    def evict(self, leaving: Sequence[WindowPart]) -> "WindowState":
        """Return the state with parts evicted: their rows are dropped, their encoder output is kept."""
        handles = {part.handle for part in leaving}
        kept = tuple(part for part in self.parts if part.handle not in handles)
        return replace(self, parts=kept, evicted=(*self.evicted, *(part.without_rows() for part in leaving)))

    def rewrite(self, changes: Mapping[int, WrittenRows | None]) -> "WindowState":
        """Return the state with other rows, or none, for the parts of some numbers."""

        def changed(part: WindowPart) -> WindowPart:
            return replace(part, rows=changes[part.number]) if part.number in changes else part

        opening = None if self.opening is None else changed(self.opening)
        return replace(self, opening=opening, parts=tuple(changed(part) for part in self.parts))

    def forget(self, deleted: frozenset[str]) -> "WindowState":
        """Return the state without the parts of deleted chunks, and without rows that may hold something of them."""
        dead = {part.handle for part in (*self.parts, *self.evicted) if not deleted.isdisjoint(part.sources)}
        tainted = [part.number for part in self.all_parts if part.rows and not deleted.isdisjoint(part.rows.absorbed)]
        clean = self.rewrite(dict.fromkeys(tainted))
        return replace(
            clean,
            parts=tuple(part for part in clean.parts if part.handle not in dead),
            evicted=tuple(part for part in clean.evicted if part.handle not in dead),
        )


@dataclass(frozen=True, slots=True, eq=False)
class WindowSnapshot:
    """A window as it was. Its rows are shared with the window, not copied."""

    owner: str
    state: WindowState = field(repr=False)
    view: RowView


class WindowFamily:
    """A window with its forks: gives parts and rows numbers that are unique in all of them."""

    def __init__(self) -> None:
        self.name = uuid4().hex
        self._numbers, self._versions = count(1), count(1)
        self._last = 0

    def new_handle(self, kind: str, tokens: int) -> PartHandle:
        """Return a handle for a new part."""
        self._last = next(self._numbers)
        return PartHandle(self._last, kind, tokens, self.name)

    def new_version(self) -> int:
        """Return a version that no rows have yet."""
        return next(self._versions)

    def find(self, handle: PartHandle, state: WindowState, evicted: bool = False) -> WindowPart:
        """Return a part of a window of the family, with `evicted` also one that has left.

        Raises:
            WindowError: there is none.
        """
        parts = (*state.parts, *state.evicted) if evicted else state.parts
        found = next((part for part in parts if part.handle == handle), None)
        if found is None:
            raise WindowError(self.explain(handle, state))
        return found

    def explain(self, handle: PartHandle, state: WindowState) -> str:
        """Return where a part is instead of where its caller expects it."""
        if not isinstance(handle, PartHandle):
            return f"this is a {type(handle).__name__}: name a part by the handle that append gave"
        if any(part.handle == handle for part in state.parts):
            return f"part {handle.number} is in the window"
        if any(part.handle == handle for part in state.evicted):
            return f"part {handle.number} has left the window: recall it"
        if handle.family == self.name and 0 < handle.number <= self._last:
            return f"part {handle.number} is gone for good, or in a fork alone: append its source again"
        return f"part {handle.number} is of another window"


def count_bytes(states: Iterable[WindowState]) -> int:
    """Return bytes of the parts' rows, repairs and embeddings, each counted once, however many states hold it."""
    found: dict[int, int] = {}
    for state in states:
        for rows in state.rows:
            found.update((id(piece), piece.bytes) for piece in rows.pieces)
            found.update((id(patch), patch.bytes) for patch in rows.repairs if patch is not None)
        for part in state.parts:
            found.update(
                (id(member.encoded), member.encoded.bytes) for member in part.members if member.chunk is not None
            )
    return sum(found.values())

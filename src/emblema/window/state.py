"""All that a window holds at one time, and how it changes: plain data, so that a snapshot is a reference."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from emblema.session.turn_tokenizer import PrecedingText
from emblema.window.graph import Node
from emblema.window.parts import Part, Written


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Parts in order.

    Attributes:
        opening: the template's text in front of the first part; None without one.
        parts: what is in the window.
        departed: what has left it and can be recalled, the longest gone first; without rows.
    """

    opening: Part | None
    parts: tuple[Part, ...] = ()
    departed: tuple[Part, ...] = ()

    @property
    def all(self) -> tuple[Part, ...]:
        """The opening and the parts."""
        return self.parts if self.opening is None else (self.opening, *self.parts)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.all)

    @property
    def written(self) -> Iterator[Written]:
        """The rows that are there."""
        return (part.written for part in self.all if part.written is not None)

    def run(self) -> PrecedingText:
        """The text at the window's end."""
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

    def inserted(self, part: Part, at: int) -> "State":
        """With a part at a place."""
        return replace(self, parts=(*self.parts[:at], part, *self.parts[at:]))

    def without(self, leaving: Sequence[Part]) -> "State":
        """Parts gone, to be recalled: their rows are dropped, what they were encoded to is kept."""
        names = {part.handle for part in leaving}
        kept = tuple(part for part in self.parts if part.handle not in names)
        return replace(self, parts=kept, departed=(*self.departed, *(part.bare() for part in leaving)))

    def rewritten(self, changes: Mapping[int, Written | None]) -> "State":
        """With other rows, or none, for the parts of some numbers."""

        def changed(part: Part) -> Part:
            return replace(part, written=changes[part.number]) if part.number in changes else part

        opening = None if self.opening is None else changed(self.opening)
        return replace(self, opening=opening, parts=tuple(changed(part) for part in self.parts))

    def nodes(self) -> list[Node]:
        """The parts as the graph of who was written behind whom has them."""
        return [
            Node(part.number) if part.written is None else Node(part.number, part.written.version, part.written.behind)
            for part in self.all
        ]

    @property
    def sources(self) -> frozenset[str]:
        """Ids of every chunk that is here, has left, or may have left something in the rows."""
        parts = (*self.parts, *self.departed)
        return frozenset(id for part in parts for id in part.sources).union(*(one.absorbed for one in self.written))

    def forgetting(self, gone: frozenset[str]) -> "State":
        """Without the parts of some chunks, and without rows that may hold something of them."""
        dead = {part.handle for part in (*self.parts, *self.departed) if not gone.isdisjoint(part.sources)}
        stale = [part.number for part in self.all if part.written and not gone.isdisjoint(part.written.absorbed)]
        bare = self.rewritten(dict.fromkeys(stale))
        return replace(
            bare,
            parts=tuple(part for part in bare.parts if part.handle not in dead),
            departed=tuple(part for part in bare.departed if part.handle not in dead),
        )


View = Literal["conditioned", "clean"]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A window as it was. Its rows are shared with the window, not copied."""

    owner: str
    state: State = field(repr=False)
    view: View

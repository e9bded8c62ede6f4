"""What a window shows of what stands in it."""

from typing import Any, Generic
from uuid import uuid4

from emblema.errors import WindowError
from emblema.link.policy.policy import Lane
from emblema.link.strategies.base import Strategy
from emblema.window.budget import WindowBudget
from emblema.window.family import Family, Memory, bytes_of, memory_of
from emblema.window.graph import Cascade, Staleness, dependents, forming_order, measured, staleness
from emblema.window.log import Entry
from emblema.window.parts import Handle
from emblema.window.seam import A, Host, L
from emblema.window.serving import AUTO
from emblema.window.state import State, View


class Standing(Generic[L, A]):
    """The part of a window that only looks. See `Window`."""

    def __init__(
        self, host: Host[L, A], family: Family, state: State, view: View, budget: WindowBudget, cascade: Cascade | None
    ) -> None:
        self._host, self._family, self._state, self._view = host, family, state, view
        self._budget, self._cascade = budget, cascade
        self._name = uuid4().hex
        self._closed = False
        # The store's count of deletions when it was asked last which chunks are gone.
        self._deletions = -1
        self.log: list[Entry] = []

    @property
    def parts(self) -> tuple[Handle, ...]:
        """What stands in the window, in order."""
        return tuple(part.handle for part in self._state.parts)

    @property
    def departed(self) -> tuple[Handle, ...]:
        """What has left and can be recalled, the longest gone first."""
        return tuple(part.handle for part in self._state.departed)

    @property
    def tokens(self) -> int:
        """Rows of the window, the template's opening among them."""
        return self._state.tokens

    @property
    def bytes(self) -> int:
        """Bytes of the rows that are written, and of what the encoder made of the parts; those gone are in `memory`."""
        return bytes_of([self._state])

    @property
    def memory(self) -> Memory:
        """What the window holds by what it is, with what it keeps of parts that have left."""
        return memory_of(self._state, self._host.row_bytes)

    @property
    def departed_bytes(self) -> int:
        """Bytes kept of what has left, so that it can be recalled; on top of `bytes`."""
        return self.memory.departed

    def bytes_with(self, *others: "Standing[Any, Any]") -> int:
        """Bytes that the window and others hold together; what forks share counts once."""
        return bytes_of([self._state, *(other._state for other in others)])

    @property
    def closed(self) -> bool:
        """Whether the window was closed."""
        return self._closed

    def stale(self) -> tuple[Staleness, ...]:
        """Whose rows were written behind something else than what stands before them now, front to back."""
        self._refuse_if_closed()
        return staleness(self._state.nodes())

    def forming(self) -> tuple[int, ...]:
        """Numbers of the parts that the next question computes, front to back; the template's opening has 0."""
        self._refuse_if_closed()
        return forming_order(self._state.nodes(), self._anew(AUTO))

    def dependents(self, part: Handle) -> tuple[int, ...]:
        """Numbers of the parts whose rows hold something of a part, absorbed from it or over others that stand here.

        Raises:
            WindowError: it does not stand in the window.
        """
        self._refuse_if_closed()
        return dependents(self._state.nodes(), self._state.parts[self._index(part)].number)

    def _anew(self, strategy: str | Strategy) -> Cascade:
        """Whose rows a question by some strategy forms anew."""
        if self._cascade is not None:
            return self._cascade
        kinds = {part.number: part.kinds for part in self._state.all}
        return measured(kinds, lambda kind: self._host.trusts(kind, Lane.SURVIVOR, strategy))

    def _index(self, handle: Handle) -> int:
        for index, part in enumerate(self._state.parts):
            if part.handle == handle:
                return index
        raise WindowError(self._why_not(handle))

    def _why_not(self, handle: Handle) -> str:
        if not isinstance(handle, Handle):
            return f"this is a {type(handle).__name__}: name a part by the handle that append gave"
        if any(part.handle == handle for part in self._state.parts):
            return f"part {handle.number} stands in the window"
        if any(part.handle == handle for part in self._state.departed):
            return f"part {handle.number} has left the window: recall it"
        if self._family.named(handle):
            return f"part {handle.number} is gone for good, or stands in a fork alone: append its source again"
        return f"part {handle.number} is of another window"

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise WindowError("the window is closed")

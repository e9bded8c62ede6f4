"""What stands in a window, and the operations that move it about; none of them runs the decoder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from emblema.errors import WindowError
from emblema.window.arranging import Worth, arranged
from emblema.window.budget import WindowBudget
from emblema.window.graph import staleness
from emblema.window.log import Entry, timed
from emblema.window.making import part_of
from emblema.window.parts import Handle, Part
from emblema.window.placement import Placement
from emblema.window.seam import A, L
from emblema.window.serving import AUTO
from emblema.window.standing import Standing
from emblema.window.state import Snapshot, State

MOVING = ("slide", "evict", "reorder", "recall", "arrange", "restore")
"""Operations that change what stands before parts with rows."""


class Holding(Standing[L, A]):
    """The half of a window that holds its parts. See `Window`."""

    def append(self, part: Any, *, pinned: bool = False, role: str | None = None, **options: Any) -> Handle:
        """Set a part behind the others; its rows are computed with the next question.

        Args:
            part: text, token ids, a chunk or clip, what `Engine.encode` made, or a source of media as `Engine.encode`
                takes it, such as a picture or a `Path`; a string is text. The encoder runs for what neither the window
                nor the store knows.
            pinned: keep it when the window slides.
            role: of a text that is another speaker's turn, such as `assistant`; the user's goes on behind it.
            options: as `Engine.encode`.

        Raises:
            CapacityError: it does not fit into the budget.
            MediaError, PromptError: the part cannot be read.
        """
        with self._operation("append") as entry:
            made = part_of(self._host, self._family, self._state, part, role, pinned, options, entry)
            entry.parts = (made.number,)
            self._insert(made, len(self._state.parts), entry)
            return made.handle

    def slide(self, count: int = 1, *, media: bool = False) -> tuple[Handle, ...]:
        """The oldest parts that are not pinned leave. What stays keeps its rows and is only relocated (Kamera, 5).

        Args:
            count: how many leave.
            media: leave text where it is.

        Raises:
            WindowError: there are fewer.
        """
        with self._operation("slide") as entry:
            free = [part for part in self._state.parts if not part.pinned and (part.sources or not media)]
            if type(count) is not int or not 0 < count <= len(free):
                raise WindowError(f"slide({count!r}): {len(free)} parts of this window can leave")
            self._leave(free[:count], entry)
            return tuple(part.handle for part in free[:count])

    def evict(self, part: Handle) -> None:
        """A part leaves, pinned or not.

        Raises:
            WindowError: it does not stand in the window.
        """
        with self._operation("evict", part) as entry:
            self._leave([self._state.parts[self._index(part)]], entry)

    def reorder(self, order: Sequence[Handle]) -> None:
        """Put the parts into another order. A part with the same others before it keeps its rows.

        Raises:
            WindowError: the order is no permutation of `parts`.
        """
        with self._operation("reorder") as entry:
            held = {part.handle: part for part in self._state.parts}
            named = isinstance(order, list | tuple) and all(isinstance(one, Handle) for one in order)
            if not named or len(order) != len(held) or set(order) != held.keys():
                raise WindowError(f"the order is no permutation of the window's {len(held)} parts")
            self._state = replace(self._state, parts=tuple(held[one] for one in order))
            entry.parts = tuple(one.number for one in order)

    def recall(self, part: Handle, *, at: int | None = None) -> None:
        """Set a part that has left back in; the encoder does not run.

        Args:
            part: the part.
            at: how many parts stand before it; by default all.

        Raises:
            WindowError: it is unknown, stands in the window, or is gone for good; or there is no such place.
            CapacityError: it does not fit into the budget.
        """
        with self._operation("recall", part) as entry:
            found = next((one for one in self._state.departed if one.handle == part), None)
            if found is None:
                raise WindowError(self._why_not(part))
            place = len(self._state.parts) if at is None else at
            if type(place) is not int or not 0 <= place <= len(self._state.parts):
                raise WindowError(f"at is {at!r}: this window has places 0 to {len(self._state.parts)}")
            self._insert(found, place, entry)

    def arrange(self, *wanted: Handle, budget: WindowBudget | None = None, worth: Worth | None = None) -> Placement:
        """Choose who stands in the window and in which order, so that the next question costs least, and do it.

        Parts of media move, each with the texts right before it; pinned parts at the front and texts at the end stay
        where they are. Rows that serve where they come to stand are kept, stored patches are made use of, and what
        cannot serve is computed with the next question. Costs are seconds, once enough was measured of this machine's,
        else rows. Exact for few parts; see `place`.

        Args:
            wanted: parts that have to stand there; those that have left are recalled.
            budget: tighter bounds than the window's own: who leaves for them.
            worth: what it is worth to have any other part there, in rows computed; by default what stands is worth
                more than computing it again, the latest most, and what has left nothing.

        Returns:
            The placement: parts by number, how each is had, and its cost.

        Raises:
            WindowError: a part is unknown or gone for good, or is text that has left: recall it.
            CapacityError: what has to stand there does not fit.
            PlanError: a worth is below zero.
        """
        with self._operation("arrange", *wanted) as entry:
            own, state = self._budget, self._state
            held = {part.handle: part for part in (*state.parts, *state.departed)}
            strange = next((one for one in wanted if not isinstance(one, Handle) or one not in held), None)
            if strange is not None:
                raise WindowError(self._why_not(strange))
            bounds = own if budget is None else own.within(budget)
            parts = [held[one] for one in wanted]
            found = arranged(self._host, state, parts, bounds, worth, self._anew(AUTO))
            names = {part.handle for part in found.parts}
            departed = tuple(part for part in state.departed if part.handle not in names)
            self._state = replace(state, departed=departed)
            self._leave(found.left, entry)
            self._state = replace(self._state, parts=found.parts)
            entry.parts = tuple(part.number for part in found.parts)
            return found.placement

    def refresh(self, *parts: Handle) -> None:
        """Drop the rows of parts, by default all: the next question computes them behind what stands before them.

        Raises:
            WindowError: one of them does not stand in the window.
        """
        with self._operation("refresh", *parts):
            numbers = [self._state.parts[self._index(one)].number for one in parts]
            every = numbers or [part.number for part in self._state.all]
            self._state = self._state.rewritten(dict.fromkeys(every))

    def snapshot(self) -> Snapshot:
        """The window as it is, to be restored."""
        with self._operation("snapshot"):
            return Snapshot(self._name, self._state, self._view)

    def restore(self, snapshot: Snapshot) -> None:
        """Put the window back as it was, rows included. Chunks deleted meanwhile stay away.

        Raises:
            WindowError: it is no snapshot of this window.
        """
        with self._operation("restore") as entry:
            if not isinstance(snapshot, Snapshot) or snapshot.owner != self._name:
                raise WindowError("this is no snapshot of this window: a fork restores its own")
            self._state, self._view = snapshot.state, snapshot.view
            self._deletions = -1
            self._forget_deleted(entry)

    def close(self) -> None:
        """Let go of everything; what stands in forks and snapshots stays theirs. The log can still be read."""
        self._state, self._closed = State(None), True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _insert(self, part: Part, at: int, entry: Entry) -> None:
        leaving = self._budget.leavers(self._state, part, self._host.row_bytes)
        names = {one.handle for one in leaving}
        at -= sum(one.handle in names for one in self._state.parts[:at])
        departed = tuple(one for one in self._state.departed if one.handle != part.handle)
        self._state = replace(self._state, departed=departed)
        self._leave(leaving, entry)
        self._state = self._state.inserted(part, at)

    def _leave(self, leaving: Sequence[Part], entry: Entry) -> None:
        state = self._state.without(leaving)
        self._state = replace(state, departed=state.departed[self._budget.expired(state.departed) :])
        entry.left += tuple(part.number for part in leaving)

    @contextmanager
    def _operation(self, name: str, *parts: Handle) -> Iterator[Entry]:
        """One operation: refused where the window is closed, behind whatever was deleted meanwhile, and logged."""
        self._refuse_if_closed()
        with timed(self.log, name) as entry:
            entry.parts = tuple(one.number for one in parts if isinstance(one, Handle))
            self._forget_deleted(entry)
            yield entry
            entry.tokens, entry.bytes = self.tokens, self.bytes
            if name in MOVING:
                entry.stale = tuple(one.number for one in staleness(self._state.nodes()))

    def _forget_deleted(self, entry: Entry) -> None:
        """Parts of chunks that the store deleted leave for good; rows that may hold something of them are dropped."""
        state, deletions = self._state, self._host.deletions
        if deletions == self._deletions:
            return
        gone = self._host.gone(state.sources)
        self._deletions = deletions
        if gone:
            self._state = state.forgetting(gone)
            kept = {part.handle for part in self._state.parts}
            entry.left += tuple(part.number for part in state.parts if part.handle not in kept)

"""A window on a growing context: parts come, slide out, are reordered and recalled, and keep the rows once written."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self, get_args, overload
from uuid import uuid4

from emblema.errors import WindowError
from emblema.link.lanes import Lane
from emblema.link.strategies.base import Strategy
from emblema.session.decoding import Sampling
from emblema.session.replies import Piece, Reply, last_reply
from emblema.session.requests import Prefill
from emblema.session.session import Session
from emblema.session.turn_tokenizer import TurnTokenizer
from emblema.window.arrange import PartWorth, arrange_parts
from emblema.window.budget import WindowBudget, evict_parts, insert_part
from emblema.window.linking import Text, WindowLinker, WindowQuestion
from emblema.window.log import MOVING, LogEntry, logged
from emblema.window.necessity import NecessityCheck, RowsAfter, compare_answers, sources_without
from emblema.window.part_reader import PartReader
from emblema.window.parts import PartHandle, WindowPart
from emblema.window.placement import Placement
from emblema.window.repair import REPAIR_RANK, RepairRank, refuse_repairs_over, repair_parts
from emblema.window.row_sources import AUTO, clean_sources
from emblema.window.staleness import Cascade, Staleness, find_dependents, find_stale, find_uncomputed, measured_cascade
from emblema.window.state import RowView, WindowFamily, WindowMemory, WindowSnapshot, WindowState, count_bytes


class Window:
    """Parts in order, with their rows as first written.

    Operations move parts and do not run the decoder. The next question computes the parts without rows, and itself; all
    other rows are taken as they are kept, relocated. Rows of parts are kept; those of questions and answers are not.
    A window is used on its engine's thread. Made by `Engine.window`.

    Args:
        session: links prompts and decodes answers.
        turn: tokenizes the pieces of the window's turn.
        budget: what the window may hold.
        cascade: whether to compute the rows of a part again when what is before it has changed; by default what was
            measured of survivors decides.

    Attributes:
        log: an entry for every operation.

    Raises:
        CapacityError: the template's opening alone does not fit into the budget.
    """

    def __init__(
        self, session: Session, turn: TurnTokenizer, budget: WindowBudget, cascade: Cascade | None = None
    ) -> None:
        self._session, self._budget, self._cascade = session, budget, cascade
        self._family = WindowFamily()
        self._reader = PartReader(session, turn, self._family)
        self._linker = WindowLinker(session, turn, self._family)
        self._state = WindowState(self._reader.opening())
        self._view: RowView = "conditioned"
        self._name = uuid4().hex
        self._closed = False
        # The store's count of deletions when it was last asked which chunks were deleted.
        self._deletions = -1
        self.log: list[LogEntry] = []
        budget.choose_leaving(self._state, None, session.row_bytes)

    @property
    def parts(self) -> tuple[PartHandle, ...]:
        """The parts in the window, in order."""
        return tuple(part.handle for part in self._state.parts)

    @property
    def evicted(self) -> tuple[PartHandle, ...]:
        """The parts that have left and can be recalled, the longest gone first."""
        return tuple(part.handle for part in self._state.evicted)

    @property
    def tokens(self) -> int:
        """Rows of the window, the template's opening among them."""
        return self._state.tokens

    @property
    def bytes(self) -> int:
        """Bytes of written rows and of the encoder output of parts; without `memory.evicted`."""
        return count_bytes([self._state])

    @property
    def memory(self) -> WindowMemory:
        """The window's bytes by what they are, with those kept of parts that have left."""
        return self._state.memory(self._session.row_bytes)

    @property
    def closed(self) -> bool:
        """Whether the window was closed."""
        return self._closed

    @property
    def view(self) -> RowView:
        """Which rows are read: `conditioned`, as written in this window, or `clean`, each piece's as if it were alone.

        It is a switch: nothing is lost on either side. What is asked in the clean view leaves no rows.
        """
        return self._view

    @view.setter
    def view(self, view: RowView) -> None:
        with self._operation("view"):
            if view not in get_args(RowView):
                raise WindowError(f"there is no view {view!r}: a window is conditioned or clean")
            self._view = view

    def bytes_with(self, *others: "Window") -> int:
        """Return bytes that the window and others hold together; what forks share counts once."""
        return count_bytes([self._state, *(other._state for other in others)])

    def stale(self) -> tuple[Staleness, ...]:
        """Return how the parts before each part differ from those its rows were written after, front to back."""
        self._refuse_if_closed()
        return find_stale(self._state.all_parts)

    def forming(self) -> tuple[int, ...]:
        """Return numbers of the parts that the next question computes, front to back; the template's opening has 0."""
        self._refuse_if_closed()
        return find_uncomputed(self._state.all_parts, self._cascade_for(AUTO))

    def dependents(self, part: PartHandle) -> tuple[int, ...]:
        """Return numbers of the parts whose rows hold something of a part, directly or through other parts.

        Raises:
            WindowError: it is not in the window.
        """
        self._refuse_if_closed()
        return find_dependents(self._state.all_parts, self._part(part).number)

    def append(self, part: Any, *, pinned: bool = False, role: str | None = None, **options: Any) -> PartHandle:
        """Add a part at the end; its rows are computed with the next question.

        Args:
            part: text, token ids, a chunk or clip, what `Engine.encode` made, or a source of media as `Engine.encode`
                takes it, such as a picture or a `Path`; a string is text. The encoder runs for what neither the window
                nor the store knows.
            pinned: keep it when the window slides.
            role: of a text that is another speaker's turn, such as `assistant`; the user's goes on after it.
            options: as `Engine.encode`.

        Raises:
            CapacityError: it does not fit into the budget.
            MediaError, PromptError: the part cannot be read.
        """
        with self._operation("append") as entry:
            added = self._reader.read(part, self._state, role=role, pinned=pinned, options=options, entry=entry)
            entry.parts = (added.number,)
            self._insert(added, len(self._state.parts), entry)
            return added.handle

    def slide(self, count: int = 1, *, media: bool = False) -> tuple[PartHandle, ...]:
        """Let the oldest parts leave that are not pinned. The others keep their rows and are relocated (Kamera, 5).

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

    def evict(self, part: PartHandle) -> None:
        """Let a part leave, pinned or not.

        Raises:
            WindowError: it is not in the window.
        """
        with self._operation("evict", part) as entry:
            self._leave([self._part(part)], entry)

    def reorder(self, order: Sequence[PartHandle]) -> None:
        """Put the parts into another order. A part with the same others before it keeps its rows.

        Raises:
            WindowError: the order is no permutation of `parts`.
        """
        with self._operation("reorder") as entry:
            held = {part.handle: part for part in self._state.parts}
            named = isinstance(order, list | tuple) and all(isinstance(handle, PartHandle) for handle in order)
            if not named or len(order) != len(held) or set(order) != held.keys():
                raise WindowError(f"the order is no permutation of the window's {len(held)} parts")
            self._state = replace(self._state, parts=tuple(held[handle] for handle in order))
            entry.parts = tuple(handle.number for handle in order)

    def recall(self, part: PartHandle, *, at: int | None = None) -> None:
        """Put a part that has left back into the window; the encoder does not run.

        Args:
            part: the part.
            at: how many parts come before it; by default all.

        Raises:
            WindowError: it is unknown, in the window, or gone for good; or there is no such place.
            CapacityError: it does not fit into the budget.
        """
        with self._operation("recall", part) as entry:
            found = next((evicted for evicted in self._state.evicted if evicted.handle == part), None)
            if found is None:
                raise WindowError(self._family.explain(part, self._state))
            place = len(self._state.parts) if at is None else at
            if type(place) is not int or not 0 <= place <= len(self._state.parts):
                raise WindowError(f"at is {at!r}: this window has places 0 to {len(self._state.parts)}")
            self._insert(found, place, entry)

    def arrange(
        self, *wanted: PartHandle, budget: WindowBudget | None = None, worth: PartWorth | None = None
    ) -> Placement:
        """Choose which parts are in the window and in which order, so that the next question costs least, and do it.

        Parts of media move, each with the texts right before it; pinned parts at the front and texts at the end stay
        where they are. Rows that are valid in their new place are kept, stored patches are used, and all else is
        computed with the next question. Costs are rows to compute; see `solve_placement`.

        Args:
            wanted: parts that have to be there; those that have left are recalled.
            budget: tighter bounds than the window's own; parts leave to meet them.
            worth: what it is worth to have any other part there, in rows computed; by default a part in the window is
                worth more than computing it again, the latest most, and one that has left nothing.

        Returns:
            The placement: parts by number, where the rows of each come from, and its cost.

        Raises:
            WindowError: a part is unknown or gone for good, or is text that has left: recall it.
            CapacityError: the parts that have to be there do not fit.
            PlanError: a worth is below zero.
        """
        with self._operation("arrange", *wanted) as entry:
            state = self._state
            parts = [self._family.find(handle, state, evicted=True) for handle in wanted]
            bounds = self._budget if budget is None else self._budget.tighten(budget)
            placement, arranged = arrange_parts(self._session, state, parts, bounds, worth, self._cascade_for(AUTO))
            handles = {part.handle for part in arranged}
            self._state = replace(state, evicted=tuple(part for part in state.evicted if part.handle not in handles))
            self._leave([part for part in state.parts if part.handle not in handles], entry)
            self._state = replace(self._state, parts=arranged)
            entry.parts = tuple(part.number for part in arranged)
            return placement

    def refresh(self, *parts: PartHandle) -> None:
        """Drop the rows of parts, by default all: the next question computes them in their place.

        Raises:
            WindowError: one of them is not in the window.
        """
        with self._operation("refresh", *parts):
            numbers = [self._part(part).number for part in parts]
            self._state = self._state.rewrite(dict.fromkeys(numbers or [part.number for part in self._state.all_parts]))

    def repair(self, *parts: PartHandle, rank: int | str = REPAIR_RANK) -> tuple[PartHandle, ...]:
        """Bring survivors close to what the parts before them now would make of them (Kamera, section 5).

        One forward computes them in their place. Their rows as first written stay, shared with forks and snapshots; the
        difference is kept beside them as low-rank factors, position-free, and added when they are read. Parts without
        rows before the last of them get theirs by the same forward.

        Args:
            parts: parts; by default all that are stale. Those that are not are passed over.
            rank: directions kept of each, or the share of its rows that they may weigh, such as `25%`; text too short
                for that gets new rows.

        Returns:
            Those repaired, in order.

        Raises:
            WindowError: a part is not in the window, or this is no rank.
            CapacityError: the factors do not fit into the budget; the window stays as it was.
        """
        with self._operation("repair", *parts) as entry:
            chosen_rank, state = RepairRank.of(rank), self._state
            stale = {staleness.number for staleness in find_stale(state.all_parts)}
            wanted = stale & {self._part(part).number for part in parts} if parts else stale
            written = repair_parts(self._linker, self._session.adapter, state.all_parts, wanted, chosen_rank, entry)
            size = sum(rows.repair_bytes for rows in written.values())
            state = state.rewrite(written)
            if wanted:
                refuse_repairs_over(self._budget, state, size, self._session.row_bytes)
            self._state = state
            repaired = [part for part in state.all_parts if part.number in wanted]
            entry.lane, entry.repaired = "repair" if wanted else "", tuple(part.number for part in repaired)
            entry.patches_formed += sum(patch is not None for rows in written.values() for patch in rows.repairs)
            entry.bytes_moved += size
            return tuple(part.handle for part in repaired)

    def fork(self) -> Self:
        """Return a branch that goes on from here.

        It shares every row that is written; neither window sees what the other does.
        """
        with self._operation("fork"):
            branch = copy(self)
            branch._name, branch.log = uuid4().hex, []
            return branch

    def snapshot(self) -> WindowSnapshot:
        """Return a snapshot of the window, which `restore` takes."""
        with self._operation("snapshot"):
            return WindowSnapshot(self._name, self._state, self._view)

    def restore(self, snapshot: WindowSnapshot) -> None:
        """Restore a snapshot, rows included; parts of chunks that were deleted meanwhile are left out.

        Raises:
            WindowError: it is no snapshot of this window.
        """
        with self._operation("restore") as entry:
            if not isinstance(snapshot, WindowSnapshot) or snapshot.owner != self._name:
                raise WindowError("this is no snapshot of this window: a fork restores its own")
            self._state, self._view = snapshot.state, snapshot.view
            self._deletions = -1
            self._forget_deleted(entry)

    def close(self) -> None:
        """Release all parts; forks and snapshots keep theirs. The log can still be read."""
        self._state, self._closed = WindowState(None), True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @overload
    def ask(
        self,
        text: Text = ...,
        strategy: str | Strategy = ...,
        *,
        stream: Literal[False] = ...,
        keep: bool = ...,
        **knobs: Any,
    ) -> Reply: ...

    @overload
    def ask(
        self, text: Text = ..., strategy: str | Strategy = ..., *, stream: Literal[True], keep: bool = ..., **knobs: Any
    ) -> Iterator[Piece]: ...

    def ask(
        self, text: Text = "", strategy: str | Strategy = AUTO, *, stream: bool = False, keep: bool = True, **knobs: Any
    ) -> Reply | Iterator[Piece]:
        """Answer a question about the window.

        Parts without rows are computed in their place, in the same forward as the question, and keep those rows.
        Question and answer leave nothing in the window: append them to go on from them.

        Args:
            text: the question; without one the model goes on after the parts.
            strategy: how canonical rows are taken; rows that the window wrote are taken as they are. `full` and
                `prefix` compute everything, as a prefill of the same parts does.
            stream: return the pieces as they are made. The question is put when the first is asked for, and logged
                when the last was given; the window may change in between, and the answer is of the window as it was.
            keep: if false, leave the window as it was, parts without rows included; only rows that turn out not to be
                finite are dropped.
            knobs: as `Engine.generate`.

        Returns:
            A reply, or with `stream=True` its pieces, the last of which holds the reply.

        Raises:
            PromptError, StrategyError: the question, a knob or the strategy's name is not right.
        """
        self._refuse_if_closed()
        pieces = self._stream(text, strategy, knobs, keep)
        return pieces if stream else last_reply(pieces)

    def prefill(self, text: Text = "", strategy: str | Strategy = AUTO, *, keep: bool = True) -> Prefill:
        """Link a question without decoding; see `ask`."""
        with self._operation("prefill") as entry:
            prefill = self._prefill(WindowQuestion(text, strategy), keep, entry)
        self._session.after_answer()
        return prefill

    def needed(
        self,
        part: PartHandle,
        text: Text = "",
        strategy: str | Strategy = AUTO,
        *,
        rest: RowsAfter = "clean",
        **knobs: Any,
    ) -> NecessityCheck:
        """Answer a question with and without a part, to see whether it needs the part (Kamera, appendix E).

        Args:
            part: the part in doubt.
            text: the question.
            strategy: as `ask`, for the answer with it.
            rest: what the parts after it hold while it is away: nothing of any other part (`clean`: a copy and one
                decode), what they have absorbed (`kept`: as after a slide), or what the parts left before them give
                (`fresh`: they are computed).
            knobs: as `ask`.

        Raises:
            WindowError: it is not in the window.
        """
        with self._operation("needed", part) as entry:
            place = self._state.parts.index(self._part(part))
            sources = sources_without(self._state, place, rest)
            sampling, began = Sampling.of(**knobs), time.perf_counter()
            question = WindowQuestion(text, strategy, sampling)
            prefill = self._prefill(question, True, entry)
            answer = self._decode(prefill, sampling, began, entry)
            state = self._state.evict([self._state.parts[place]])
            sources = clean_sources(state) if self._view == "clean" else sources
            without = self._linker.link_question(state, sources, replace(question, strategy="blind"), entry)
            reply = self._decode(without, sampling, time.perf_counter(), entry)
            return compare_answers(prefill.logits, without.logits, answer, reply)

    def _stream(self, text: Text, strategy: str | Strategy, knobs: Mapping[str, Any], keep: bool) -> Iterator[Piece]:
        with self._operation("ask") as entry:
            began, sampling = time.perf_counter(), Sampling.of(**knobs)
            prefill = self._prefill(WindowQuestion(text, strategy, sampling), keep, entry)
            prefill = replace(prefill, remark=self._session.remark_on([text]))
            for piece in self._session.decode(prefill, sampling, began):
                done = piece.reply is not None
                entry.rows_decoded = entry.rows_decoded + 1 if piece.reply is None else len(piece.reply.token_ids)
                if not (piece.text or done):
                    continue
                paused = time.perf_counter()
                try:
                    yield piece
                except GeneratorExit:
                    entry.error = None if done else "the answer was left before its end"
                    return
                finally:
                    entry.seconds -= time.perf_counter() - paused
        self._session.after_answer()

    def _decode(self, prefill: Prefill, sampling: Sampling, began: float, entry: LogEntry) -> Reply:
        reply = last_reply(self._session.decode(prefill, sampling, began))
        entry.rows_decoded += len(reply.token_ids)
        return reply

    def _prefill(self, question: WindowQuestion, keep: bool, entry: LogEntry) -> Prefill:
        cascade = self._cascade_for(question.strategy)
        prefill, self._state = self._linker.ask(self._state, self._view, cascade, question, keep, entry)
        return prefill

    def _insert(self, part: WindowPart, at: int, entry: LogEntry) -> None:
        """Put a part before the place `at`, and let parts leave for it."""
        self._state, left = insert_part(self._budget, self._state, part, at, self._session.row_bytes)
        entry.left += tuple(other.number for other in left)

    def _leave(self, leaving: Sequence[WindowPart], entry: LogEntry) -> None:
        self._state = evict_parts(self._budget, self._state, leaving)
        entry.left += tuple(part.number for part in leaving)

    @contextmanager
    def _operation(self, name: str, *parts: PartHandle) -> Iterator[LogEntry]:
        """Run one operation: refuse it if the window is closed, forget deleted chunks first, and log it."""
        self._refuse_if_closed()
        with logged(self.log, name) as entry:
            entry.parts = tuple(part.number for part in parts if isinstance(part, PartHandle))
            self._forget_deleted(entry)
            yield entry
            entry.tokens, entry.bytes = self.tokens, self.bytes
            if name in MOVING:
                entry.stale = tuple(staleness.number for staleness in find_stale(self._state.all_parts))

    def _forget_deleted(self, entry: LogEntry) -> None:
        """Drop parts of chunks that the store deleted, and rows that may hold something of them."""
        state, deletions = self._state, self._session.store.deletions
        if deletions == self._deletions:
            return
        deleted = self._session.store.deleted(state.sources)
        self._deletions = deletions
        if deleted:
            self._state = state.forget(deleted)
            kept = set(self.parts)
            entry.left += tuple(part.number for part in state.parts if part.handle not in kept)

    def _cascade_for(self, strategy: str | Strategy) -> Cascade:
        """Return the window's cascade, or the default for a strategy."""
        if self._cascade is not None:
            return self._cascade
        kinds = {part.number: part.kinds for part in self._state.all_parts}
        return measured_cascade(kinds, lambda kind: self._session.trusts(kind, Lane.SURVIVOR, strategy))

    def _part(self, handle: PartHandle) -> WindowPart:
        return self._family.find(handle, self._state)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise WindowError("the window is closed")

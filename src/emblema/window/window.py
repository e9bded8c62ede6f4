"""A window on a growing context: parts come, slide out, are reordered and recalled, and keep the rows once written."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, get_args, overload

from emblema.errors import CapacityError, WindowError
from emblema.link.strategies.base import Strategy
from emblema.session.chat_template import TokenIds
from emblema.window.budget import WindowBudget
from emblema.window.family import Family
from emblema.window.graph import Cascade, staleness
from emblema.window.holding import Holding
from emblema.window.laying import Serving, laid, settled
from emblema.window.log import Entry
from emblema.window.making import opening_part
from emblema.window.need import Need, Rest, compared, rest_served
from emblema.window.parts import Handle, Part
from emblema.window.repairing import Rank, repaired
from emblema.window.seam import A, AnswerPiece, Host, L
from emblema.window.serving import AUTO, EXACT, clean_serving, served
from emblema.window.state import State, View

Strategic = str | Strategy
Question = str | Sequence[int]
Knobs = Mapping[str, Any]
REPAIR_RANK = 64
"""Directions of a removal patch that the paper states."""


class Window(Holding[L, A]):
    """Parts in order, with their rows as first written.

    An operation moves parts about and runs no decoder; the next question computes what has no rows and the question,
    and takes all other rows as they are kept, relocated. Rows of parts are kept; those of questions and answers are
    not. One thread uses a window, its engine's. Made by `Engine.window`.
    """

    @classmethod
    def of(cls, host: Host[L, A], budget: WindowBudget, cascade: Cascade | None = None) -> Self:
        """A new window.

        Args:
            host: the engine.
            budget: what it may hold.
            cascade: whose rows are formed anew when what stands before them has changed; by default what is measured
                of survivors says it.

        Raises:
            CapacityError: the template's opening alone does not fit into the budget.
        """
        state = State(opening_part(host))
        budget.leavers(state, None, host.row_bytes)
        return cls(host, Family(), state, "conditioned", budget, cascade)

    @overload
    def ask(
        self,
        text: Question = ...,
        strategy: Strategic = ...,
        *,
        stream: Literal[False] = ...,
        keep: bool = ...,
        **knobs: Any,
    ) -> A: ...

    @overload
    def ask(
        self, text: Question = ..., strategy: Strategic = ..., *, stream: Literal[True], keep: bool = ..., **knobs: Any
    ) -> Iterator[AnswerPiece[A]]: ...

    def ask(
        self, text: Question = "", strategy: Strategic = AUTO, *, stream: bool = False, keep: bool = True, **knobs: Any
    ) -> A | Iterator[AnswerPiece[A]]:
        """Answer a question about what stands in the window.

        Parts without rows are computed in their place, in the same forward as the question, and keep those rows.
        Question and answer leave nothing behind: append them to go on from them.

        Args:
            text: the question; without one the model goes on behind the parts.
            strategy: how canonical rows are taken; rows that the window wrote are taken as they are. `full` and
                `prefix` compute everything, as a prefill of the same parts does.
            stream: hand back the pieces as they are made. The question is put when the first is asked for, and logged
                when the last was given; the window may change in between, and the answer is of the window as it was.
            keep: without it the window is left as it was, parts without rows included.
            knobs: as `Engine.generate`.

        Returns:
            A reply, or with `stream=True` its pieces, the last of which holds the reply.

        Raises:
            PromptError, StrategyError: the question, a knob or the strategy's name is not right.
        """
        if stream:
            self._refuse_if_closed()
            return self._streamed(text, strategy, knobs, keep)
        with self._operation("ask") as entry:
            reply = self._asked(text, strategy, knobs, keep, entry)[1]
        self._host.rest()
        return reply

    def prefill(self, text: Question = "", strategy: Strategic = AUTO, *, keep: bool = True) -> L:
        """As `ask`, up to the last logits."""
        with self._operation("prefill") as entry:
            linkage = self._prefilled(text, strategy, None, keep, entry)
        self._host.rest()
        return linkage

    def needed(
        self, part: Handle, text: Question = "", strategy: Strategic = AUTO, *, rest: Rest = "clean", **knobs: Any
    ) -> Need[A]:
        """Whether a question's answer needs a part: it is answered with and without it (Kamera, appendix E).

        Args:
            part: the part in doubt.
            text: the question.
            strategy: as `ask`, for the answer with it.
            rest: what the parts behind it hold while it is away: nothing of any other part (`clean`: a copy and one
                decode), what they have absorbed (`kept`: as after a slide), or what the parts left before them give
                (`fresh`: they are computed).
            knobs: as `ask`.

        Raises:
            WindowError: it does not stand in the window.
        """
        with self._operation("needed", part) as entry:
            at = self._index(part)
            rest_served(self._state, at, rest)
            linkage, answer = self._asked(text, strategy, knobs, True, entry)
            state = self._state.without([self._state.parts[at]])
            serving = clean_serving(state) if self._view == "clean" else rest_served(state, at, rest)
            away = self._linked(state, serving, text, "blind", knobs, entry)
            reply = self._host.reply(away, "blind", knobs, time.perf_counter())
            entry.rows_decoded += len(reply.token_ids)
            return compared(linkage.linked.logits, away.linked.logits, answer, reply)

    def repair(self, *parts: Handle, rank: int | str = REPAIR_RANK) -> tuple[Handle, ...]:
        """Bring survivors close to what they would be behind what stands before them now (Kamera, section 5).

        One forward computes them there. Their rows as first written stay, shared with forks and snapshots; the
        difference is kept beside them as low-rank factors, position-free, and added where they are read. Parts without
        rows in front of the last of them get theirs by the same forward.

        Args:
            parts: parts; by default all whose antecedents have changed. Those for which nothing has are passed over.
            rank: directions kept of each, or the share of its rows that they may weigh, such as `25%`; text too short
                for that gets new rows.

        Returns:
            Those repaired, in order.

        Raises:
            WindowError: a part does not stand in the window, or this is no rank.
            CapacityError: the factors do not fit into the budget; the window stays as it was.
        """
        with self._operation("repair", *parts) as entry:
            most, state = Rank.of(rank), self._state
            named = {state.parts[self._index(one)].number for one in parts}
            stale = {one.number for one in staleness(state.nodes())}
            wanted = stale & named if parts else stale
            last = max((place for place, part in enumerate(state.all) if part.number in wanted), default=-1)
            front = state.all[: last + 1]
            if front:
                self._state = self._repaired(front, wanted, most, entry)
            return tuple(part.handle for part in front if part.number in wanted)

    def fork(self) -> Self:
        """A branch that goes on from here. It shares every row that is written; neither sees what the other does."""
        with self._operation("fork"):
            return type(self)(self._host, self._family, self._state, self._view, self._budget, self._cascade)

    @property
    def view(self) -> View:
        """Which rows are read: `conditioned`, as written in this window, or `clean`, each piece's as if it stood alone.

        It is a switch: nothing is lost on either side. What is asked in the clean view leaves no rows.
        """
        return self._view

    @view.setter
    def view(self, view: View) -> None:
        with self._operation("view"):
            if view not in get_args(View):
                raise WindowError(f"there is no view {view!r}: a window is conditioned or clean")
            self._view = view

    def _streamed(self, text: Question, strategy: Strategic, knobs: Knobs, keep: bool) -> Iterator[AnswerPiece[A]]:
        with self._operation("ask") as entry:
            began = time.perf_counter()
            linkage = self._prefilled(text, strategy, knobs, keep, entry)
            for piece in self._host.pieces(linkage, strategy, knobs, began):
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
        self._host.rest()

    def _asked(self, text: Question, strategy: Strategic, knobs: Knobs, keep: bool, entry: Entry) -> tuple[L, A]:
        began = time.perf_counter()
        linkage = self._prefilled(text, strategy, knobs, keep, entry)
        reply = self._host.reply(linkage, strategy, knobs, began)
        entry.rows_decoded += len(reply.token_ids)
        return linkage, reply

    def _prefilled(self, text: Question, strategy: Strategic, knobs: Knobs | None, keep: bool, entry: Entry) -> L:
        state, name = self._state, strategy if isinstance(strategy, str) else strategy.name
        if self._view == "clean":
            if name not in (AUTO, "blind"):
                raise WindowError(f"the clean view takes pieces as they are alone, not by {name!r}")
            return self._linked(state, clean_serving(state), text, "blind", knobs, entry)
        serving = served(self._host, state, staleness(state.nodes()), self._anew(strategy), name)
        linkage = self._linked(state, serving, text, strategy, knobs, entry)
        if keep:
            anew = {
                part.number
                for part in state.all
                if part.written is None or (serving[part.number] != "settled" and name not in EXACT)
            }
            self._keep(state, anew, linkage, entry)
        return linkage

    def _repaired(self, front: Sequence[Part], wanted: Collection[int], rank: Rank, entry: Entry) -> State:
        """The window with repairs of some of the parts at its front, and with rows for those there that had none."""
        anew = {part.number for part in front if part.number in wanted or part.written is None}
        serving: dict[int, Serving] = {part.number: "fresh" if part.number in anew else "settled" for part in front}
        linkage = self._run(front, serving, (), "blind", None, entry)
        versions = {number: self._family.version() for number in anew}
        found, copied = settled(front, anew, linkage.linked.table, self._host.model, versions)
        for part in front:
            if part.number in wanted and part.written is not None:
                found[part.number] = repaired(self._host.shape, part.written, found[part.number], rank)
        made = self._state.rewritten(found)
        size = sum(one.repair_bytes for one in found.values())
        if not self._budget.holds(made, self._host.row_bytes):
            raise CapacityError(
                f"repairs of {size} bytes do not fit into the window's budget: keep fewer directions, or refresh the "
                "parts, which takes no more than their rows"
            )
        entry.lane, entry.repaired = "repair", tuple(part.number for part in front if part.number in wanted)
        entry.patches_formed += sum(patch is not None for one in found.values() for patch in one.repairs)
        entry.bytes_moved += copied + size
        return made

    def _linked(
        self,
        state: State,
        serving: Mapping[int, Serving],
        text: Question,
        strategy: Strategic,
        knobs: Knobs | None,
        entry: Entry,
    ) -> L:
        closing = self._host.close(state.run(), text)
        return self._run(state.all, serving, closing, strategy, knobs, entry)

    def _run(
        self,
        parts: Sequence[Part],
        serving: Mapping[int, Serving],
        closing: TokenIds,
        strategy: Strategic,
        knobs: Knobs | None,
        entry: Entry,
    ) -> L:
        prompt = self._host.lay(laid(parts, serving, closing))
        formed = self._host.patches
        linkage = self._host.link(prompt, strategy, knobs)
        entry.spent(linkage.usage, linkage.linked.trace)
        entry.patches_formed += self._host.patches - formed
        return linkage

    def _keep(self, state: State, wanted: Collection[int], linkage: L, entry: Entry) -> None:
        """Take up the rows of some parts as the linked table has them."""
        versions = {number: self._family.version() for number in wanted}
        written, copied = settled(state.all, wanted, linkage.linked.table, self._host.model, versions)
        entry.refreshed = tuple(part.number for part in state.all if part.number in wanted and part.written)
        entry.bytes_moved += copied
        self._state = state.rewritten(written)

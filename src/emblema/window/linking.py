"""A window linked as a prompt of its session, and the rows of its parts read back."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from emblema.errors import WindowError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKind
from emblema.link.prompt import ChunkPart, Part, RowState, TextPart
from emblema.link.strategies.base import Strategy, strategy_name
from emblema.models.tables import KVTable
from emblema.session.chat_template import TokenIds
from emblema.session.decoding import Sampling
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.session import DECODE_RESERVE, Session
from emblema.session.turn_tokenizer import TurnTokenizer
from emblema.window.log import LogEntry
from emblema.window.parts import PartMember, WindowPart, WrittenRows
from emblema.window.row_sources import AUTO, EXACT, clean_sources, find_broken, question_sources
from emblema.window.staleness import Cascade, find_stale, unseen
from emblema.window.state import RowView, WindowFamily, WindowState

Text = str | Sequence[int]
"""A text, or its token ids."""
RowSources = Mapping[int, RowState]
"""By a part's number, which rows it takes."""


@dataclass(frozen=True, slots=True)
class WindowQuestion:
    """A question about a window.

    Attributes:
        text: the question, as text or token ids; empty to go on after the parts.
        strategy: how canonical rows are taken: a strategy, or its name.
        sampling: how the answer is decoded; None where nothing is.
    """

    text: Text
    strategy: str | Strategy
    sampling: Sampling | None = None


class WindowLinker:
    """Links the parts of a window, and of its forks, and copies the rows that were computed for them.

    Args:
        session: links prompts.
        turn: tokenizes the question after the parts.
        family: numbers the rows.
    """

    def __init__(self, session: Session, turn: TurnTokenizer, family: WindowFamily) -> None:
        self._session, self._turn, self._family = session, turn, family

    def link_question(
        self, state: WindowState, sources: RowSources, question: WindowQuestion, entry: LogEntry
    ) -> Prefill:
        """Link a window with a question after it.

        Raises:
            PromptError: there is nothing to ask, or the model's context has no room.
        """
        return self.link(
            state.all_parts, sources, self._turn.closing(state.last_text(), question.text), question, entry
        )

    def ask(
        self,
        state: WindowState,
        view: RowView,
        cascade: Cascade,
        question: WindowQuestion,
        keep: bool,
        entry: LogEntry,
    ) -> tuple[Prefill, WindowState]:
        """Link a question, and keep the rows that it computed for parts; return the window's state after it.

        Where the logits were not finite at first, everything was computed after all: rows that were taken and are not
        finite are dropped, and with `keep` replaced.

        Raises:
            WindowError: the view is clean, and the strategy takes other rows.
            PromptError: as `link_question`.
        """
        name = strategy_name(question.strategy)
        if view == "clean":
            if name not in (AUTO, "blind"):
                raise WindowError(f"the clean view takes pieces as they are alone, not by {name!r}")
            question = replace(question, strategy="blind")
            return self.link_question(state, clean_sources(state), question, entry), state
        sources = question_sources(self._session, state, cascade, name)
        prefill = self.link_question(state, sources, question, entry)
        broken = set() if prefill.usage.finite else find_broken(state.all_parts, sources)
        if not keep:
            return prefill, state.rewrite(dict.fromkeys(broken))
        new = broken | {
            part.number
            for part in state.all_parts
            if part.rows is None or (sources[part.number] != RowState.WRITTEN and name not in EXACT)
        }
        written = self.copy_rows(state.all_parts, new, prefill, entry)
        entry.refreshed = tuple(part.number for part in state.all_parts if part.number in new and part.rows)
        return prefill, state.rewrite(written)

    def link(
        self,
        parts: Sequence[WindowPart],
        sources: RowSources,
        closing: TokenIds,
        question: WindowQuestion,
        entry: LogEntry,
    ) -> Prefill:
        """Link parts and token ids after them, and count what it cost in a log entry."""
        session, runtime = self._session, self._session.policy_runtime
        prompt = session.prompt_of(lay_out(parts, sources, closing))
        new_tokens = 0 if question.sampling is None else question.sampling.max_new_tokens
        session.refuse_without_room(prompt, new_tokens)
        chunks = {part.chunk.id for part in prompt.chunk_parts if part.state is RowState.CANONICAL}
        stored = {key for chunk in chunks for key in session.store.artifact_keys(chunk)}
        queued = runtime.statistics.forming.taken
        prefill = session.link(LinkRequest(prompt, question.strategy, min(new_tokens, DECODE_RESERVE)))
        patches = [rows.patch.key for rows in prefill.plan.ranges if rows.patch]
        formed = {key for key in patches if key.kind is not ArtifactKind.REPAIR} - stored
        entry.count(prefill.usage, prefill.trace)
        entry.patches_formed += len(formed) + runtime.statistics.forming.taken - queued
        return prefill

    def copy_rows(
        self, parts: Sequence[WindowPart], wanted: Collection[int], prefill: Prefill, entry: LogEntry
    ) -> dict[int, WrittenRows]:
        """Copy the rows of some parts out of the linked table; return them by number.

        Args:
            parts: the window's parts, whose rows are the table's first.
            wanted: numbers of the parts to copy.
            prefill: the linked parts.
            entry: counts the bytes.
        """
        written: dict[int, WrittenRows] = {}
        preceding: list[tuple[int, int]] = []
        absorbed: frozenset[str] = frozenset()
        table, model = prefill.linked.table, self._session.adapter.fingerprint
        row = position = 0
        for part in parts:
            pieces = []
            for member in part.members:
                if part.number in wanted:
                    pieces.append(_copy_member(member, table, model, row, position))
                row, position = row + member.tokens, position + member.encoded.span
            rows = part.rows
            if part.number in wanted:
                version, own = self._family.new_version(), absorbed.union(part.sources)
                rows = written[part.number] = WrittenRows(tuple(pieces), version, tuple(preceding), own)
                entry.bytes_moved += rows.bytes
            if rows is not None:
                absorbed |= rows.absorbed
                preceding.append((part.number, rows.version))
        return written


def lay_out(parts: Sequence[WindowPart], sources: RowSources, closing: TokenIds) -> list[Part]:
    """Return parts of a prompt, with token ids after them; survivors are marked as such, for the policy."""
    survivors = _survivors(parts, sources)
    found: list[Part] = []
    for part in parts:
        for index in range(len(part.members)):
            found.append(_prompt_part(part, index, sources[part.number], part.number in survivors))
    return [*found, TextPart(closing)]


def _prompt_part(part: WindowPart, index: int, source: RowState, survivor: bool) -> Part:
    member, rows = part.members[index], part.rows
    piece = None if rows is None else rows.pieces[index]
    repair = None if rows is None or not rows.repairs else rows.repairs[index]
    if source == RowState.WRITTEN and piece is not None:
        return ChunkPart(piece, state=source, source=member.source, kept_after_slide=survivor, repair=repair)
    distrusted, repair = (piece, repair) if survivor else (None, None)
    if member.chunk is not None:
        state = RowState.CANONICAL if source == RowState.CANONICAL else RowState.MISSING
        return ChunkPart(member.chunk, state=state, distrusted=distrusted, repair=repair)
    if distrusted is not None:
        bare = replace(distrusted, rows=())
        return ChunkPart(bare, state=RowState.MISSING, source="", distrusted=distrusted, repair=repair)
    return TextPart(member.token_ids)


def _survivors(parts: Sequence[WindowPart], sources: RowSources) -> frozenset[int]:
    """Return numbers of the parts that have seen all parts before them, some of which have left or are computed again.

    None where no part keeps its rows. None either where a part keeps its rows without having seen all parts before it:
    what that does to an answer must not be blamed on survivors.
    """
    kept = {part.number for part in parts if sources[part.number] == RowState.WRITTEN}
    as_taken = find_stale([part if part.number in kept else part.without_rows() for part in parts])
    if not kept or any(unseen(staleness) for staleness in as_taken if staleness.number in kept):
        return frozenset()
    as_written = find_stale(parts)
    again = {staleness.number for staleness in as_written if staleness.number not in kept and not unseen(staleness)}
    return frozenset(again.union(staleness.number for staleness in as_taken if staleness.number in kept))


def _copy_member(member: PartMember, table: KVTable, model: str, row: int, position: int) -> Chunk:
    layers = range(len(table.layouts))
    rows = tuple(table.read(layer, row, row + member.tokens).clone() for layer in layers)
    kind = "text" if member.chunk is None else member.chunk.kind
    return Chunk(uuid4().hex + uuid4().hex, kind, model, member.encoded, rows, base=position)

"""Reading what a caller appends: text is tokenized and media are encoded as a part of the window."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from emblema.errors import PromptError, StoreError
from emblema.kv.chunk import Chunk, Clip, EncodedChunk
from emblema.session.chat_template import TokenIds
from emblema.session.chunk_builder import PendingChunk, PendingMedia
from emblema.session.session import Session
from emblema.session.turn_tokenizer import AFTER_CHUNK, TurnTokenizer
from emblema.window.log import LogEntry
from emblema.window.parts import PartHandle, PartMember, WindowPart
from emblema.window.state import WindowFamily, WindowState

Members = tuple[PartMember, ...]


class PartReader:
    """Reads parts for a window and its forks.

    Args:
        session: encodes media and knows the stored chunks.
        turn: tokenizes the pieces of the window's turn.
        family: numbers the parts.
    """

    def __init__(self, session: Session, turn: TurnTokenizer, family: WindowFamily) -> None:
        self._session, self._turn, self._family = session, turn, family

    def opening(self) -> WindowPart | None:
        """Return the template's text before the first part; None without a template."""
        ids = self._turn.opening()
        if not ids:
            return None
        return WindowPart(PartHandle(0, "text", len(ids), ""), self._text(ids, None), pinned=True)

    def read(
        self,
        source: Any,
        state: WindowState,
        *,
        role: str | None,
        pinned: bool,
        options: Mapping[str, Any],
        entry: LogEntry,
    ) -> WindowPart:
        """Return a part, tokenized and encoded for the window's end; it keeps its tokens wherever it moves.

        Args:
            source: text, token ids, or media as `Window.append` takes them.
            state: the window, for the text before the part, and for chunks that need not be encoded again.
            role: of another speaker's turn.
            pinned: whether the part stays when the window slides.
            options: how media are read, as `ChunkBuilder.prepare` takes them.
            entry: counts encoder runs and recaptured rows.

        Raises:
            PromptError: it is empty, or a role is given for what is no text.
            MediaError: a source cannot be read.
            StoreError: a chunk was deleted.
        """
        kind = "text"
        if role is not None:
            if not isinstance(source, str):
                raise PromptError(f"a turn of the role {role!r} has to be text, not a {type(source).__name__}")
            members = self._text(self._turn.turn(role, source), None)
        elif isinstance(source, str):
            members = self._text(self._turn.text(state.last_text(), source), source)
        elif isinstance(source, list | tuple) and all(type(token) is int for token in source):
            members = self._text(tuple(source), None)
        else:
            kind, chunks = self._chunks(source, state, options, entry)
            members = self._surround(chunks, state)
        if not members:
            raise PromptError("the part is empty: give text, token ids or a source of media")
        handle = self._family.new_handle(kind, sum(member.tokens for member in members))
        return WindowPart(handle, members, pinned)

    def _text(self, ids: TokenIds, text: str | None) -> Members:
        return (PartMember(self._session.adapter.encode_text(torch.tensor(ids)), text=text),) if ids else ()

    def _surround(self, chunks: Sequence[Chunk], state: WindowState) -> Members:
        """Return chunks with the text that the template writes around each of them."""
        members: Members = ()
        preceding = state.last_text()
        for chunk in chunks:
            before, after = self._turn.around(chunk.kind)
            if before:
                members += self._text(self._turn.text(preceding, before), before)
            members += (PartMember(chunk.encoded, chunk=chunk),)
            preceding = AFTER_CHUNK
            if after:
                members += self._text(self._turn.text(preceding, after), after)
        return members

    def _chunks(
        self, source: Any, state: WindowState, options: Mapping[str, Any], entry: LogEntry
    ) -> tuple[str, list[Chunk]]:
        """Return the kind and the chunks of media; the decoder runs only for chunks that had been deleted."""
        builder = self._session.chunk_builder
        if isinstance(source, Chunk | Clip):
            chunks = [source] if isinstance(source, Chunk) else list(source)
            deleted = self._session.store.deleted([chunk.id for chunk in chunks])
            if deleted:
                raise StoreError(f"chunk {min(deleted)[:12]} was deleted, or has expired: append its media again")
            return source.kind, chunks
        pieces = [source] if isinstance(source, EncodedChunk) else source
        if isinstance(pieces, list | tuple) and pieces and all(isinstance(piece, EncodedChunk) for piece in pieces):
            media, runs = PendingMedia(tuple(builder.encoded(piece) for piece in pieces)), 0
        elif isinstance(source, list | tuple):
            raise PromptError("a part is one thing: append text, token ids and media one after another")
        else:
            media, runs = builder.prepare(source, **options), 1
        chunks = [self._chunk(pending, state, runs, entry) for pending in media.chunks]
        return media.clip or media.chunks[0].kind, chunks

    def _chunk(self, pending: PendingChunk, state: WindowState, runs: int, entry: LogEntry) -> Chunk:
        """Return a chunk that the window or the store knows, or encode it; a deleted one is stored again with rows."""
        builder = self._session.chunk_builder
        deleted = self._session.store.deleted(pending.ids[:1])
        found = None if deleted else state.find_chunk(pending.ids) or builder.find(pending)
        if found is not None:
            return found
        entry.encoder_runs += runs
        if not deleted:
            encoded = pending.encode()
            builder.note_missing(pending)
            return builder.handle(pending.ids[0], pending.kind, encoded)
        built = builder.build(replace(pending, ids=pending.ids[:1]))
        entry.rows_recaptured += built.tokens
        return built

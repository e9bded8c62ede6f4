"""What a window still asks of a session beside the session's own methods. To be moved into the window's room."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from emblema.errors import PromptError, StoreError
from emblema.kv.chunk import Chunk, Clip, Encoded, EncodedChunk
from emblema.link.policy.costs import Rates
from emblema.link.policy.policy import Lane
from emblema.link.prompt import Part, Prompt, RowState
from emblema.link.strategies.base import Strategy
from emblema.link.taken_rows import ModelGeometry
from emblema.session.chat_template import TokenIds
from emblema.session.chunk_builder import PendingMedia
from emblema.session.decoding import Sampling
from emblema.session.replies import Piece, Reply, last_reply
from emblema.session.requests import LinkRequest, Prefill
from emblema.session.session import DECODE_RESERVE, Session
from emblema.session.turn_tokenizer import PrecedingText, TurnTokenizer
from emblema.store.keys import ArtifactKind, PatchKey
from emblema.window.seam import Taken


class EngineHost:
    """A session and the tokenizer of its turn, for one window and its forks."""

    def __init__(self, session: Session, tokenizer: TurnTokenizer) -> None:
        self.session, self.tokenizer = session, tokenizer
        self.patches = 0
        self.row_bytes = session.row_bytes

    @property
    def model(self) -> str:
        return self.session.adapter.fingerprint

    @property
    def shape(self) -> ModelGeometry:
        return self.session.adapter

    def opening(self) -> TokenIds:
        return self.tokenizer.opening()

    def spell(self, run: PrecedingText, text: str) -> TokenIds:
        return self.tokenizer.text(run, text)

    def close(self, run: PrecedingText, question: str | Sequence[int]) -> TokenIds:
        return self.tokenizer.closing(run, question)

    def turn(self, role: str, text: str) -> TokenIds:
        return self.tokenizer.turn(role, text)

    def take(self, source: Any, known: Callable[[str], Chunk | None], options: Mapping[str, Any]) -> Taken:
        builder = self.session.chunk_builder
        if isinstance(source, Chunk | Clip):
            chunks = [source] if isinstance(source, Chunk) else list(source)
            deleted = self.gone([chunk.id for chunk in chunks])
            if deleted:
                raise StoreError(f"chunk {min(deleted)[:12]} was deleted, or has expired: append its media again")
            return self._taken(chunks, source.kind, 0, 0)
        pieces = [source] if isinstance(source, EncodedChunk) else source
        if isinstance(pieces, list | tuple) and pieces and all(isinstance(piece, EncodedChunk) for piece in pieces):
            return self._build(PendingMedia(tuple(builder.encoded(piece) for piece in pieces)), known, runs=0)
        if isinstance(source, list | tuple):
            raise PromptError("a part is one thing: append text, token ids and media one after another")
        return self._build(builder.prepare(source, **options), known, runs=1)

    def _build(self, media: PendingMedia, known: Callable[[str], Chunk | None], runs: int) -> Taken:
        """Chunks that neither the window nor the store has are encoded; deleted ones are stored again, rows and all."""
        builder = self.session.chunk_builder
        chunks: list[Chunk] = []
        encoder_runs = rows = 0
        for pending in media.chunks:
            deleted = self.gone(pending.ids[:1])
            held = [chunk for chunk in map(known, pending.ids) if chunk is not None]
            found = None if deleted else next(iter(held), None) or builder.find(pending)
            if found is None:
                encoder_runs += runs
                piece = EncodedChunk(pending.ids[0], pending.kind, builder.owner, pending.encode())
                if deleted:
                    found = builder.build(builder.encoded(piece))
                    rows += found.tokens
                else:
                    found = builder.handle(piece.id, piece.kind, piece.encoded)
            chunks.append(found)
        return self._taken(chunks, media.clip or media.chunks[0].kind, encoder_runs, rows)

    def _taken(self, chunks: Sequence[Chunk], kind: str, runs: int, rows: int) -> Taken:
        members: list[Chunk | str] = []
        for chunk in chunks:
            before, after = self.tokenizer.around(chunk.kind)
            members += [*([before] if before else []), chunk, *([after] if after else [])]
        return Taken(tuple(members), kind, runs, rows)

    def encode_text(self, token_ids: TokenIds) -> Encoded:
        return self.session.adapter.encode_text(torch.tensor(token_ids))

    def lay(self, parts: Sequence[Part]) -> Prompt:
        return self.session.prompt_of(parts)

    def link(self, prompt: Prompt, strategy: str | Strategy, knobs: Mapping[str, Any] | None) -> Prefill:
        session, runtime = self.session, self.session.policy_runtime
        most = 0 if knobs is None else Sampling.of(**knobs).max_new_tokens
        session.refuse_without_room(prompt, most)
        chunks = {part.chunk.id for part in prompt.chunk_parts if part.state is RowState.CANONICAL}
        stored = {key for chunk in chunks for key in session.store.patch_keys(chunk)}
        queued = runtime.patches_queued
        prefill = session.link(LinkRequest(prompt, strategy, min(most, DECODE_RESERVE)))
        patches = [part.patch.key for part in prefill.plan.ranges if part.patch]
        used = {key for key in patches if key.kind is not ArtifactKind.REPAIR}
        self.patches += len(used - stored) + runtime.patches_queued - queued
        return prefill

    def trusts(self, kind: str, lane: Lane, strategy: str | Strategy) -> bool:
        return self.session.trusts(kind, lane, strategy)

    @property
    def rates(self) -> Rates | None:
        return self.session.policy_runtime.rates

    def patch_keys(self, chunk: str) -> Collection[PatchKey]:
        return self.session.store.patch_keys(chunk)

    def rest(self) -> None:
        self.session.after_answer()

    def reply(self, linkage: Prefill, strategy: str | Strategy, knobs: Mapping[str, Any], began: float) -> Reply:
        return last_reply(self.pieces(linkage, strategy, knobs, began))

    def pieces(
        self, linkage: Prefill, strategy: str | Strategy, knobs: Mapping[str, Any], began: float
    ) -> Iterator[Piece]:
        return self.session.decode(linkage, Sampling.of(**knobs), began)

    def gone(self, chunks: Collection[str]) -> frozenset[str]:
        return self.session.store.deleted(chunks)

    @property
    def deletions(self) -> int:
        return self.session.store.deletions

    def held(self, chunks: Collection[str]) -> bool:
        return all(id in self.session.store for id in chunks)

    def stored(self, key: PatchKey) -> bool:
        return self.session.store.find_patch(key) is not None

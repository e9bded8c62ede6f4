"""An engine as a window sees it: encodes, links and decodes for it."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from emblema.engine.decoding import Sampler, Sampling
from emblema.engine.replies import Piece, Prefill, Reply, TextStream, last_of, stream_reply
from emblema.engine.spelling import Spelling
from emblema.engine.workshop import PendingChunk, PendingMedia
from emblema.errors import ModelError, PromptError, StoreError
from emblema.kv.chunk import Chunk, ChunkKind, Clip, Encoded, EncodedChunk
from emblema.link.assemble import ModelGeometry
from emblema.link.policy.costs import Rates
from emblema.link.policy.policy import Lane
from emblema.link.prompt import ChunkPart, Part, Prompt, RowState
from emblema.link.strategies.auto import Auto
from emblema.link.strategies.base import Strategy
from emblema.store.keys import ArtifactKind, PatchKey
from emblema.window.seam import Taken, TokenIds

if TYPE_CHECKING:
    from emblema.engine.engine import Engine

RESERVE = 256
"""Rows that a table keeps room for before it has to grow."""


class EngineHost(Spelling):
    """One engine, with or without its chat template, for one window and its forks."""

    def __init__(self, engine: "Engine", template: bool, system: str | None) -> None:
        super().__init__(engine, template, system)
        self.patches = 0
        adapter = engine.adapter
        features = sum(layout.features for layout in adapter.layouts)
        self.row_bytes = features * adapter.dtype.itemsize

    @property
    def model(self) -> str:
        return self._engine.adapter.fingerprint

    def take(self, source: Any, known: Callable[[str], Chunk | None], options: Mapping[str, Any]) -> Taken:
        if isinstance(source, Chunk | Clip):
            chunks = [source] if isinstance(source, Chunk) else list(source)
            dead = self.gone([chunk.id for chunk in chunks])
            if dead:
                raise StoreError(f"chunk {min(dead)[:12]} was deleted, or has expired: append its media again")
            return self._taken(chunks, source.kind, 0, 0)
        pieces = [source] if isinstance(source, EncodedChunk) else source
        if isinstance(pieces, list | tuple) and pieces and all(isinstance(one, EncodedChunk) for one in pieces):
            owner = self._engine._workshop.owner
            if any(piece.owner != owner for piece in pieces):
                raise ModelError("these embeddings were made by another model or for another tenant: encode them here")
            drafts = [PendingChunk((one.id,), one.kind, partial(getattr, one, "encoded")) for one in pieces]
            return self._drafted(PendingMedia(tuple(drafts)), known, runs=0)
        if isinstance(source, list | tuple):
            raise PromptError("a part is one thing: append text, token ids and media one after another")
        return self._drafted(self._work(source, **options), known, runs=1)

    def _drafted(self, work: PendingMedia, known: Callable[[str], Chunk | None], runs: int) -> Taken:
        chunks: list[Chunk] = []
        encoded = rows = 0
        for draft in work.drafts:
            found = None if self.gone(draft.ids[:1]) else self._found(draft, known)
            if found is None:
                encoded += runs
                found, ran = self._handle(draft.ids[0], draft.kind, draft.encode())
                rows += ran
            chunks.append(found)
        return self._taken(chunks, work.clip or work.drafts[0].kind, encoded, rows)

    def encode_text(self, token_ids: TokenIds) -> Encoded:
        return self._engine.adapter.encode_text(torch.tensor(token_ids))

    def lay(self, parts: Sequence[Part]) -> Prompt:
        return self._engine._fitting(Prompt.of(parts, self._engine.adapter.axes))

    def link(self, prompt: Prompt, strategy: str | Strategy, knobs: Mapping[str, Any] | None) -> Prefill:
        engine = self._engine
        most = 0 if knobs is None else Sampling.of(**knobs).max_new_tokens
        engine._refuse_without_room(prompt, most)
        chunks = {part.chunk.id for part in _chunk_parts(prompt) if part.state is RowState.CANONICAL}
        stored = {key for chunk in chunks for key in engine.store.patch_keys(chunk)}
        handed = self._handed_over()
        prefill = engine._prefill(prompt, strategy, min(most, RESERVE), time.perf_counter())
        used = {
            part.patch.key
            for part in prefill.plan.ranges
            if part.patch and part.patch.key.kind is not ArtifactKind.REPAIR
        }
        self.patches += len(used - stored) + self._handed_over() - handed
        return prefill

    @property
    def shape(self) -> ModelGeometry:
        return self._engine.adapter

    def trusts(self, kind: str, lane: Lane, strategy: str | Strategy) -> bool:
        if (strategy if isinstance(strategy, str) else strategy.name) != "auto":
            return True
        policy = strategy.policy if isinstance(strategy, Auto) else None
        return self._engine.policy.trusts(kind, lane, policy)

    @property
    def rates(self) -> Rates | None:
        return self._engine.policy.rates

    def patch_keys(self, chunk: str) -> Collection[PatchKey]:
        return self._engine.store.patch_keys(chunk)

    def _handed_over(self) -> int:
        """How many chunks' rows were handed over to be formed into patches behind the answers."""
        counts = self._engine.policy.statistics.forming
        return counts.queued + counts.formed + counts.refused + counts.lost + counts.failed

    def rest(self) -> None:
        self._engine._rest()

    def reply(self, linkage: Prefill, strategy: str | Strategy, knobs: Mapping[str, Any], began: float) -> Reply:
        return last_of(self.pieces(linkage, strategy, knobs, began))

    def pieces(
        self, linkage: Prefill, strategy: str | Strategy, knobs: Mapping[str, Any], began: float
    ) -> Iterator[Piece]:
        engine, sampling = self._engine, Sampling.of(**knobs)
        replying = engine._replying((), linkage, strategy, Sampler(sampling), None)
        tokens = replying.tokens()
        first = next(tokens)
        replying.usage = replace(replying.usage, ttft_seconds=time.perf_counter() - began)
        stream = TextStream(engine.tokenizer, sampling.stop)
        return stream_reply(chain([first], tokens), stream, replying, engine.end_tokens)

    def gone(self, chunks: Collection[str]) -> frozenset[str]:
        return self._engine.store.deleted(chunks)

    @property
    def deletions(self) -> int:
        return self._engine.store.deletions

    def held(self, chunks: Collection[str]) -> bool:
        return all(id in self._engine.store for id in chunks)

    def stored(self, key: PatchKey) -> bool:
        return self._engine.store.find_patch(key) is not None

    def _work(
        self, source: Any, *, kind: str | None = None, fps: float = 1.0, frames_per_segment: int = 2
    ) -> PendingMedia:
        return self._engine._workshop.work(source, kind, fps, frames_per_segment)

    def _found(self, draft: PendingChunk, known: Callable[[str], Chunk | None]) -> Chunk | None:
        """The chunk of a draft, where the window or the store knows it."""
        return next((known(id) for id in draft.ids if known(id) is not None), None) or self._engine._workshop.found(
            draft
        )

    def _handle(self, id: str, kind: ChunkKind, encoded: Encoded) -> tuple[Chunk, int]:
        """A chunk as the store gives it out, whose rows are made when they are first asked for; and the rows that ran.

        One that was deleted before is stored again, so that the store knows that it is wanted: its rows are made now.
        """
        workshop = self._engine._workshop
        if self.gone([id]):
            return workshop.rebuild(EncodedChunk(id, kind, workshop.owner, encoded)), encoded.tokens
        return workshop.handle(id, kind, encoded), 0

    def _taken(self, chunks: Sequence[Chunk], kind: str, runs: int, rows: int) -> Taken:
        members: list[Chunk | str] = []
        for chunk in chunks:
            before, after = self.around(chunk.kind)
            members += [*([before] if before else []), chunk, *([after] if after else [])]
        return Taken(tuple(members), kind, runs, rows)


def _chunk_parts(prompt: Prompt) -> list[ChunkPart]:
    return [segment.part for segment in prompt.segments if isinstance(segment.part, ChunkPart)]

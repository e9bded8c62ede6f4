"""Where chunks are made: media loaded within limits, encoded and prefilled alone once, found again by what they are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from blake3 import blake3
from PIL import Image

from emblema.errors import MediaError, ModelError, PromptError
from emblema.kv.chunk import Chunk, ChunkKind, Clip, Encoded, EncodedChunk
from emblema.link.prompt import ChunkPart, RowState
from emblema.media import MediaLimits, load_audio, load_image, load_pages, load_video, media_bytes, media_kind, segments
from emblema.media.source import is_address, read_source
from emblema.models.adapter import Adapter
from emblema.models.prepare import Prepared, Preparer
from emblema.store.identity import chunk_id, owner_id
from emblema.store.record import Terms
from emblema.store.tenant import TenantStore

AUDIO_RATE = 16_000


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A piece of media whose identity is known and whose encoding has not begun.

    Attributes:
        ids: those it may be found under: the tenant's own, which it is kept under, then the shared library's.
        kind: what the piece is.
        encode: runs the encoder.
    """

    ids: tuple[str, ...]
    kind: ChunkKind
    encode: Callable[[], Encoded]


@dataclass(frozen=True, slots=True)
class PendingMedia:
    """The drafts of one source: one for a picture or recording, one a segment or page for what becomes a clip."""

    drafts: tuple[PendingChunk, ...]
    clip: Literal["video", "document"] | None = None


class ChunkBuilder:
    """Makes chunks on one adapter and keeps them in one tenant's view of a store."""

    def __init__(self, adapter: Adapter, preparer: Preparer | None, view: TenantStore, limits: MediaLimits) -> None:
        self.adapter, self.view, self.limits = adapter, view, limits
        self._preparer = preparer

    @property
    def preparer(self) -> Preparer:
        """How media become what the encoder takes.

        Raises:
            ModelError: the model came without a processor.
        """
        if self._preparer is None:
            raise ModelError(
                "this model came without a processor: pass Engine(model, processor) one that has an "
                "image_processor and a tokenizer"
            )
        return self._preparer

    @property
    def owner(self) -> str:
        """Digest of the model, dtype and tenant that pieces are made for."""
        return owner_id(self.adapter.fingerprint, self.adapter.dtype, self.view.salt)

    def add(self, work: PendingMedia, terms: Terms | None = None) -> Chunk | Clip:
        """The chunk or clip of a source; what the store has is neither encoded nor prefilled again."""
        chunks = [self.made(draft, terms) for draft in work.drafts]
        return chunks[0] if work.clip is None else _clip(work.clip, chunks)

    def encode(self, work: PendingMedia) -> tuple[EncodedChunk, ...]:
        """The encoder's part alone, piece by piece; the decoder does not run."""
        return tuple(EncodedChunk(draft.ids[0], draft.kind, self.owner, draft.encode()) for draft in work.drafts)

    def rebuild(self, piece: EncodedChunk, terms: Terms | None = None) -> Chunk:
        """The chunk of a piece that was encoded before; the encoder does not run.

        Raises:
            ModelError: another model encoded it, or it was encoded for another tenant.
        """
        self._refuse_strange(piece)
        return self.made(PendingChunk((piece.id,), piece.kind, lambda: piece.encoded), terms)

    def part(self, piece: EncodedChunk) -> ChunkPart:
        """A piece that was encoded before, as a part of a prompt; see `laid`.

        Raises:
            ModelError: another model encoded it, or it was encoded for another tenant.
        """
        self._refuse_strange(piece)
        return self.laid(PendingChunk((piece.id,), piece.kind, lambda: piece.encoded))

    def laid(self, draft: PendingChunk) -> ChunkPart:
        """A draft as a part of a prompt: the store's chunk; or what the encoder makes, to be computed where it stands.

        One that was deleted before is made and stored again, so that the store knows that it is wanted.
        """
        found = self.found(draft)
        if found is not None or self.view.deleted(draft.ids[:1]):
            return ChunkPart(found or self.made(draft))
        return ChunkPart(self.handle(draft.ids[0], draft.kind, draft.encode()), state=RowState.MISSING)

    def handle(self, id: str, kind: ChunkKind, encoded: Encoded) -> Chunk:
        """A chunk as the store gives it out, whose rows are made when they are first asked for."""
        adapter = self.adapter
        sizes = [layout.features * encoded.tokens * adapter.dtype.itemsize for layout in adapter.layouts]
        return self.view.handle(Chunk(id, kind, adapter.fingerprint, encoded, ()), sizes)

    def _refuse_strange(self, piece: EncodedChunk) -> None:
        if piece.owner != self.owner:
            raise ModelError("these embeddings were made by another model or for another tenant: encode the media here")

    def work(self, source: Any, kind: str | None, fps: float, frames_per_segment: int) -> PendingMedia:
        """What has to be made of a source; nothing is encoded yet."""
        if isinstance(source, str | Path) and is_address(str(source)):
            source = read_source(str(source), self.limits)
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        kind = kind or (media_kind(source, self.limits) if isinstance(source, str | Path | bytes) else "image")
        if kind == "image":
            return PendingMedia((self._picture(load_image(source, self.limits), "image"),))
        if kind == "document":
            pages = load_pages(source, limits=self.limits)
            return PendingMedia(tuple(self._picture(page, "page") for page in pages), clip="document")
        if kind == "video":
            return self._video(source, fps, frames_per_segment)
        if kind == "audio":
            audio = load_audio(source, AUDIO_RATE, self.limits)
            prepare = partial(self.preparer.audio, audio.samples, audio.rate)
            return PendingMedia((self._draft("audio", media_bytes(audio), {}, prepare),))
        raise MediaError(f"unknown kind {kind!r}: choose image, video, document or audio")

    def passage(self, token_ids: Sequence[int]) -> PendingMedia:
        """A text passage."""
        tokens = torch.tensor(list(token_ids))
        written = b"".join(token.to_bytes(8, "little") for token in token_ids)
        ids = self._ids("text", written, {})
        return PendingMedia((PendingChunk(ids, "text", lambda: self.adapter.encode_text(tokens)),))

    def _picture(self, picture: Image.Image, kind: ChunkKind) -> PendingChunk:
        return self._draft(kind, media_bytes(picture), {}, partial(self.preparer.image, picture))

    def _video(self, source: Any, fps: float, frames_per_segment: int) -> PendingMedia:
        video = load_video(source, fps, self.limits)
        seconds = video.seconds_per_frame
        drafts = []
        for segment in segments(video, frames_per_segment):
            content = b"".join(media_bytes(frame) for frame in segment.frames)
            # Only a segment that says when it happens is bound to its time; any other is the same at every time.
            start = segment.times[0] if self.preparer.time_stamps else 0.0
            prepare = partial(self.preparer.video, segment.frames, seconds, start)
            drafts.append(self._draft("video", content, {"seconds per frame": seconds, "start": start}, prepare))
        return PendingMedia(tuple(drafts), clip="video")

    def _draft(
        self, kind: ChunkKind, content: bytes, timing: dict[str, float], prepare: Callable[[], Prepared]
    ) -> PendingChunk:
        ids = self._ids(kind, content, {"timing": timing, "processor": self.preparer.options})
        return PendingChunk(ids, kind, lambda: self.adapter.encode(prepare()))

    def _ids(self, kind: ChunkKind, content: bytes, options: dict[str, Any]) -> tuple[str, ...]:
        fingerprint = self.adapter.fingerprint
        return tuple(
            chunk_id(
                (kind.encode(), content),
                options=options,
                model_fingerprint=fingerprint,
                dtype=self.adapter.dtype,
                adapter_version=self.adapter.version,
                salt=salt,
            )
            for salt in self.view.lookup_salts
        )

    def _fits(self, chunk: Chunk) -> bool:
        encoded, tokens = chunk.encoded, chunk.tokens
        return (
            encoded.embeds.shape == (tokens, self.adapter.hidden_size)
            and encoded.positions.shape == (self.adapter.axes, tokens)
            and len(chunk.rows) == len(self.adapter.layouts)
            and chunk.model == self.adapter.fingerprint
        )

    def found(self, draft: PendingChunk) -> Chunk | None:
        """The chunk of a draft, if the store has it; what is kept there under its id and does not fit is deleted."""
        for name in draft.ids:
            found = self.view.find(name)
            if found is not None and self._fits(found):
                return found
            if found is not None:
                # Well kept, and not what this model makes: whoever wrote the folder put it there.
                self.view.delete(name)
        return None

    def made(self, draft: PendingChunk, terms: Terms | None = None) -> Chunk:
        """The chunk of a draft: the store's, or encoded, prefilled alone and kept."""
        found = self.found(draft)
        if found is not None:
            return found
        encoded = draft.encode()
        length, context = max(encoded.tokens, encoded.span), self.adapter.context_length
        if length > context:
            raise PromptError(f"a {draft.kind} takes {length} positions; the model's context holds {context}")
        rows = self.adapter.capture(encoded)
        return self.view.put(Chunk(draft.ids[0], draft.kind, self.adapter.fingerprint, encoded, rows), terms)


def _clip(kind: Literal["video", "document"], chunks: Sequence[Chunk]) -> Clip:
    digest = blake3(b"".join(bytes.fromhex(chunk.id) for chunk in chunks)).hexdigest()
    return Clip(digest, kind, tuple(chunks))

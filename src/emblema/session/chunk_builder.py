"""Building chunks: media are loaded within limits, encoded and prefilled alone once, and found again by content."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from blake3 import blake3
from PIL import Image

from emblema.errors import ContextLengthError, ModelError
from emblema.kv.chunk import Chunk, ChunkKind, Clip, DeferredEncoded, Encoded, EncodedChunk
from emblema.link.known_media import KnownMedia, MediaDigest, ShownMedia, digest_pictures
from emblema.link.mapped import is_mapped
from emblema.link.prompt import ChangedFrom, ChunkPart, Rows, RowState
from emblema.link.second_pass import runs_of
from emblema.media import MediaLimits, media_bytes, segments
from emblema.media.load import DocumentPages, load_media
from emblema.media.settings import PLAIN, MediaSettings
from emblema.media.video import Video
from emblema.models.adapter import Adapter
from emblema.models.cells import PictureCells
from emblema.models.encode_parts import encode_changed, encode_nearly, encode_noting
from emblema.models.families.base import Prepared
from emblema.models.prepare import Preparer
from emblema.session.known_pictures import KnownPictures
from emblema.store.identity import ChunkIds, owner_id
from emblema.store.record import Terms
from emblema.store.store import TenantStore

REMEMBERED_BYTES = 32 * 2**20
"""Bytes of encodings that are remembered, at most, of media that the store lacks."""
MOST_MOVED = 0.02
"""How far what did not change may move in the encoder (`encode_nearly`); answers diverge by 0.015 nats at 0.033."""
MOST_FAR = 3
"""Pictures in a row of which more moved, after which pictures of this encoder count as new without a try."""


class EncoderInput:
    """The encoder's input for a piece of media: made at the first call, which lets the media go.

    Args:
        make: makes it, from media that only it holds.
        pictures: of the media; none of a sound.

    Attributes:
        digest: of the pictures, once it is made.
    """

    def __init__(self, make: Callable[[], Prepared], pictures: Sequence[Image.Image] = ()) -> None:
        self._make: Callable[[], Prepared] | None = make
        self._made: Prepared | None = None
        self._pictures, self.digest = pictures, MediaDigest()

    def __call__(self) -> Prepared:
        """Return the input."""
        if self._made is None and self._make is not None:
            self.digest = digest_pictures(self._pictures) if self._pictures else self.digest
            self._made, self._make, self._pictures = self._make(), None, ()
        if self._made is None:
            raise ModelError("the encoder's input was not made")
        return self._made

    @property
    def bytes(self) -> int:
        """Bytes of the input; 0 before it is made."""
        return 0 if self._made is None else sum(tensor.nbytes for tensor in self._made.features.values())


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A piece of media whose identity is known and whose encoding has not begun.

    Attributes:
        ids: ids to look it up by: the tenant's, which it is kept under, then the shared library's.
        kind: what the piece is.
        encode: runs the encoder.
        input: of the encoder; None where it needs none to be made. Any thread may call it before `encode`.
        options: what beside content and model decides the ids.
        id_of: returns the tenant's id by a model's fingerprint and a data type; None where that is not known.
    """

    ids: tuple[str, ...]
    kind: ChunkKind
    encode: Callable[[], Encoded]
    input: EncoderInput | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    id_of: Callable[[str, str], str] | None = None


@dataclass(frozen=True, slots=True)
class PendingMedia:
    """The pending chunks of one source: one for a picture or recording, one a segment or page for a clip."""

    chunks: tuple[PendingChunk, ...]
    clip: Literal["video", "document"] | None = None


@dataclass(frozen=True, slots=True)
class _Encoding:
    """What the encoder made of one piece of media.

    Attributes:
        encoded: what the decoder will be fed.
        base: id of the stored picture that it differs little from; None for none.
        changed: the rows that differ, as ranges in order.
        share: of the picture's cells, those that differ.
        nearly: see `ChangedFrom.encoded`.
        input_bytes: of the encoder's input, where it is still to run on the whole picture.
    """

    encoded: Encoded
    base: str | None = None
    changed: tuple[Rows, ...] = ()
    share: float = 0.0
    nearly: Encoded | None = None
    input_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.encoded.bytes + self.input_bytes + (0 if self.nearly is None else self.nearly.bytes)


class ChunkBuilder:
    """Builds chunks on one adapter and keeps them in one tenant's store.

    Args:
        most_changed: share of a picture's cells that may differ from a stored one's for it to be made from that.
        tower_bytes: rows that are kept of encoders that attend over whole pictures, so that these are made so too.

    Attributes:
        pictures: the cells of the latest pictures.
        captured_tokens: rows that `build` has prefilled alone so far.
    """

    def __init__(
        self,
        adapter: Adapter,
        preparer: Preparer | None,
        store: TenantStore,
        limits: MediaLimits,
        most_changed: float = 0.0,
        tower_bytes: int = 0,
    ) -> None:
        self.adapter, self.store, self.limits = adapter, store, limits
        self._preparer = preparer
        self.captured_tokens = 0
        self._most_changed, self.pictures = most_changed, KnownPictures(most_changed)
        self._tower_bytes, self._far = tower_bytes, 0
        # What the encoder made of media that came with prompts and are in no store yet; the oldest go first.
        self._encodings: OrderedDict[str, _Encoding] = OrderedDict()
        self._known, self._options = KnownMedia.of(store), dict[str, Any]()

    @property
    def preparer(self) -> Preparer:
        """What turns media into the encoder's input.

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
        return owner_id(self.adapter.fingerprint, self.adapter.dtype, self.store.salt)

    def add(self, media: PendingMedia, terms: Terms | None = None) -> Chunk | Clip:
        """Return the chunk or clip of a source; what the store has is neither encoded nor prefilled again."""
        chunks = [self.build(pending, terms) for pending in media.chunks]
        return chunks[0] if media.clip is None else _clip(media.clip, chunks)

    def encode(self, media: PendingMedia) -> tuple[EncodedChunk, ...]:
        """Run the encoder alone, chunk by chunk; the decoder does not run."""
        return tuple(
            EncodedChunk(pending.ids[0], pending.kind, self.owner, pending.encode()) for pending in media.chunks
        )

    def encoded(self, piece: EncodedChunk) -> PendingChunk:
        """Return the pending chunk of a piece that was encoded before; the encoder will not run.

        Raises:
            ModelError: another model encoded it, or it was encoded for another tenant.
        """
        if piece.owner != self.owner:
            raise ModelError("these embeddings were made by another model or for another tenant: encode the media here")
        return PendingChunk((piece.id,), piece.kind, lambda: piece.encoded)

    def part_of(self, pending: PendingChunk) -> ChunkPart:
        """Return a part of a prompt: the store's chunk; or what the encoder makes, to be computed in its place.

        A chunk that was deleted before is built and stored again, so that the store knows that it is wanted.
        """
        found = self.find(pending)
        self._drop_deleted()
        if found is not None or self.store.deleted(pending.ids[:1]):
            self._encodings.pop(pending.ids[0], None)
            return ChunkPart(found or self._build_again(pending))
        name = pending.ids[0]
        encoding = self._encodings.pop(name, None) or self._encode(pending)
        self._encodings[name] = encoding
        while sum(held.bytes for held in self._encodings.values()) > REMEMBERED_BYTES:
            self._encodings.popitem(last=False)
        base = None if encoding.base is None else self.stored(encoding.base)
        if base is not None and not encoding.changed:
            return ChunkPart(base)
        self.note_missing(pending)
        changed = None if base is None else ChangedFrom(base, encoding.changed, encoding.share, encoding.nearly)
        chunk = self.handle(name, pending.kind, encoding.encoded)
        return ChunkPart(chunk, state=RowState.MISSING, changed=changed)

    def _drop_deleted(self) -> None:
        """Drop what is remembered of media that were deleted."""
        for name in self.store.deleted(self._encodings.keys()):
            del self._encodings[name]
        kept, owner = self.adapter.tower_rows, self.owner
        for name in self.store.deleted(kept.names(owner)):
            kept.forget(owner, name)

    def _build_again(self, pending: PendingChunk) -> Chunk:
        """Build a chunk that was deleted, and note that its rows were not there."""
        cause = self._known.explain(self._shown(pending), self.store)
        built = self.build(pending)
        self._known.note_cause(built.id, cause)
        return built

    def note_missing(self, pending: PendingChunk) -> None:
        """Note a piece, once it is encoded, that the store does not have."""
        self._known.note_missing(self._shown(pending), self.store)

    def _shown(self, pending: PendingChunk) -> ShownMedia:
        adapter, digest = self.adapter, MediaDigest() if pending.input is None else pending.input.digest
        facets = {"kind": pending.kind, "dtype": str(adapter.dtype), "version": adapter.version, **pending.options}
        return ShownMedia(pending.ids[0], adapter.fingerprint, facets, pending.id_of, digest)

    def _encode(self, pending: PendingChunk) -> "_Encoding":
        """Encode media that the store lacks; of a picture that differs little from a stored one, what differs."""
        cells = self._cells(pending)
        if cells is None:
            return _Encoding(pending.encode())
        name, kept, owner = pending.ids[0], self.adapter.tower_rows, self.owner

        def usable(id: str) -> bool:
            return self.stored(id) is not None and (cells.alone or kept.find(owner, id) is not None)

        near = self.pictures.nearest(name, cells.shape, cells.digests, usable)
        base = None if near is None else self.stored(near.id)
        self.pictures.note(name, cells.shape, cells.digests)
        if near is None or base is None:
            return _Encoding(self._encode_whole(pending, cells))
        rows, moved = kept.find(owner, near.id), 0.0
        if rows is None:
            encoded = encode_changed(self.adapter, cells, near.changed, base.encoded)
        else:
            encoded, moved = encode_nearly(self.adapter, cells, near.changed, base.encoded, rows)
        self._far = self._far + 1 if moved > MOST_MOVED else 0
        if self._far:
            return _Encoding(self._encode_whole(pending, cells))
        differs = torch.isin(cells.tokens, torch.tensor(near.changed, dtype=torch.int64))
        ranges = runs_of(encoded.visual.nonzero().squeeze(1)[differs])
        if cells.alone:
            return _Encoding(encoded, near.id, ranges, near.share)
        whole = DeferredEncoded(encoded, partial(self._encode_whole, pending, cells))
        size = 0 if pending.input is None else pending.input.bytes
        return _Encoding(whole, near.id, ranges, near.share, encoded, size)

    def _encode_whole(self, pending: PendingChunk, cells: PictureCells | None) -> Encoded:
        """Run the encoder on a piece of media, and keep what a picture that differs little needs of it."""
        if cells is None or cells.alone:
            return pending.encode()
        encoded, rows = encode_noting(self.adapter, cells.prepared, self._tower_bytes)
        if rows is not None:
            self.adapter.tower_rows.note(self.owner, pending.ids[0], rows, self._tower_bytes)
        return encoded

    def _cells(self, pending: PendingChunk) -> PictureCells | None:
        """Return the cells of a picture that may be compared with others; None for all else."""
        if self._most_changed == 0 or pending.input is None or pending.kind not in ("image", "page"):
            return None
        prepared = pending.input()
        if is_mapped(self.adapter.layouts, len(prepared.token_ids)):
            return None
        cells = self.adapter.cells(prepared)
        tried = self._tower_bytes > 0 and self._far < MOST_FAR
        return None if cells is None or not (cells.alone or tried) else cells

    def stored(self, id: str) -> Chunk | None:
        """Return a chunk that the store has and that is of this model, or None."""
        found = self.store.find(id)
        return found if found is not None and self._fits(found) else None

    def handle(self, id: str, kind: ChunkKind, encoded: Encoded) -> Chunk:
        """Return a chunk as the store gives it out, whose rows are made when they are first asked for."""
        adapter = self.adapter
        sizes = [layout.numbers(encoded.tokens) * adapter.dtype.itemsize for layout in adapter.layouts]
        return self.store.handle(Chunk(id, kind, adapter.fingerprint, encoded, ()), sizes)

    def prepare(
        self,
        source: Any,
        *,
        kind: str | None = None,
        fps: float = 1.0,
        frames_per_segment: int = 2,
        settings: MediaSettings = PLAIN,
    ) -> PendingMedia:
        """Load a source and return its pending chunks; nothing is encoded yet.

        Args:
            source, kind, fps, frames_per_segment: as `Engine.add` takes them.
            settings: how the source is to be taken.

        Any thread may call it, as long as the weights stay. Pending media are returned as they are.

        Raises:
            MediaError: the source cannot be read, is outside the limits, or cannot follow a setting; the kind is
                unknown.
        """
        if isinstance(source, PendingMedia):
            return source
        media = load_media(source, kind, fps, self.limits, settings)
        if isinstance(media, Image.Image):
            return PendingMedia((self._picture(media, "image"),))
        if isinstance(media, DocumentPages):
            return PendingMedia(tuple(self._picture(page, "page") for page in media.pictures), clip="document")
        if isinstance(media, Video):
            return self._video(media, frames_per_segment)
        prepare = partial(self.preparer.audio, media.samples, media.rate)
        return PendingMedia((self._pending("audio", media_bytes(media), {}, prepare),))

    def prepare_text(self, token_ids: Sequence[int]) -> PendingMedia:
        """Return the pending chunk of a text passage."""
        tokens = torch.tensor(list(token_ids))
        written = b"".join(token.to_bytes(8, "little") for token in token_ids)
        ids, _ = self._ids("text", written, {})
        return PendingMedia((PendingChunk(ids, "text", lambda: self.adapter.encode_text(tokens)),))

    def _picture(self, picture: Image.Image, kind: ChunkKind) -> PendingChunk:
        return self._pending(kind, media_bytes(picture), {}, partial(self.preparer.image, picture), pictures=[picture])

    def _video(self, video: Video, frames_per_segment: int) -> PendingMedia:
        seconds = video.seconds_per_frame
        options = self.preparer.video_options(*video.frames[0].size, len(video.frames)) if video.frames else {}
        chunks = []
        for segment in segments(video, frames_per_segment):
            content = b"".join(media_bytes(frame) for frame in segment.frames)
            # The start is part of the identity only where the model is told times.
            start = segment.times[0] if self.preparer.time_stamps else 0.0
            prepare = partial(self.preparer.video, segment.frames, seconds, start, len(video.frames))
            timing = {"seconds per frame": seconds, "start": start}
            chunks.append(self._pending("video", content, timing, prepare, options, segment.frames))
        return PendingMedia(tuple(chunks), clip="video")

    def _pending(
        self,
        kind: ChunkKind,
        content: bytes,
        timing: dict[str, float],
        prepare: Callable[[], Prepared],
        frames: Mapping[str, Any] = {},
        pictures: Sequence[Image.Image] = (),
    ) -> PendingChunk:
        options = {"timing": timing, "processor": self._shared({**self.preparer.options, **frames})}
        ids, id_of = self._ids(kind, content, options)
        prepared = EncoderInput(prepare, pictures)
        return PendingChunk(ids, kind, lambda: self.adapter.encode(prepared()), prepared, options, id_of)

    def _shared(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options as one object as long as they are the same: what is remembered of media refers to it."""
        if options != self._options:
            self._options = options
        return self._options

    def _ids(
        self, kind: ChunkKind, content: bytes, options: dict[str, Any]
    ) -> tuple[tuple[str, ...], Callable[[str, str], str]]:
        """Return the ids of a chunk, and what gives the tenant's by another model and data type."""
        adapter, parts = self.adapter, (kind.encode(), content)
        made = [
            ChunkIds(parts, options=options, version=adapter.version, anchor=adapter.anchor, salt=salt)
            for salt in self.store.lookup_salts
        ]
        return tuple(each.of(adapter.fingerprint, adapter.dtype) for each in made), made[0].of

    def _fits(self, chunk: Chunk) -> bool:
        encoded, tokens = chunk.encoded, chunk.tokens
        return (
            encoded.embeds.shape == (tokens, self.adapter.hidden_size)
            and encoded.positions.shape == (self.adapter.axes, tokens)
            and len(chunk.rows) == len(self.adapter.layouts)
            and chunk.model == self.adapter.fingerprint
        )

    def find(self, pending: PendingChunk) -> Chunk | None:
        """Return the chunk, if the store has it; what is kept there under its id and does not fit is deleted."""
        for name in pending.ids:
            found = self.store.find(name)
            if found is not None and self._fits(found):
                self._known.note_found(pending.ids[0])
                return found
            if found is not None:
                # Intact, but of other shapes than this model makes: a forged file.
                self.store.delete(name)
        return None

    def build(self, pending: PendingChunk, terms: Terms | None = None) -> Chunk:
        """Return the chunk: the store's, or encoded, prefilled alone and kept."""
        found = self.find(pending)
        if found is not None:
            return found
        cells = self._cells(pending)
        encoded = self._encode_whole(pending, cells)
        if cells is not None:
            self.pictures.note(pending.ids[0], cells.shape, cells.digests)
        length, context = max(encoded.tokens, encoded.span), self.adapter.context_length
        if length > context:
            raise ContextLengthError(f"a {pending.kind} takes {length} positions; the model's context holds {context}")
        rows = self.adapter.capture(encoded)
        self._known.note_stored(self._shown(pending))
        self.captured_tokens += encoded.tokens
        return self.store.put(Chunk(pending.ids[0], pending.kind, self.adapter.fingerprint, encoded, rows), terms)


def _clip(kind: Literal["video", "document"], chunks: Sequence[Chunk]) -> Clip:
    digest = blake3(b"".join(bytes.fromhex(chunk.id) for chunk in chunks)).hexdigest()
    return Clip(digest, kind, tuple(chunks))

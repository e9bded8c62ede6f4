"""Where chunks are made: media loaded within limits, encoded and prefilled alone once, found again by what they are."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import blake3
import torch
from PIL import Image

from emblema.errors import MediaError, ModelError
from emblema.kv.chunk import Chunk, ChunkKind, Clip, Encoded
from emblema.media import MediaLimits, load_audio, load_image, load_pages, load_video, media_bytes, media_kind, segments
from emblema.media.source import is_address, read_source
from emblema.models.adapter import Adapter
from emblema.models.prepare import Prepared, Preparer
from emblema.store.identity import chunk_id
from emblema.store.memory import MemoryStore

AUDIO_RATE = 16_000


class Workshop:
    """Makes chunks on one adapter and keeps them in one store, under one tenant's salt."""

    def __init__(
        self, adapter: Adapter, preparer: Preparer | None, store: MemoryStore, limits: MediaLimits, salt: bytes
    ) -> None:
        self.adapter, self.store, self.limits, self.salt = adapter, store, limits, salt
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

    def add(self, source: Any, kind: str | None, fps: float, frames_per_segment: int) -> Chunk | Clip:
        """A chunk of a picture or recording, or a clip of a video or document."""
        if isinstance(source, str | Path) and is_address(str(source)):
            source = read_source(str(source), self.limits)
        if isinstance(source, bytearray | memoryview):
            source = bytes(source)
        kind = kind or (media_kind(source, self.limits) if isinstance(source, str | Path | bytes) else "image")
        if kind == "image":
            return self.image(load_image(source, self.limits), "image")
        if kind == "video":
            return self.video(source, fps, frames_per_segment)
        if kind == "document":
            return clip_of("document", [self.image(page, "page") for page in load_pages(source, limits=self.limits)])
        if kind == "audio":
            audio = load_audio(source, AUDIO_RATE, self.limits)
            return self.make("audio", media_bytes(audio), {}, lambda: self.preparer.audio(audio.samples, audio.rate))
        raise MediaError(f"unknown kind {kind!r}: choose image, video, document or audio")

    def image(self, picture: Image.Image, kind: ChunkKind) -> Chunk:
        """The chunk of one picture or page."""
        return self.make(kind, media_bytes(picture), {}, lambda: self.preparer.image(picture))

    def video(self, source: Any, fps: float, frames_per_segment: int) -> Clip:
        """The clip of a video sampled at `fps`, a chunk for every `frames_per_segment` frames."""
        video = load_video(source, fps, self.limits)
        chunks = []
        for part in segments(video, frames_per_segment):
            seconds = video.seconds_per_frame
            make = self._video_maker(part.frames, seconds)
            chunks.append(
                self.make("video", b"".join(media_bytes(frame) for frame in part.frames), {"seconds": seconds}, make)
            )
        return clip_of("video", chunks)

    def text(self, token_ids: Sequence[int]) -> Chunk:
        """The chunk of a text passage."""
        ids = list(token_ids)
        written = b"".join(token.to_bytes(8, "little") for token in ids)
        return self._keep("text", self._id("text", written, {}), lambda: self.adapter.encode_text(torch.tensor(ids)))

    def make(self, kind: ChunkKind, content: bytes, geometry: dict[str, Any], prepare: Callable[[], Prepared]) -> Chunk:
        """The chunk of prepared media, from the store if it is there."""
        options = {"media": geometry, "processor": self.preparer.options}
        return self._keep(kind, self._id(kind, content, options), lambda: self.adapter.encode(prepare()))

    def _video_maker(self, frames: list[Image.Image], seconds: float) -> Callable[[], Prepared]:
        return lambda: self.preparer.video(frames, seconds)

    def _id(self, kind: str, content: bytes, options: dict[str, Any]) -> str:
        return chunk_id(
            (kind.encode(), content),
            options=options,
            model_fingerprint=self.adapter.fingerprint,
            dtype=self.adapter.dtype,
            adapter_version=self.adapter.version,
            salt=self.salt,
        )

    def _keep(self, kind: ChunkKind, identity: str, encode: Callable[[], Encoded]) -> Chunk:
        found = self.store.find(identity)
        if found is not None:
            return found
        encoded = encode()
        chunk = Chunk(identity, kind, encoded, self.adapter.capture(encoded))
        self.store.put(chunk)
        return chunk


def clip_of(kind: Any, chunks: Sequence[Chunk]) -> Clip:
    """Chunks bound together under a digest of their ids."""
    digest = blake3.blake3(b"".join(bytes.fromhex(chunk.id) for chunk in chunks)).hexdigest()
    return Clip(digest, kind, tuple(chunks))

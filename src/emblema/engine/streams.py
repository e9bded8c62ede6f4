"""What a stream still asks of a session beside the session's own methods. To be moved into the stream's room."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.media import DEFAULT_LIMITS, MediaLimits, load_image, sample_frames
from emblema.media.source import is_address
from emblema.models.adapter import Adapter
from emblema.models.frames import FrameCodes, encode_frames
from emblema.session.decoding import DecodeStart, Sampler, Sampling, decode
from emblema.session.replies import TextStream, text_pieces
from emblema.session.session import Session
from emblema.session.turn_tokenizer import AFTER_CHUNK, ANCHOR, TurnTokenizer
from emblema.store.identity import chunk_id
from emblema.stream.seam import Asked, Closing, Decoded, TokenIds


class StreamHost:
    """A session and the tokenizer of its turn, for one stream."""

    def __init__(self, session: Session, tokenizer: TurnTokenizer) -> None:
        self.session, self.tokenizer = session, tokenizer
        self._preparer = session.chunk_builder.preparer

    @property
    def adapter(self) -> Adapter:
        return self.session.adapter

    @property
    def folder(self) -> Path | None:
        store = self.session.store
        disk = store.disk
        return None if disk is None else Path(disk.path) / "streams" / store.owner

    def opening(self) -> TokenIds:
        return (*self.tokenizer.opening(), *self.markers()[0])

    def markers(self) -> tuple[TokenIds, TokenIds]:
        before, after = self._preparer.markers("image")
        return tuple(before), tuple(after)

    def keep(self, encoded: Encoded, rows: Sequence[LayerRows]) -> Chunk:
        adapter, store = self.adapter, self.session.store
        media = [_bytes(tensor) for layer in rows for tensor in (layer.keys, layer.values)]
        id = chunk_id(
            (b"frames of a stream", _bytes(encoded.embeds), *media),
            options={},
            model_fingerprint=adapter.fingerprint,
            dtype=adapter.dtype,
            adapter_version=adapter.version,
            salt=store.salt,
        )
        return store.put(Chunk(id, "video", adapter.fingerprint, encoded, tuple(rows)))

    def closing(self, question: str | Sequence[int]) -> Closing:
        asked = self.tokenizer.closing(AFTER_CHUNK, question)
        bare = self._bare
        shared = next((i for i, (a, b) in enumerate(zip(asked[::-1], bare[::-1], strict=False)) if a != b), len(bare))
        marker = self.markers()[1]
        return Closing((*marker, *asked), range(len(marker), len(marker) + len(asked) - shared))

    def ending(self) -> TokenIds:
        return (*self.markers()[1], *self._bare) or ANCHOR

    @cached_property
    def _bare(self) -> TokenIds:
        """Tokens after a question without words."""
        return self.tokenizer.closing(AFTER_CHUNK, "") if self.tokenizer.templated else ()

    def picture(self, frame: Any) -> Image.Image:
        return load_image(frame, self.session.limits)

    def video(self, source: Any, fps: float) -> Iterator[tuple[float, Image.Image]]:
        return sample_frames(source, fps, self._limits(source))

    def _limits(self, source: Any) -> MediaLimits:
        """Frames come one at a time and are not kept, so their number does not matter; nor, unless a limit was set,
        how long the video lasts, or how large a file on disk is."""
        limits = replace(self.session.limits, video_frames=sys.maxsize, video_pixels=sys.maxsize)
        if limits.video_seconds == DEFAULT_LIMITS.video_seconds:
            limits = replace(limits, video_seconds=math.inf)
        if limits.file_bytes == DEFAULT_LIMITS.file_bytes and isinstance(source, str | Path) and not is_address(source):
            limits = replace(limits, file_bytes=sys.maxsize)
        return limits

    def codes(self, pictures: Sequence[Image.Image]) -> FrameCodes:
        return encode_frames(self.adapter, self._preparer, pictures)

    def decoder(self, knobs: Mapping[str, Any]) -> "StreamDecoder":
        return StreamDecoder(self.session, Sampling.of(**knobs))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


class StreamDecoder:
    """Decodes the answer to a question asked of a stream."""

    def __init__(self, session: Session, sampling: Sampling) -> None:
        self._session, self._sampling = session, sampling
        self.most = sampling.max_new_tokens

    def __call__(self, asked: Asked) -> Iterator[Decoded]:
        session = self._session
        ends, text = session.end_tokens, TextStream(session.tokenizer, self._sampling.stop)
        start = DecodeStart(asked.table, asked.logits, asked.table.length, asked.position, session.adapter.axes)
        made: list[int] = []
        tokens = decode(asked.runner, start, Sampler(self._sampling), ends)
        for piece, reason in text_pieces(tokens, text, ends, made):
            yield Decoded(piece) if reason is None else Decoded(piece, tuple(made), reason)

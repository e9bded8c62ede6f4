"""An engine as a stream sees it: spells, encodes pictures and decodes for it."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from emblema.engine.decoding import Place, Sampler, Sampling, decode_behind
from emblema.engine.replies import TextStream, said_of
from emblema.engine.spelling import ANCHOR, Spelling
from emblema.kv.chunk import Chunk, Encoded
from emblema.kv.layout import LayerRows
from emblema.media import DEFAULT_LIMITS, MediaLimits, load_image, sample_frames
from emblema.media.source import is_address
from emblema.models.adapter import Adapter
from emblema.models.frames import FrameCodes, encode_frames
from emblema.store.identity import chunk_id
from emblema.stream.seam import Asked, Closing, Decoded, TokenIds
from emblema.window.seam import Run

if TYPE_CHECKING:
    from emblema.engine.engine import Engine


BEHIND = Run((), (), False)
"""Right behind the frames."""


class StreamHost(Spelling):
    """One engine, with or without its chat template, for one stream."""

    def __init__(self, engine: "Engine", template: bool, system: str | None) -> None:
        super().__init__(engine, template, system)
        self._preparer = engine._workshop.preparer

    @property
    def adapter(self) -> Adapter:
        return self._engine.adapter

    @property
    def folder(self) -> Path | None:
        disk = self._engine.store.store.disk
        return None if disk is None else Path(disk.path) / "streams" / self._engine.store.owner

    def opening(self) -> TokenIds:
        return (*super().opening(), *self.markers()[0])

    def markers(self) -> tuple[TokenIds, TokenIds]:
        before, after = self._preparer.markers("image")
        return tuple(before), tuple(after)

    def keep(self, encoded: Encoded, rows: Sequence[LayerRows]) -> Chunk:
        adapter, view = self.adapter, self._engine.store
        media = [_bytes(tensor) for layer in rows for tensor in (layer.keys, layer.values)]
        id = chunk_id(
            (b"frames of a stream", _bytes(encoded.embeds), *media),
            options={},
            model_fingerprint=adapter.fingerprint,
            dtype=adapter.dtype,
            adapter_version=adapter.version,
            salt=view.salt,
        )
        return view.put(Chunk(id, "video", adapter.fingerprint, encoded, tuple(rows)))

    def closing(self, question: str | Sequence[int]) -> Closing:
        asked = self.close(BEHIND, question)
        bare = self._bare
        shared = next((i for i, (a, b) in enumerate(zip(asked[::-1], bare[::-1], strict=False)) if a != b), len(bare))
        marker = self.markers()[1]
        return Closing((*marker, *asked), range(len(marker), len(marker) + len(asked) - shared))

    def ending(self) -> TokenIds:
        marker = self.markers()[1]
        return (*marker, *self._bare) or ANCHOR

    @cached_property
    def _bare(self) -> TokenIds:
        """What stands behind a question of no words."""
        return self.close(BEHIND, "") if self._templated else ()

    def picture(self, frame: Any) -> Image.Image:
        return load_image(frame, self._engine._limits)

    def video(self, source: Any, fps: float) -> Iterator[tuple[float, Image.Image]]:
        return sample_frames(source, fps, self._limits(source))

    def _limits(self, source: Any) -> MediaLimits:
        """Frames come one at a time and are not kept, so it is no matter how many there are; nor, unless a limit was
        set, for how long, or how large a file on disk is."""
        limits = replace(self._engine._limits, video_frames=sys.maxsize, video_pixels=sys.maxsize)
        if limits.video_seconds == DEFAULT_LIMITS.video_seconds:
            limits = replace(limits, video_seconds=math.inf)
        if limits.file_bytes == DEFAULT_LIMITS.file_bytes and isinstance(source, str | Path) and not is_address(source):
            limits = replace(limits, file_bytes=sys.maxsize)
        return limits

    def codes(self, pictures: Sequence[Image.Image]) -> FrameCodes:
        return encode_frames(self.adapter, self._preparer, pictures)

    def decoder(self, knobs: Mapping[str, Any]) -> "StreamDecoder":
        return StreamDecoder(self._engine, Sampling.of(**knobs))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()


class StreamDecoder:
    """Decodes behind a question asked of a stream."""

    def __init__(self, engine: "Engine", sampling: Sampling) -> None:
        self._engine, self._sampling = engine, sampling
        self.most = sampling.max_new_tokens

    def __call__(self, asked: Asked) -> Iterator[Decoded]:
        ends, text = self._engine.end_tokens, TextStream(self._engine.tokenizer, self._sampling.stop)
        place = Place(asked.table.length, asked.position, self._engine.adapter.axes)
        sampler = Sampler(self._sampling)
        tokens = decode_behind(asked.runner, asked.table, asked.logits, place, sampler, ends)
        made: list[int] = []
        for piece, reason in said_of(tokens, text, ends, made):
            yield Decoded(piece) if reason is None else Decoded(piece, tuple(made), reason)

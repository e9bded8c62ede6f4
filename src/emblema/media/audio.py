"""Sound: any recording as one channel of float samples. Exploratory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from emblema.errors import MediaError
from emblema.extras import import_extra
from emblema.media.container import open_container
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import Source, describe, open_source

if TYPE_CHECKING:
    from av.container import InputContainer

RATE = 16_000
"""Samples a second, as encoders of speech take them."""
_PIECE_BYTES = 2**20
"""Samples come from the decoding process in pieces of so many bytes at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """One channel: samples [n] float32, mostly from -1 to 1, and how many make a second."""

    samples: NDArray[np.float32]
    rate: int


def load_audio(source: Source, limits: MediaLimits = DEFAULT_LIMITS) -> Audio:
    """Return a recording, or a video's sound, mixed to one channel at 16,000 samples a second.

    Raises:
        MediaError: the source is missing, empty, broken, holds no sound, or lasts longer than the limits allow.
    """
    name = describe(source)
    pieces: list[NDArray[np.float32]] = []
    samples = 0
    with open_source(source, limits) as file:
        for item in decode(DecodeTask("sound", file, name, limits, _PIECE_BYTES)):
            if len(item.data) % 4:
                raise MediaError(f"{name} was not decoded to samples.")
            pieces.append(np.frombuffer(item.data, "<f4").astype(np.float32, copy=False))
            samples += len(pieces[-1])
            if samples > limits.audio_seconds * RATE:
                raise MediaError(f"{name} lasts longer than the limit of {limits.audio_seconds:g} s.")
    if samples == 0:
        raise MediaError(f"{name} holds no sound.")
    return Audio(np.concatenate(pieces), RATE)


def decode_sound(file: BinaryIO, name: str, limits: MediaLimits) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Decode a file in this process: yield pieces of its samples, float32, which the caller counts."""
    with open_container(file, name) as container:
        if not container.streams.audio:
            raise MediaError(f"{name} holds no sound.")
        for piece in _resampled(container):
            for start in range(0, len(piece), _PIECE_BYTES // 4):
                yield {}, piece[start : start + _PIECE_BYTES // 4].astype("<f4").tobytes()


def _resampled(container: InputContainer) -> Iterator[NDArray[np.float32]]:
    """Yield pieces of the first track: the mean of its channels, so that nothing clips."""
    resampler = import_extra("av", "video").AudioResampler(format="fltp", rate=RATE)
    frames = container.decode(container.streams.audio[0])
    for frame in itertools.chain(frames, [None]):
        for piece in resampler.resample(frame):
            yield piece.to_ndarray().mean(axis=0, dtype=np.float32)

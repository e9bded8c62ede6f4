"""Video: frames sampled by their timestamps, one at a time, never the whole clip in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral, Real

from PIL import Image

from emblema.errors import MediaError
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.frames import FINEST
from emblema.media.image import picture_of
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.settings import PLAIN, MediaSettings
from emblema.media.source import Source, describe, open_source


@dataclass(frozen=True, slots=True)
class Video:
    """Sampled frames (RGB, upright, all of one size) and their times in seconds from the clip's start."""

    frames: list[Image.Image]
    times: list[float]

    @property
    def seconds_per_frame(self) -> float:
        """The even distance between frames; 1.0 for a single frame."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else 1.0


def load_video(
    source: Source,
    fps: float = 1.0,
    limits: MediaLimits = DEFAULT_LIMITS,
    settings: MediaSettings = PLAIN,
) -> Video:
    """Return all frames that `sample_frames` yields, decoded within `limits.media_seconds`.

    Args:
        source, fps, limits: as `sample_frames` takes them.
        settings: which part of the clip is taken, or how many frames of it; its own rate goes before `fps`. What it
            says about sizes is not read here.
    """
    pairs = list(_frames(source, fps, limits, lazy=False, settings=settings))
    return Video([image for _, image in pairs], [time for time, _ in pairs])


def segments(video: Video, frames_per_segment: int) -> Iterator[Video]:
    """Yield runs of `frames_per_segment` frames, the last one perhaps shorter; times stay those of the clip."""
    if not isinstance(frames_per_segment, Integral) or frames_per_segment < 1:
        raise MediaError(f"A segment needs one frame or more, a whole number, not {frames_per_segment!r}.")
    for start in range(0, len(video.frames), frames_per_segment):
        stop = start + frames_per_segment
        yield Video(video.frames[start:stop], video.times[start:stop])


def sample_frames(
    source: Source, fps: float = 1.0, limits: MediaLimits = DEFAULT_LIMITS
) -> Iterator[tuple[float, Image.Image]]:
    """Yield the frame on screen at 0, 1/fps, 2/fps, … seconds, with that time; at least the first frame.

    Frames are told by their timestamps, so a clip of uneven rate keeps its pace; a frame that stays on screen longer
    than 1/fps comes again. An animated picture is a clip too. The process that decodes waits while the caller does.

    Args:
        source: a path, bytes or address.
        fps: frames a second to keep, from 0.00001 to 1000.
        limits: bounds on bytes, seconds, frames and pixels.

    Raises:
        MediaError: the source is missing, empty, broken, truncated, holds no video frames, or is outside the limits.
    """
    yield from _frames(source, fps, limits, lazy=True)


def _frames(
    source: Source, fps: float, limits: MediaLimits, lazy: bool, settings: MediaSettings = PLAIN
) -> Iterator[tuple[float, Image.Image]]:
    fps = fps if settings.fps is None else settings.fps
    if not isinstance(fps, Real) or not 1 / FINEST <= fps <= 1000:
        raise MediaError(f"fps is {fps!r}: give a number from {1 / FINEST} to 1000.")
    options = {"fps": float(fps), **settings.cut()}
    name = describe(source)
    frames = pixels = 0
    with open_source(source, limits) as file:
        task = DecodeTask("frames", file, name, limits, 3 * limits.image_pixels, options, lazy)
        for item in decode(task):
            picture, time = picture_of(item, name, limits), item.fields.get("time")
            frames, pixels = frames + 1, pixels + picture.width * picture.height
            if frames > limits.video_frames or pixels > limits.video_pixels:
                raise MediaError(
                    f"{name} gives more than {limits.video_frames} frames or {limits.video_pixels} pixels: take fewer "
                    "frames a second, or cut it."
                )
            if not isinstance(time, float):
                raise MediaError(f"{name} was not decoded to frames.")
            yield time, picture

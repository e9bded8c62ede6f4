"""Video: frames sampled by their timestamps, one at a time, never the whole clip in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, BinaryIO

from PIL import Image

from emblema.errors import MediaError
from emblema.media.container import MICROSECONDS, moving_picture, open_container
from emblema.media.decoder_pool import DecodeTask, decode
from emblema.media.image import check_size, item_of, picture_of
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.source import Source, describe, open_source

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream

_WHOLE = frozenset({"mov", "matroska", "webm", "avi"})
"""Containers whose header tells how long the clip should be, so that a cut one is noticed."""

_SLACK = Fraction(1, 1000)

_FINEST = 100_000
"""Largest denominator of frames a second; its inverse is the lowest rate."""

_THREADS = 4
"""Threads that decode one video, at most."""


@dataclass(frozen=True, slots=True)
class Video:
    """Sampled frames (RGB, upright, all of one size) and their times in seconds from the clip's start."""

    frames: list[Image.Image]
    times: list[float]

    @property
    def seconds_per_frame(self) -> float:
        """The even distance between frames; 1.0 for a single frame."""
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1) if len(self.times) > 1 else 1.0


def load_video(source: Source, fps: float = 1.0, limits: MediaLimits = DEFAULT_LIMITS) -> Video:
    """Return all frames that `sample_frames` yields, decoded within `limits.media_seconds`."""
    pairs = list(_frames(source, fps, limits, lazy=False))
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
    than 1/fps comes again. The process that decodes waits while the caller does.

    Args:
        source: a path, bytes or address.
        fps: frames a second to keep, from 0.00001 to 1000.
        limits: bounds on bytes, seconds, frames and pixels.

    Raises:
        MediaError: the source is missing, empty, broken, truncated, holds no video frames, or is outside the limits.
    """
    yield from _frames(source, fps, limits, lazy=True)


def decode_frames(file: BinaryIO, name: str, limits: MediaLimits, fps: float) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Decode a file in this process: yield time, sides and pixels of each frame; errors as `load_video`."""
    with open_container(file, name) as container:
        track = moving_picture(container)
        if track is None:
            raise MediaError(f"{name} holds no video.")
        track.thread_type = "AUTO"
        track.codec_context.thread_count = _THREADS
        promised = _promised_seconds(container, track)
        if promised is not None and promised > limits.video_seconds:
            raise MediaError(f"{name} lasts {promised:.0f} s; the limit is {limits.video_seconds:g} s.")
        budget = _Budget(name, limits)
        # Exact arithmetic with a millisecond of slack: some containers round timestamps to that.
        step = 1 / Fraction(float(fps)).limit_denominator(_FINEST)
        count = 0
        shown: av.VideoFrame | None = None
        end = Fraction(0)
        for start, stop, frame in _decoded(container, track, name, limits):
            while shown is not None and count * step < start - _SLACK:
                yield item_of(budget.picture(shown), time=float(count * step))
                count += 1
            shown, end = frame, stop
        if shown is None:
            raise MediaError(f"{name} holds no video frames.")
        while count == 0 or count * step < end - _SLACK:
            yield item_of(budget.picture(shown), time=float(count * step))
            count += 1


def _frames(source: Source, fps: float, limits: MediaLimits, lazy: bool) -> Iterator[tuple[float, Image.Image]]:
    if not isinstance(fps, Real) or not 1 / _FINEST <= fps <= 1000:
        raise MediaError(f"fps is {fps!r}: give a number from {1 / _FINEST} to 1000.")
    name = describe(source)
    frames = pixels = 0
    with open_source(source, limits) as file:
        task = DecodeTask("frames", file, name, limits, 3 * limits.image_pixels, {"fps": float(fps)}, lazy)
        for item in decode(task):
            picture, time = picture_of(item, name, limits), item.fields.get("time")
            frames, pixels = frames + 1, pixels + picture.width * picture.height
            within = frames <= limits.video_frames and pixels <= limits.video_pixels
            if not isinstance(time, float) or not within:
                raise MediaError(f"{name} was not decoded to frames within the limits.")
            yield time, picture


def _decoded(
    container: InputContainer, track: VideoStream, name: str, limits: MediaLimits
) -> Iterator[tuple[Fraction, Fraction, av.VideoFrame]]:
    """Yield decoded frames with the seconds at which each comes and goes, counted from the first frame."""
    step = 1 / track.average_rate if track.average_rate else Fraction(1, 25)
    first: Fraction | None = None
    start = end = Fraction(0)
    for index, frame in enumerate(container.decode(track)):
        check_size(frame.width, frame.height, f"a frame of {name}", limits)
        base = frame.time_base or track.time_base
        time = frame.pts * base if frame.pts is not None and base is not None else index * step
        first = time if first is None else first
        start = max(start, time - first)
        if start > limits.video_seconds:
            raise MediaError(f"{name} lasts longer than the limit of {limits.video_seconds:g} s.")
        end = start + (frame.duration * base if frame.duration and base is not None else step)
        yield start, end, frame
    promised = _promised_seconds(container, track)
    if promised is not None and first is not None:
        reached = float(end + max(first, Fraction(0)))
        if reached < promised - max(0.25, 3 * float(step)):
            raise MediaError(f"{name} is truncated: {reached:.1f} of {promised:.1f} s can be read.")


def _promised_seconds(container: InputContainer, track: VideoStream) -> float | None:
    """Return the seconds that the header states; None where it cannot be relied on."""
    if not _WHOLE & set(container.format.name.split(",")):
        return None
    if track.duration is not None and track.time_base is not None:
        return float(track.duration * track.time_base)
    if container.duration is not None and len(container.streams) == 1:
        return container.duration / MICROSECONDS
    return None


class _Budget:
    """Counts frames and pixels that are kept, and turns decoded frames into pictures."""

    def __init__(self, name: str, limits: MediaLimits) -> None:
        self.name = name
        self.limits = limits
        self.frames = 0
        self.pixels = 0

    def picture(self, frame: av.VideoFrame) -> Image.Image:
        self.frames += 1
        self.pixels += frame.width * frame.height
        if self.frames > self.limits.video_frames or self.pixels > self.limits.video_pixels:
            raise MediaError(
                f"{self.name} gives more than {self.limits.video_frames} frames or {self.limits.video_pixels} pixels: "
                "take fewer frames a second, or cut it."
            )
        image = frame.to_image()
        return image.rotate(frame.rotation, expand=True) if frame.rotation else image

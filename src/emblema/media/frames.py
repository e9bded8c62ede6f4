"""Frames of clips and animations, sampled by their times, in the process that decodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from PIL import Image

from emblema.errors import MediaError
from emblema.media.clock import FrameClock
from emblema.media.container import MICROSECONDS, moving_picture, open_container, refuse_hidden_picture
from emblema.media.formats import HEAD_BYTES, format_of
from emblema.media.image import check_size, decoding, finish, item_of, open_picture
from emblema.media.limits import MediaLimits
from emblema.media.orientation import frame_orientation, upright
from emblema.media.structure import is_motion_jpeg

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.video.stream import VideoStream

FINEST = 100_000
"""Largest denominator of frames a second; its inverse is the lowest rate."""

_WHOLE = frozenset({"mov", "matroska", "webm", "avi"})
"""Containers whose header tells how long the clip should be, so that a cut one is noticed."""

_DISCONTINUOUS = 0x0200
"""FFmpeg's flag of formats whose time stamps may jump (AVFMT_TS_DISCONT), such as MPEG-TS."""
_JUMP_SECONDS = 10.0
"""Time stamps of such a file that go ahead by more have jumped, as FFmpeg and players take it."""
_REORDERED_SECONDS = 1.0
"""Time stamps of other files may go back so far, where frames are out of order."""

_SLACK = 0.001
"""Seconds that a time stamp may be late: some containers round them to that."""

_SHORTEST, _USUAL = 0.011, 0.1
"""Frames of an animation that are to be shown for less than the first have the second many seconds, as in browsers."""

_THREADS = 4
"""Threads that decode one video, at most."""

T = TypeVar("T")
Timed = Iterator[tuple[float, float, T]]
"""Frames with the seconds, from the first one on, at which each comes and goes."""


def decode_frames(
    file: BinaryIO, name: str, limits: MediaLimits, fps: float, begin: float = 0.0, end: float = inf, count: int = 0
) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Decode a file in this process: yield time, sides and pixels of each sampled frame, which the caller counts.

    Args:
        file, name, limits: of the clip.
        fps: frames a second.
        begin, end: seconds between which frames are taken.
        count: frames to take in place of `fps`, evenly among those that there are; 0 for none.
    """
    known = format_of(file.read(HEAD_BYTES))
    file.seek(0)
    if known is None:
        refuse_hidden_picture(file, name)
    cut = _Cut(name, fps, begin, end, count)
    shown: Iterator[tuple[float, Image.Image]]
    if known is None or (known.name == "JPEG" and is_motion_jpeg(file)):
        pictures = FramePictures(f"a frame of {name}", limits)
        chosen = cut.frames(lambda: _clip_frames(file, name, limits))
        shown = ((time, pictures.picture(frame)) for time, frame in chosen)
    elif known.several and known.name != "TIFF":
        shown = cut.frames(lambda: _animation_frames(file, name, limits))
    else:
        raise MediaError(f"{name} is no clip: it is another kind of file ({known.name}).")
    for time, picture in shown:
        yield item_of(picture, time=time)


class FramePictures:
    """Turns the decoded frames of one source into RGB pictures: upright, and all of the first one's size."""

    def __init__(self, name: str, limits: MediaLimits) -> None:
        self._name, self._limits = name, limits
        self._size: tuple[int, int] | None = None

    def picture(self, frame: av.VideoFrame) -> Image.Image:
        """Return the picture of a frame; `MediaError` where it is outside the limits."""
        check_size(frame.width, frame.height, self._name, self._limits)
        picture = upright(frame.to_image(), frame_orientation(frame))
        if self._size is None:
            self._size = picture.size
        return of_size(picture, self._size)


def of_size(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return a picture scaled to a size, as FFmpeg does where that of a clip changes."""
    return picture if picture.size == size else picture.resize(size, Image.Resampling.BICUBIC)


@dataclass(frozen=True, slots=True)
class _Cut:
    """Which frames of a clip are wanted; the fields are the arguments of `decode_frames`."""

    name: str
    fps: float
    begin: float
    end: float
    count: int

    def frames(self, opened: Callable[[], Timed[T]]) -> Iterator[tuple[float, T]]:
        """Yield times and frames of a clip, which `opened` gives from its start."""
        if self.count:
            yield from self._spread(opened)
            return
        found = False
        for item in self._sampled(opened()):
            found = True
            yield item
        if not found:
            place = f" from {self.begin:g} s on" if self.begin else ""
            raise MediaError(f"{self.name} holds no video frames{place}.")

    def _spread(self, opened: Callable[[], Timed[T]]) -> Iterator[tuple[float, T]]:
        """Yield `count` frames, evenly among those between `begin` and `end`; they are counted first."""
        starts = enumerate(start for start, _, _ in opened())
        within = [index for index, start in starts if self.begin - _SLACK <= start < self.end]
        if len(within) < self.count:
            raise MediaError(f"{self.name} has {len(within)} frames to choose from, and {self.count} are asked for.")
        wanted = {within[number * len(within) // self.count] for number in range(self.count)}
        for index, (start, _, frame) in enumerate(opened()):
            if index in wanted:
                yield start, frame

    def _sampled(self, timed: Timed[T]) -> Iterator[tuple[float, T]]:
        """Yield the frame on screen at `begin` and every 1/fps seconds after; of a whole clip at least the first."""
        step = 1 / Fraction(float(self.fps)).limit_denominator(FINEST)
        index, due = 0, self.begin
        until = 0.0
        last: T | None = None
        for start, stop, frame in timed:
            while last is not None and due < start - _SLACK:
                if due >= self.end:
                    return
                yield due, last
                index += 1
                due = self.begin + float(index * step)
            last, until = frame, stop
        while last is not None and due < self.end and (due < until - _SLACK or (index == 0 and self.begin == 0)):
            yield due, last
            index += 1
            due = self.begin + float(index * step)


def _clip_frames(file: BinaryIO, name: str, limits: MediaLimits) -> Timed[av.VideoFrame]:
    file.seek(0)
    with open_container(file, name) as container:
        track = moving_picture(container)
        if track is None:
            raise MediaError(f"{name} holds no video.")
        track.thread_type = "AUTO"
        track.codec_context.thread_count = _THREADS
        promised = _promised_seconds(container, track)
        if promised is not None and promised > limits.video_seconds:
            raise MediaError(f"{name} lasts {promised:.0f} s; the limit is {limits.video_seconds:g} s.")
        yield from _decoded(container, track, name, limits)


def _decoded(container: InputContainer, track: VideoStream, name: str, limits: MediaLimits) -> Timed[av.VideoFrame]:
    """Yield decoded frames; a clock that jumps does not count as time that passed."""
    step = float(1 / track.average_rate) if track.average_rate else 1 / 25
    jumps = bool(container.format.flags & _DISCONTINUOUS)
    clock = FrameClock(_JUMP_SECONDS if jumps else inf, 0.0 if jumps else _REORDERED_SECONDS)
    played = end = 0.0
    first: float | None = None
    for frame in container.decode(track):
        base = frame.time_base or track.time_base
        stamp = float(frame.pts * base) if frame.pts is not None and base is not None else None
        first = (stamp or 0.0) if first is None else first
        start = clock.seconds(stamp, played)
        if start > limits.video_seconds:
            raise MediaError(f"{name} lasts longer than the limit of {limits.video_seconds:g} s.")
        lasted = float(frame.duration * base) if frame.duration and base is not None else step
        played, end = played + lasted, start + lasted
        yield start, end, frame
    promised = _promised_seconds(container, track)
    if promised is not None and first is not None:
        reached = end + max(first, 0.0)
        if reached < promised - max(0.25, 3 * step):
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


def _animation_frames(file: BinaryIO, name: str, limits: MediaLimits) -> Timed[Image.Image]:
    """Yield the frames of an animated picture, each as a whole picture."""
    file.seek(0)
    image = open_picture(file, name, limits).image
    with decoding(name):
        count = int(getattr(image, "n_frames", 1))
    if count < 2 and image.format != "GIF":
        raise MediaError(f"{name} is no clip: it is a single picture ({image.format}).")
    start = 0.0
    for number in range(count):
        if number == 0 and image.info.get("default_image"):
            # The picture for programs that cannot show the animation is no frame of it.
            continue
        with decoding(name):
            image.seek(number)
        picture = finish(image, f"a frame of {name}", limits)
        seconds = float(image.info.get("duration") or 0) / 1000
        stop = start + (seconds if seconds >= _SHORTEST else _USUAL)
        if start > limits.video_seconds:
            raise MediaError(f"{name} lasts longer than the limit of {limits.video_seconds:g} s.")
        yield start, stop, picture
        start = stop

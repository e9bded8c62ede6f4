"""Frames with their times: a video's, a folder's pictures, or those of a camera."""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from PIL import Image

from emblema.errors import MediaError
from emblema.media import DEFAULT_LIMITS, load_image, sample_frames
from emblema.media.container import read_container
from emblema.media.source import is_address, open_source
from emblema.stream.feed import LiveFeed
from emblema.stream.settings import StreamSettings
from emblema.stream.sources import LiveSource

UNBOUNDED = replace(
    DEFAULT_LIMITS, file_bytes=sys.maxsize, video_seconds=math.inf, video_frames=sys.maxsize, video_pixels=sys.maxsize
)
"""Frames come one at a time and are not kept, so that their number and the file's size do not matter."""

SLOWEST, FASTEST = 1e-5, 1e3
"""Frames a second."""

GIVE_UP = 60.0
"""Seconds without a frame after which a camera counts as gone."""

ADAPTING = 10.0
"""Seconds that frames of a camera have to come too fast before fewer are taken."""

Frames = Iterator[tuple[float, Image.Image] | None]
"""None where no frame has come for a while."""


@dataclass(frozen=True, slots=True)
class FrameSource:
    """What is watched.

    Attributes:
        name: for people.
        count: frames that will come, as the file says; None where it does not.
        frames: times in seconds and pictures; to be iterated once.
        live: a camera and what reads it, where it is one: times are those on the wall.
    """

    name: str
    count: int | None
    frames: Frames
    live: tuple[LiveSource, LiveFeed] | None = None

    def to_json(self) -> dict[str, float]:
        """Return what became of a camera's frames."""
        if self.live is None:
            return {}
        source, feed = self.live
        counts = {"losses": source.losses, "jumps": source.jumps}
        return {**counts, "dropped": feed.dropped, "thinned": feed.thinned, "every": feed.every}


def open_frames(video: str, fps: float, side: int) -> FrameSource:
    """Open the frames of a video or a folder; the first is read at once.

    Args:
        video: a path or an address of a video, or a folder of pictures, which are 1/fps seconds apart.
        fps: frames a second.
        side: longest side of a frame in pixels; larger ones are scaled down.

    Raises:
        MediaError: there is nothing, it cannot be read, or fps is not right; also while the frames are read.
    """
    if not SLOWEST <= fps <= FASTEST:
        raise MediaError(f"--fps {fps:g}: give a number from {SLOWEST:g} to {FASTEST:g}")
    path = Path(video)
    if not is_address(video) and path.is_dir():
        pictures = _pictures(path)
        count: int | None = len(pictures)
        frames: Iterator[tuple[float, Image.Image]] = (
            (number / fps, load_image(picture)) for number, picture in enumerate(pictures)
        )
    else:
        count = None if is_address(video) else _count(video, fps)
        frames = sample_frames(video, fps, UNBOUNDED)
    first = next(frames)
    fitted = ((when, _fitted(picture, side)) for when, picture in chain([first], frames))
    return FrameSource(path.name or video, count, fitted)


def open_live(address: str, fps: float, side: int, settings: StreamSettings) -> FrameSource:
    """Open a camera or an address of live video; the first frame is waited for.

    Frames that come faster than they are encoded are dropped, the oldest first; where that lasts, fewer are taken.

    Args:
        settings: of the stream; its queue is as long.

    Raises:
        MediaError: no frame comes, or a number is not right; also while the frames are read.
    """
    source = LiveSource(address, fps, UNBOUNDED, give_up=GIVE_UP)
    feed = LiveFeed(source, replace(settings, drop="oldest"), ADAPTING)

    def frames() -> Frames:
        with feed:
            while not feed.ended:
                taken = feed.take(0.2)
                if not taken:
                    yield None
                for frame in taken:
                    yield frame.at, _fitted(frame.picture, side)

    coming = frames()
    first = next(item for item in coming if item is not None)
    return FrameSource(source.name, None, chain([first], coming), (source, feed))


def _fitted(picture: Image.Image, side: int) -> Image.Image:
    if max(picture.size) <= side:
        return picture
    scale = side / max(picture.size)
    width, height = (max(1, round(scale * length)) for length in picture.size)
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _pictures(folder: Path) -> list[Path]:
    """Return pictures by name, numbers in names by their value."""
    kinds = {*Image.registered_extensions(), ".heic", ".heif", ".hif"}
    found = [file for file in folder.iterdir() if file.suffix.lower() in kinds and not file.name.startswith(".")]
    if not found:
        raise MediaError(f"there is no picture in the folder {str(folder)!r}: give a video, or a folder of pictures")

    def parts(file: Path) -> list[int | str]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", file.name)]

    return sorted(found, key=parts)


def _count(video: str, fps: float) -> int | None:
    with open_source(video, UNBOUNDED) as file:
        seconds = read_container(file, repr(video), UNBOUNDED).seconds
    return None if seconds is None else max(1, math.ceil(seconds * fps - 1e-3))

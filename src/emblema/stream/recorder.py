"""A recorder: frames of a stream as JPEG files in a folder of bounded size, and clips that are cut from them.

A stream keeps no pictures. Who wants to see what an answer was drawn from records them beside it.
"""

import os
import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from fractions import Fraction
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from statistics import median

from PIL import Image

from emblema.errors import StreamError
from emblema.extras import import_extra
from emblema.media import load_image

_NAME = re.compile(r"(\d{1,13}\.\d{6})\.jpg")

SINGLE_SECONDS = 1.0
"""How long a clip of one frame is."""


class FrameRecorder:
    """Writes frames to a folder, for its owner's eyes alone; the oldest are deleted when it is full.

    Args:
        folder: made if it is not there; frames that are in it already count.
        most_bytes: of all files together.
        quality: of the JPEG files, 1 to 95.

    Attributes:
        bytes: of all files.
        deleted: files deleted to make room.

    Raises:
        StreamError: the folder cannot be written, or a number is not right.
    """

    def __init__(self, folder: Path | str, most_bytes: int = 2**30, quality: int = 85) -> None:
        if most_bytes < 1 or not 1 <= quality <= 95:
            raise StreamError("a recorder takes a byte or more, and a quality from 1 to 95")
        self._folder, self._most, self._quality = Path(folder), most_bytes, quality
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = [(path.name, path.stat().st_size) for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        except OSError as error:
            raise StreamError(f"nothing can be recorded in {str(folder)!r} ({error.strerror})") from error
        self._files = deque(sorted((float(name[:-4]), name, size) for name, size in found))
        self.bytes, self.deleted = sum(size for _, size in found), 0

    @property
    def times(self) -> list[float]:
        """Seconds of the frames that are there, in order."""
        return [at for at, _, _ in self._files]

    def add(self, at: float, picture: Image.Image) -> None:
        """Write a frame of a time in seconds, after those before it.

        Raises:
            StreamError: the time is negative or goes back, the file cannot be written, or an old one not deleted.
        """
        if not 0 <= at < 1e13 or (self._files and at < self._files[-1][0] - 1e-6):
            raise StreamError(f"a frame of {at:g} s cannot be recorded: times are 0 or more, and do not go back")
        name, drawn = f"{at:.6f}.jpg", BytesIO()
        picture.convert("RGB").save(drawn, "JPEG", quality=self._quality)
        data = drawn.getvalue()
        if self._files and self._files[-1][1] == name:
            self.bytes -= self._files.pop()[2]
        self._make_room(len(data))
        self._write(self._folder / name, data)
        self._files.append((float(name[:-4]), name, len(data)))
        self.bytes += len(data)

    def export_clip(self, start: float, end: float, path: Path | str) -> int:
        """Write what was on show from `start` to `end` as a video (MP4), each frame as long as it was.

        Returns:
            How many frames it has.

        Raises:
            StreamError: none of that time is recorded, it begins after the last frame, or the file cannot be written.
            EmblemaError: the package for video is missing.
        """
        times, last = self.times, bisect_right(self.times, end)
        # The frame on show at the start came before it.
        first = max(0, bisect_right(times, start) - 1) if times and times[0] <= start else bisect_left(times, start)
        # Times are kept to a millionth of a second.
        if not start <= end or first >= last or start > times[-1] + 1e-6:
            there = f"; what is recorded begins at {times[0]:.15g} s and ends at {times[-1]:.15g} s" if times else ""
            raise StreamError(f"nothing from {start:.15g} to {end:.15g} s is recorded{there}")
        chosen = [self._files[index] for index in range(first, last)]
        try:
            pictures = [load_image(self._folder / name) for _, name, _ in chosen]
            data = _video(pictures, [max(at, start) for at, _, _ in chosen], end)
            self._write(Path(path), data)
        except OSError as error:
            raise StreamError(f"no clip can be written to {str(path)!r} ({error.strerror})") from error
        return len(chosen)

    def _make_room(self, size: int) -> None:
        while self._files and self.bytes + size > self._most:
            _, name, gone = self._files[0]
            try:
                (self._folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise StreamError(
                    f"{str(self._folder / name)!r} cannot be deleted to make room ({error.strerror}): "
                    "allow it, or record in another folder"
                ) from error
            self._files.popleft()
            self.bytes, self.deleted = self.bytes - gone, self.deleted + 1

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file whole, or not at all."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            beside.replace(path)
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise StreamError(
                f"{str(path)!r} cannot be written ({error.strerror}): make room, or give another folder"
            ) from error


def _video(pictures: Sequence[Image.Image], times: Sequence[float], end: float) -> bytes:
    """Return an MP4 file of pictures from their times on; the last one stays to the end, or as long as most do."""
    av = import_extra("av", "video")
    steps = [later - earlier for earlier, later in pairwise(times)]
    until = max(end, times[-1] + (median(steps) if steps else SINGLE_SECONDS))
    # H.264 takes even sides alone.
    width, height = (max(2, side // 2 * 2) for side in pictures[0].size)
    drawn = BytesIO()
    with av.open(drawn, "w", format="mp4") as container:
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream = container.add_stream(codec, rate=1000)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        last = -1
        # The last picture comes again at the end, so that every player shows it for its time.
        for picture, at in zip((*pictures, pictures[-1]), (*times, until), strict=True):
            last = max(last + 1, round(1000 * (at - times[0])))
            frame = av.VideoFrame.from_image(picture.resize((width, height)))
            frame.pts, frame.time_base = last, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return drawn.getvalue()

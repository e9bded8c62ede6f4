"""Videos with questions asked while they run: what generated streams and streaming data sets are turned into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.data.limits import DataError
from benchmarks.tasks.streams import FRAME_SECONDS, Asked, Stream
from emblema.errors import PromptError
from emblema.media.limits import DEFAULT_LIMITS, MediaLimits
from emblema.media.video import sample_frames

ARRAY = ".npy"
ARRAY_RATE = 1
"""Frames a second of a video kept as an array, as RVS's are."""


@dataclass(frozen=True, slots=True)
class StreamQuestion:
    """A question about a video as it stands at some time.

    Attributes:
        at: seconds at which it is asked; None: behind the whole video.
        choices: texts to choose among, in order; `correct`: index of the right one, -1 where it is not known.
        kind: what is asked, for tables by kind.
        windows: (from, to) in seconds of the parts that answer it, where that is known.
    """

    id: str
    text: str
    answer: str
    at: float | None = None
    choices: tuple[str, ...] = ()
    correct: int = -1
    kind: str = ""
    windows: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class StreamItem:
    """A video, and the questions in the order of their times.

    Attributes:
        source: a video file, an array of frames (.npy, [frames, height, width, 3] uint8, one a second), or a generated
            stream.
        seconds: how long it lasts, 0 where the data set does not say.
    """

    id: str
    form: str
    source: Path | Stream
    questions: tuple[StreamQuestion, ...]
    seconds: float = 0.0

    def frames(
        self, fps: float = 1 / FRAME_SECONDS, limits: MediaLimits = DEFAULT_LIMITS
    ) -> Iterator[tuple[float, Image.Image]]:
        """Frames with their times in seconds, one by one.

        Raises:
            MediaError: the video cannot be read, or is outside the limits.
            DataError: the array is none of frames.
            PromptError: a generated stream is asked for at another rate than its own.
        """
        if isinstance(self.source, Stream):
            if fps != 1 / FRAME_SECONDS:
                raise PromptError(f"{self.id} has {1 / FRAME_SECONDS} frames a second and no others, not {fps}")
            return ((number * FRAME_SECONDS, frame) for number, frame in enumerate(self.source.frames()))
        if self.source.suffix == ARRAY:
            return _array_frames(self.source, fps, limits)
        return sample_frames(self.source, fps, limits)


def item_of(stream: Stream, asked: tuple[Asked, ...]) -> StreamItem:
    """A generated stream and questions about it."""
    questions = tuple(
        StreamQuestion(
            f"{stream.id}-{place}",
            each.text,
            each.answer,
            each.seconds,
            kind=each.kind,
            windows=tuple((begin * FRAME_SECONDS, end * FRAME_SECONDS) for begin, end in each.evidence),
        )
        for place, each in enumerate(sorted(asked, key=lambda each: each.at))
    )
    return StreamItem(stream.id, "emblema", stream, questions, len(stream) * FRAME_SECONDS)


def _array_frames(path: Path, fps: float, limits: MediaLimits) -> Iterator[tuple[float, Image.Image]]:
    if not 0 < fps <= ARRAY_RATE:
        raise DataError(path, f"it holds {ARRAY_RATE} frame a second, so {fps} frames a second cannot be taken")
    try:
        frames = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(path, f"it cannot be read as an array ({str(error)[:100]})") from error
    if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
        raise DataError(path, "it is no array of frames, [frames, height, width, 3] uint8")
    count, height, width = frames.shape[:3]
    if not count or min(height, width) < limits.image_side_least or height * width > limits.image_pixels:
        raise DataError(path, f"{count} frames of {width} x {height} px are outside the limits")
    places = np.arange(0, count, ARRAY_RATE / fps).astype(int)
    if len(places) > limits.video_frames or len(places) * height * width > limits.video_pixels:
        raise DataError(path, f"{len(places)} frames of {width} x {height} px are beyond the limit")
    return ((place / ARRAY_RATE, Image.fromarray(np.array(frames[place]))) for place in places.tolist())

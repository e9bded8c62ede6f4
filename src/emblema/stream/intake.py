"""Frames on their way in: checked, and waiting in a queue until the thread that owns the model encodes them."""

import math
import threading
from collections import deque
from dataclasses import dataclass

from PIL import Image

from emblema.errors import MediaError, StreamError
from emblema.stream.settings import StreamSettings


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture and the time at which it came, in seconds."""

    picture: Image.Image
    at: float


class Intake:
    """A bounded queue. Any thread may put frames in; the owner takes them out.

    Attributes:
        dropped: frames that were dropped because the queue was full.
    """

    def __init__(self, settings: StreamSettings) -> None:
        self.settings = settings
        self.dropped = 0
        self._waiting: deque[Frame] = deque()
        self._changed = threading.Condition()
        self._last = -math.inf
        self._size: tuple[int, int] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def _check(self, frames: list[Frame]) -> None:
        self.refuse_closed()
        last, size = self._last, self._size
        for frame in frames:
            if not math.isfinite(frame.at):
                raise StreamError(f"a frame's time is {frame.at}: give seconds")
            if frame.at < last:
                raise StreamError(f"a frame of {frame.at:g} s came behind one of {last:g} s: time does not go back")
            if size is not None and frame.picture.size != size:
                new, old = ("{}x{}".format(*pair) for pair in (frame.picture.size, size))
                raise MediaError(f"a frame is {new} pixels, those before it {old}: resize it, or open another stream")
            last, size = frame.at, frame.picture.size

    def refuse_closed(self) -> None:
        """Raises StreamError once the stream is closed."""
        if self._closed:
            raise StreamError("the stream is closed: open another one, or load it from where it was saved")

    def put(self, frames: list[Frame], wait: bool) -> int:
        """Put frames in; all are checked before the first is taken, and none is where one is refused.

        Args:
            wait: at a full queue, do as the drop policy says; otherwise the queue grows, as its owner is at hand.

        Returns:
            How many of them wait.

        Raises:
            MediaError: a frame has another size than those before it.
            StreamError: a time is none, or lies before one that came; the stream is closed.
        """
        with self._changed:
            self._check(frames)
            taken = 0
            for frame in frames:
                if wait and len(self._waiting) >= self.settings.queue:
                    if not self._room():
                        self._after(frame)
                        continue
                    # Others may have pushed while this one waited.
                    self._check([frame])
                self._waiting.append(frame)
                self._after(frame)
                taken += 1
            return taken

    def _after(self, frame: Frame) -> None:
        self._last, self._size = frame.at, frame.picture.size

    def _room(self) -> bool:
        """Whether there is room after what the policy does about a full queue."""
        if self.settings.drop == "block":
            while len(self._waiting) >= self.settings.queue and not self._closed:
                self._changed.wait()
            if self._closed:
                raise StreamError("the stream was closed while a frame waited: it was not taken")
            return True
        self.dropped += 1
        if self.settings.drop == "oldest":
            self._waiting.popleft()
            return True
        return False

    def take(self, most: int) -> list[Frame]:
        """The next frames, `most` at the most."""
        with self._changed:
            taken = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
            self._changed.notify_all()
            return taken

    @property
    def last(self) -> float | None:
        """When the last frame came; None before the first."""
        return None if self._last == -math.inf else self._last

    def resume(self, last: float, size: tuple[int, int] | None, dropped: int) -> None:
        """Go on behind frames that came before this stream was loaded."""
        self._last, self._size, self.dropped = last, size, dropped

    @property
    def size(self) -> tuple[int, int] | None:
        """Width and height of the frames; None before the first."""
        return self._size

    def close(self) -> None:
        """Take no more; who waits for room is told so."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

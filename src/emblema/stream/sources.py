"""Live sources of a stream: connections that end and are made again, with the time on the wall."""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator

from emblema.errors import MediaError
from emblema.media import DEFAULT_LIMITS, MediaLimits
from emblema.media.frames import of_size
from emblema.media.live import live_frames, live_name
from emblema.stream.frames import TimedFrame

LONGEST_PAUSE = 30.0
"""Seconds between two tries to connect, at most."""


class LiveSource:
    """A camera, or an address of live video, connected to again when it vanishes.

    Frames have the time at which they came, in seconds since 1970: that of a connection's first frame, and after it by
    the source's own clock. It never goes back. All have the size of the first.

    Args:
        address: `camera:0`, or an address that begins with rtsp, rtsps, http, https or tcp.
        fps: frames a second to keep.
        limits: bounds on frames, and on the process that decodes them.
        patience: seconds without a sign of life after which a connection counts as lost.
        give_up: seconds without a frame after which no more tries are made.
        pause: seconds before the second try; it doubles with each, with jitter.
        now: the clock on the wall, in seconds.

    Attributes:
        name: of the source, without passwords.
        losses: connections that ended after they had given a frame.
        jumps: how often the source's clock jumped and was mended.

    Raises:
        MediaError: this is no live source, or a number is not right.
    """

    def __init__(
        self,
        address: str,
        fps: float = 0.5,
        limits: MediaLimits = DEFAULT_LIMITS,
        patience: float = 10.0,
        give_up: float = 60.0,
        pause: float = 0.5,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.name = live_name(address)
        if not 1e-5 <= fps <= 1e3:
            raise MediaError(f"fps is {fps!r}: give a number from 0.00001 to 1000")
        if not all(0 < seconds < math.inf for seconds in (patience, give_up, pause)):
            raise MediaError("patience, give_up and pause are seconds, above 0")
        self.fps = fps
        self._address, self._limits, self._patience = address, limits, patience
        self._give_up, self._pause, self._now = give_up, pause, now
        self.losses = self.jumps = 0
        self._closed = threading.Event()

    def close(self) -> None:
        """Make no more tries; frames end with the next one. Any thread may."""
        self._closed.set()

    def frames(self) -> Iterator[TimedFrame]:
        """Yield frames until the source is closed.

        Raises:
            MediaError: no frame came for `give_up` seconds.
        """
        size: tuple[int, int] | None = None
        last, tries, deadline, reason = -math.inf, 0, time.monotonic() + self._give_up, ""
        while not self._closed.is_set():
            jumps, begun = self.jumps, -math.inf
            try:
                patience = max(0.1, min(self._patience, deadline - time.monotonic()))
                for frame in live_frames(self._address, self.fps, self._limits, patience):
                    begun = self._now() - frame.seconds if begun == -math.inf else begun
                    last, self.jumps, tries = max(last, begun + frame.seconds), jumps + frame.jumps, 0
                    size = size or frame.picture.size
                    yield TimedFrame(of_size(frame.picture, size), last)
                    deadline = time.monotonic() + self._give_up
                    if self._closed.is_set():
                        return
                reason = "it ended"
            except MediaError as error:
                reason = str(error)
            self.losses += begun != -math.inf
            left = deadline - time.monotonic()
            if left <= 0:
                raise MediaError(f"{self.name} gave no frame for {self._give_up:g} s: {reason}")
            pause = min(LONGEST_PAUSE, self._pause * 2**tries) * random.uniform(0.5, 1)
            tries += 1
            self._closed.wait(min(pause, left))

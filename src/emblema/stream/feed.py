"""A thread that reads a live source into a bounded queue, for the thread that owns the stream."""

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from emblema.stream.frames import FrameQueue, TimedFrame
from emblema.stream.settings import StreamSettings

SLOWEST = 16
"""Of so many frames one is taken, at least."""


class FrameIterator(Protocol):
    """What a feed reads: a `LiveSource`."""

    def frames(self) -> Iterable[TimedFrame]: ...

    def close(self) -> None: ...


class LiveFeed:
    """Frames of a live source, read by a thread and taken by the stream's owner.

    The queue is as long as the stream's settings say, and a frame that finds it full is dropped or waits as they say.
    With `adaptive`, a queue that stays full halves the rate of frames taken from the source, and one that stays
    almost empty doubles it again.

    Args:
        source: whose frames are read.
        settings: of the stream: `queue` and `drop`.
        adaptive: seconds that the queue has to be full, or almost empty; None keeps the rate.

    Attributes:
        thinned: frames that were left out because the rate was lower.
        every: of so many frames one is taken at present.
    """

    def __init__(self, source: FrameIterator, settings: StreamSettings, adaptive: float | None = None) -> None:
        self.thinned, self.every = 0, 1
        self._source, self._adaptive, self._most = source, adaptive, settings.queue
        # What shows nothing new is left out, and counted, by the stream.
        self._queue = FrameQueue(replace(settings, skip=None))
        self._arrived = threading.Event()
        self._error: Exception | None = None
        self._done = False
        self._since: tuple[str, float] = ("", 0.0)
        self._thread = threading.Thread(target=self._run, name="emblema-feed", daemon=True)

    @property
    def dropped(self) -> int:
        """Frames that found no room."""
        return self._queue.dropped

    @property
    def waiting(self) -> int:
        """Frames that wait to be taken."""
        return len(self._queue)

    @property
    def ended(self) -> bool:
        """Whether no frame will come any more; where the source failed, `take` says so in its place."""
        return self._done and self._error is None and not self._queue

    def take(self, seconds: float, most: int = 1) -> list[TimedFrame]:
        """Return the next frames, `most` at most; wait so long for the first.

        Raises:
            MediaError: the source gave up, or a frame has another size; after all that came before.
        """
        if not self._thread.ident:
            self._thread.start()
        self._arrived.wait(seconds)
        taken = self._queue.take(most)
        if not taken and self._error is not None:
            raise self._error
        if not self._queue:
            self._arrived.clear()
            # The thread may have put a frame in, or ended, just before.
            if self._queue or self._done:
                self._arrived.set()
        return taken

    def close(self) -> None:
        """Read no more."""
        self._source.close()
        self._queue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            for number, frame in enumerate(self._source.frames()):
                self._adapt(time.monotonic())
                if number % self.every:
                    self.thinned += 1
                    continue
                self._queue.put([frame], wait=True)
                self._arrived.set()
        except Exception as error:
            self._error = error
        finally:
            self._done = True
            self._arrived.set()

    def _adapt(self, now: float) -> None:
        """Change the rate if the queue has been full, or almost empty, for long enough."""
        if self._adaptive is None:
            return
        length = len(self._queue)
        state = "full" if length >= self._most else "empty" if 4 * length <= self._most else ""
        if state != self._since[0]:
            self._since = state, now
        if state and now - self._since[1] >= self._adaptive:
            every = min(SLOWEST, 2 * self.every) if state == "full" else max(1, self.every // 2)
            self.every, self._since = every, (state, now)

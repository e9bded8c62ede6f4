"""Which frames a question may see: all, those until a moment, the latest of them, or those between two moments."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from emblema.errors import StreamError
from emblema.stream.frames import FrameLog
from emblema.stream.method import VisibleRange
from emblema.stream.settings import StreamSettings


class NothingSeenError(StreamError):
    """No frame had been seen at the time that a question is about."""


def visible_range(
    log: FrameLog,
    recent: int,
    at: float | None,
    window: int | None,
    between: Sequence[float] | None,
    shown: float | None = None,
    retained: int = 0,
) -> VisibleRange:
    """Return the frames that a question may see.

    Args:
        log: of the frames encoded.
        recent: latest frames that are seen without being retrieved.
        at: seconds; what came later is not seen.
        window: see only so many frames before that.
        between: seconds of the first and the last moment; only what came then is seen.
        shown: where frames that show nothing new are left out, seconds of the last frame, left out or not: what was
            on show as the span began is seen too.
        retained: frames before it are not seen.

    Raises:
        StreamError: an argument is not right.
        NothingSeenError: nothing had been seen then.
    """
    first = 0
    if between is not None:
        start, end = _span(between)
        if at is not None:
            raise StreamError("at and between were both given: the end of between is the moment that is asked about")
        at, first = end, bisect_left(log.times, start)
        if shown is not None and start <= shown:
            first = max(0, bisect_right(log.times, start) - 1)
    first = max(first, retained)
    high = len(log) if at is None else log.count_until(at)
    if not log.gone.live_runs(range(first, high)):
        when = "yet" if at is None else f"by {at:g} s" if between is None else f"between {start:.15g} and {end:.15g} s"
        raise NothingSeenError(f"nothing had been seen {when}: push frames before the question")
    if window is not None and (type(window) is not int or window < 1):
        raise StreamError(f"window is {window!r}: it must be a whole number of frames, 1 or more")
    if window is not None:
        first = max(first, int(log.gone.live(first, high)[-window:][0]))
    return VisibleRange(first, high, max(first, high - recent))


def retained_from(log: FrameLog, settings: StreamSettings, frame_bytes: int) -> int:
    """Return the first frame that is not too old to be kept; there is a frame.

    Args:
        frame_bytes: of a frame's rows.
    """
    first = 0
    if settings.keep_seconds is not None:
        first = bisect_left(log.times, log.times[-1] - settings.keep_seconds)
    if settings.keep_bytes is not None:
        most = max(settings.window + settings.block, settings.keep_bytes // (frame_bytes + log.lines.line_bytes))
        first = max(first, len(log) - most)
    return first


def span_of(log: FrameLog, between: Sequence[float]) -> range:
    """Return the frames that came from one moment until another.

    Raises:
        StreamError: it is no span of time.
    """
    start, end = _span(between)
    return range(bisect_left(log.times, start), bisect_right(log.times, end))


def _span(between: Sequence[float]) -> tuple[float, float]:
    """Return start and end in seconds."""
    pair = list(between) if isinstance(between, list | tuple) else []
    if len(pair) != 2 or not all(isinstance(time, int | float) and math.isfinite(time) for time in pair):
        raise StreamError(f"between is {between!r}: give two times in seconds, (start, end)")
    if pair[0] > pair[1]:
        raise StreamError(f"between ends at {pair[1]:g} s, before its start at {pair[0]:g} s: swap them")
    return float(pair[0]), float(pair[1])

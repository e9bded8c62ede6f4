"""Unix time that never goes back, and that neither a leap of the system's clock nor a forged moment takes ahead."""

import threading
import time
from collections.abc import Callable

LEAP = 3600.0
"""Seconds by which the system's clock may run ahead of what has elapsed between two looks, and is believed at once."""
PATIENCE = 600.0
"""Seconds after which a larger leap is believed: it was a correction then, or the machine was paused."""
MOST_AHEAD = 86400.0
"""Seconds ahead of the system's clock up to which a moment that comes from outside is believed."""


def _elapsed() -> float:
    """Return seconds since some moment, those included in which the machine was suspended, where it can tell."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class SteadyClock:
    """A clock that goes on from the latest moment seen, at its pace, where the system's clock jumps back or leaps.

    So no jump back makes a piece expire, no expired piece becomes valid again, and later uses have later times. A clock
    that is ahead for a moment ends nothing: a leap counts once it has lasted.

    Args:
        clock: returns seconds since 1970.
        elapsed: returns seconds since some moment, by a clock that nobody sets.
    """

    def __init__(self, clock: Callable[[], float], elapsed: Callable[[], float] = _elapsed) -> None:
        self._clock, self._elapsed = clock, elapsed
        self._lock = threading.Lock()
        self._latest = 0.0
        # The last look: the system's clock and the seconds elapsed.
        self._seen: tuple[float, float] | None = None
        # Since when, in seconds elapsed, the system's clock is further ahead than is believed.
        self._ahead_since: float | None = None

    def now(self) -> float:
        """Return the steady time, which is at or after every moment returned or reached before."""
        with self._lock:
            return self._look()

    def system(self) -> float:
        """Return the system's clock, as far as it is believed."""
        with self._lock:
            self._look()
            return self._believed()

    def reach(self, moment: float) -> None:
        """Go on from a moment that was seen earlier, by this process or another; one too far ahead is not believed."""
        with self._lock:
            if moment <= self._believed() + MOST_AHEAD:
                self._latest = max(self._latest, moment)

    def steady(self, moment: float) -> float:
        """Return a moment of the system's clock as steady time; a moment in the future counts as now."""
        with self._lock:
            now = self._look()
            return now - max(0.0, self._believed() - moment)

    def _look(self) -> float:
        """Go on by what the system's clock moved, or by what has elapsed where it was set; return the steady time."""
        system, elapsed = self._clock(), self._elapsed()
        if self._seen is not None:
            moved, passed = system - self._seen[0], max(0.0, elapsed - self._seen[1])
            self._latest += moved if 0 <= moved <= passed + LEAP else passed
        first, self._seen = self._seen is None, (system, elapsed)
        if first or system <= self._latest + LEAP:
            self._ahead_since = None
        elif self._ahead_since is None:
            self._ahead_since = elapsed
        if self._ahead_since is None or elapsed - self._ahead_since >= PATIENCE:
            self._latest = max(self._latest, system)
        return self._latest

    def _believed(self) -> float:
        system = self._clock()
        return system if self._seen is None or system <= self._latest + LEAP else self._latest

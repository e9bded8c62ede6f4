"""Unix time that never goes back."""

import threading
from collections.abc import Callable


class SteadyClock:
    """A clock that goes on from the latest moment seen, at its pace, where the system's clock jumps back.

    So no jump back makes a piece expire, no expired piece becomes valid again, and later uses have later times.

    Args:
        clock: returns seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead = 0.0
        self._latest = 0.0

    def now(self) -> float:
        """Return the steady time, which is at or after every moment returned or reached before."""
        with self._lock:
            self._ahead = max(self._ahead, self._latest - self._clock())
            self._latest = max(self._latest, self._clock() + self._ahead)
            return self._latest

    def reach(self, moment: float) -> None:
        """Go on from a moment that was seen earlier, by this process or another."""
        with self._lock:
            self._latest = max(self._latest, moment)

    def steady(self, moment: float) -> float:
        """Return a moment of the system's clock as steady time; a moment in the future counts as now."""
        now = self.now()
        with self._lock:
            return now - max(0.0, self._clock() - moment)

"""Unix time that never goes back."""

import threading
from collections.abc import Callable


class SteadyClock:
    """Where the system's clock jumps back, it goes on from the latest moment seen, at the clock's pace.

    So nothing expires by a jump back, nothing that had expired is valid again, and what is used later stands later.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._ahead = 0.0
        self._latest = 0.0

    def now(self) -> float:
        """The steady time, at or after every moment given out or reached before."""
        with self._lock:
            self._ahead = max(self._ahead, self._latest - self._clock())
            self._latest = max(self._latest, self._clock() + self._ahead)
            return self._latest

    def reach(self, moment: float) -> None:
        """Go on from a moment that was seen earlier, by this process or another."""
        with self._lock:
            self._latest = max(self._latest, moment)

    def steady(self, moment: float) -> float:
        """A moment of the system's clock as steady time: as long ago as it says; what lies ahead counts as now."""
        now = self.now()
        with self._lock:
            return now - max(0.0, self._clock() - moment)

"""Idle time of a server: when something may be done that no request waits for."""

from collections import deque

CAPTURES_AT_ONCE = 4
CAPTURE_SHARE = 0.02
"""Share of the time in which pictures are prefilled alone while answers are decoded, or requests come densely."""
DENSE_REQUESTS, DENSE_SECONDS = 4, 0.5
"""Requests come densely where so many that were not alone arrived in so short a time."""
PRESSED_SECONDS = 2.0
"""For how long requests come densely before anything is captured beside them: a burst is over sooner."""


class IdleTime:
    """Follows arrivals and captures by a clock that the caller reads, in seconds.

    Attributes:
        pressed: whether clients' requests come so densely that nothing else is to be done beside them.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._arrivals: deque[float] = deque(maxlen=DENSE_REQUESTS)
        # When captures began that are under way, and from when on there may be others beside answers.
        self._began: float | None = None
        self._from = 0.0

    def arrive(self, now: float) -> None:
        """Note a request that came while others were there. Who asks again once answered finds no other."""
        if self._arrivals and now - self._arrivals[-1] >= DENSE_SECONDS:
            self.pressed = False
        self._arrivals.append(now)

    def look(self, now: float) -> None:
        """Note whether requests come densely now."""
        dense = len(self._arrivals) == DENSE_REQUESTS and now - self._arrivals[0] < DENSE_SECONDS
        if dense and not self.pressed:
            self._from = max(self._from, now + PRESSED_SECONDS)
        self.pressed = dense

    def begin(self, now: float) -> None:
        """Note that captures begin."""
        self._began = now

    def end(self, now: float) -> None:
        """Note that none is under way any more: whoever waits for a token waited for them too."""
        if self._began is not None:
            self._from = max(self._from, now + (now - self._began) * (1 / CAPTURE_SHARE - 1))
            self._began = None

    def captures(self, now: float, idle: bool) -> int:
        """Return how many captures may begin now.

        Args:
            now: seconds.
            idle: whether no request is there.
        """
        if idle and not self.pressed:
            return CAPTURES_AT_ONCE
        return int(now >= self._from)

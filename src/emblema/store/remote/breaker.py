"""A circuit breaker: a server that keeps failing is left alone for a while, so that nobody waits for it."""

import threading
import time
from collections.abc import Callable
from typing import Literal

from emblema.errors import StoreError

BreakerState = Literal["closed", "open", "half-open"]


class Breaker:
    """Closed until several tries in a row fail, then open; after a rest one try is let through and decides.

    Every `enter` that returns True is followed by exactly one of `succeeded`, `failed` and `abandoned`.

    Args:
        failures: in a row before it opens.
        rest_seconds: how long it stays open before the next try.
        clock: seconds, never going back.
    """

    def __init__(
        self, failures: int = 3, rest_seconds: float = 5.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if failures < 1 or rest_seconds < 0:
            raise StoreError(
                f"A breaker of {failures} failures and {rest_seconds:g} s of rest cannot work: give at least one "
                "failure and no negative rest."
            )
        self.failures = failures
        self.rest_seconds = rest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._opened_at: float | None = None
        self._trying = False
        self._opened = 0

    @property
    def state(self) -> BreakerState:
        with self._lock:
            return self._state()

    @property
    def opened(self) -> int:
        """How many times it has opened."""
        with self._lock:
            return self._opened

    def enter(self) -> bool:
        """Whether a try may go ahead now."""
        with self._lock:
            state = self._state()
            if state == "closed":
                return True
            if state == "open" or self._trying:
                return False
            self._trying = True
            return True

    def succeeded(self) -> None:
        """The server answered, whatever it said."""
        with self._lock:
            self._in_a_row = 0
            self._opened_at = None
            self._trying = False

    def failed(self) -> None:
        """The server did not answer, or not in time."""
        with self._lock:
            self._in_a_row += 1
            was = self._state()
            if was == "half-open" or (was == "closed" and self._in_a_row >= self.failures):
                self._opened_at = self._clock()
                self._opened += 1
            self._trying = False

    def abandoned(self) -> None:
        """The try ended without saying anything about the server."""
        with self._lock:
            self._trying = False

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._clock() - self._opened_at >= self.rest_seconds else "open"

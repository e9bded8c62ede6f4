"""Rows that wait to be stored or learnt from, counted: what finds no room is dropped."""

import threading


class WaitingRows:
    """Counts the bytes of rows that wait, and what found no room. Any thread may use it."""

    def __init__(self, most: int) -> None:
        self._lock = threading.Lock()
        self._most, self._held, self._dropped = most, 0, 0

    @property
    def held(self) -> int:
        """Bytes that wait now."""
        return self._held

    def take(self, size: int) -> bool:
        """Count some rows if there is room for them; those that alone are too large find room where nothing waits."""
        with self._lock:
            if self._held and self._held + size > self._most:
                return False
            self._held += size
            return True

    def leave(self, size: int) -> None:
        """Count rows that wait no more."""
        with self._lock:
            self._held -= size

    def drop(self) -> None:
        """Count a piece that is not kept."""
        with self._lock:
            self._dropped += 1

    def take_dropped(self) -> int:
        """Return how many pieces were dropped since the last call."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
            return dropped

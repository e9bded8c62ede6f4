"""Counters, by owner."""

import threading
from collections import Counter


class Counts:
    """Counters that any thread may raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[str, Counter[str]] = {}

    def add(self, owner: str, name: str, count: int = 1) -> None:
        with self._lock:
            self._of.setdefault(owner, Counter())[name] += count

    def of(self, owner: str | None) -> Counter[str]:
        """One owner's counters; of all owners for None."""
        with self._lock:
            if owner is not None:
                return Counter(self._of.get(owner, {}))
            total: Counter[str] = Counter()
            for counter in self._of.values():
                total.update(counter)
            return total

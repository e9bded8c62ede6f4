"""Places in vLLM's batch: one for each request that runs, and one for each virtual request that it may add."""

from collections.abc import Iterable


class BatchPlaces:
    """Lets requests into the batch as long as their virtual requests find places too.

    Args:
        most: places of the batch.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._running: set[str] = set()
        # Virtual requests of requests that were admitted and whose prompts are not ready; those that run, and others.
        self._virtual: dict[str, int] = {}
        # The request that waits for places: none that came later takes them.
        self._first: str | None = None

    @property
    def free(self) -> int:
        """Places that nobody has or was promised."""
        return self.most - len(self._running | self._virtual.keys()) - sum(self._virtual.values())

    @property
    def unused(self) -> int:
        """Places that nobody has; those that were promised are free in a step without requests."""
        return self.most - len(self._running)

    def admit(self, request_id: str, virtual: int) -> bool:
        """Return whether a waiting request may be scheduled, with so many virtual requests at most."""
        if request_id in self._virtual:
            return True
        if self._first not in (None, request_id):
            return False
        if 1 + virtual > self.free:
            self._first = request_id
            return False
        self._first = None
        self._virtual[request_id] = virtual
        return True

    def follow(self, scheduled: Iterable[str], ended: Iterable[str]) -> None:
        """Note which requests were scheduled, and which have ended or were preempted before that."""
        for request_id in ended:
            self._running.discard(request_id)
            self.leave(request_id)
        self._running.update(scheduled)

    def settle(self, request_id: str) -> None:
        """Note that a running request adds no virtual requests any more."""
        self._virtual.pop(request_id, None)

    def leave(self, request_id: str) -> None:
        """Forget what was promised to a request."""
        self._virtual.pop(request_id, None)
        if self._first == request_id:
            self._first = None

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

    def make_way(self, request_id: str, name: str, places: int) -> bool:
        """Hold places under a name, for a waiting request to begin; return whether it may.

        Where there are not as many, none that came later takes those that become free.
        """
        if self._first not in (None, request_id):
            return False
        if not self.hold(name, places):
            self._first = request_id
            return False
        self._first = None
        return True

    def hold(self, name: str, places: int) -> bool:
        """Take places for what is under way already, whoever waits; return whether it has them."""
        if name in self._virtual or name in self._running:
            return True
        if places > self.free:
            return False
        self._virtual[name] = places - 1
        return True

    def held(self, name: str) -> int:
        """Return how many places are held under a name."""
        return self._virtual[name] + 1 if name in self._virtual else 0

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

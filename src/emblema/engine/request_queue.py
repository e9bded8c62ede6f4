"""What waits for a model: calls and requests, by tenant, and how much of it may wait."""

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from emblema.engine.engine import Engine
from emblema.engine.generation import Generation
from emblema.errors import BusyError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """How much one model takes on.

    Attributes:
        waiting: requests that wait for their prefill, at most.
        waiting_rows: rows of their prompts together, as their callers estimate them; one request may always wait.
        batch_rows: rows of the longest sequence that is decoded times the number of sequences, at most.
        block_rows: rows of a long prefill that run before the replies under way get their next token.
    """

    waiting: int = 256
    waiting_rows: int = 1_000_000
    batch_rows: int = 262_144
    block_rows: int = 256


@dataclass(frozen=True, slots=True)
class ModelCall:
    """Work for the model's thread, and where its result goes."""

    work: Callable[[], Any]
    future: "Future[Any]"

    def run(self) -> None:
        """Do the work, unless nobody waits for it any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except BaseException as error:
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """Something that waits, and the engine of its tenant."""

    engine: Engine
    what: Generation | ModelCall


@dataclass(slots=True)
class RequestQueue:
    """Calls and requests that wait. Tenants take turns; each tenant's come in their order."""

    limits: SchedulerLimits
    _tenants: OrderedDict[str, deque[WaitingItem]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    @property
    def generations(self) -> list[Generation]:
        """The requests among them."""
        items = (item.what for items in self._tenants.values() for item in items)
        return [what for what in items if isinstance(what, Generation)]

    def put(self, item: WaitingItem, seconds: float) -> None:
        """Add something at the end of its tenant's.

        Args:
            item: what waits.
            seconds: how long a request has taken of late, to say when to ask again.

        Raises:
            BusyError: it is a request, and too much waits already.
        """
        if isinstance(item.what, Generation):
            waiting = self.generations
            rows = sum(generation.rows for generation in waiting) + item.what.rows
            if len(waiting) >= self.limits.waiting or (waiting and rows > self.limits.waiting_rows):
                retry = max(1.0, seconds * len(waiting))
                raise BusyError(f"{len(waiting)} requests wait already: ask again in {retry:.0f} seconds", retry)
        self._tenants.setdefault(item.engine.store.owner, deque()).append(item)

    def take(self) -> WaitingItem:
        """Take the first thing of the tenant whose turn it is."""
        tenant, items = self._tenants.popitem(last=False)
        item = items.popleft()
        if items:
            self._tenants[tenant] = items
        return item

    def remove(self, generations: list[Generation]) -> None:
        """Remove requests."""
        for tenant, items in list(self._tenants.items()):
            kept = deque(item for item in items if item.what not in generations)
            if kept:
                self._tenants[tenant] = kept
            else:
                del self._tenants[tenant]

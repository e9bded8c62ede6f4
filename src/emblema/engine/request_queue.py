"""What waits for a model: calls and requests, by tenant, and how much of it may wait."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
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


@dataclass(slots=True)
class ModelCall:
    """Work for the model's thread, and where its result goes. It lets go of both when it is run."""

    work: Callable[[], Any]
    future: "Future[Any]"

    def run(self) -> None:
        """Do the work, unless nobody waits for it any more."""
        work, future = self.work, self.future
        self.work, self.future = _nothing, Future()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
            # An error holds this frame, which must not hold the error, or what was worked on stays.
            del work, future

    def fail(self, error: Exception) -> None:
        """End with an error, without the work."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def _nothing() -> None:
    """Stand for work that was done."""


@dataclass(frozen=True, slots=True)
class WaitingItem:
    """Something that waits, and the engine of its tenant."""

    engine: Engine
    what: Generation | ModelCall


@dataclass(slots=True)
class RequestQueue:
    """Calls and requests that wait. Tenants take turns, and so do a tenant's calls and its requests, each in order.

    A call, such as a step of making a cache, never waits for all that its tenant asks.
    """

    limits: SchedulerLimits
    # By tenant its calls (False) and its requests (True), the next first.
    _tenants: OrderedDict[str, OrderedDict[bool, deque[WaitingItem]]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return sum(1 for _ in self._items())

    def _items(self) -> Iterator[WaitingItem]:
        return (item for lines in self._tenants.values() for items in lines.values() for item in items)

    @property
    def generations(self) -> list[Generation]:
        """The requests among them."""
        return [item.what for item in self._items() if isinstance(item.what, Generation)]

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
        lines = self._tenants.setdefault(item.engine.store.owner, OrderedDict())
        lines.setdefault(isinstance(item.what, Generation), deque()).append(item)

    def take(self) -> WaitingItem:
        """Take the first thing of the tenant whose turn it is."""
        tenant, lines = self._tenants.popitem(last=False)
        kind, items = lines.popitem(last=False)
        item = items.popleft()
        if items:
            lines[kind] = items
        if lines:
            self._tenants[tenant] = lines
        return item

    def take_other(self, owner: str) -> WaitingItem | None:
        """Take the first request of another tenant than this one, whose own turn it is; None if there is none."""
        for tenant, lines in self._tenants.items():
            if tenant != owner and True in lines:
                lines.move_to_end(True, last=False)
                self._tenants.move_to_end(tenant, last=False)
                return self.take()
        return None

    def remove(self, generations: list[Generation]) -> None:
        """Remove requests."""
        for tenant, lines in list(self._tenants.items()):
            kept = deque(item for item in lines.pop(True, ()) if item.what not in generations)
            if kept:
                lines[True] = kept
            elif not lines:
                del self._tenants[tenant]

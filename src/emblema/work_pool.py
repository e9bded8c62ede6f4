"""Threads for work that is not the model's: tenants take turns at them, and none has all of them."""

import asyncio
import threading
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from emblema.errors import BusyError, EmblemaError

T = TypeVar("T")
P = ParamSpec("P")
RETRY_SECONDS = 1.0
"""When to ask again, where too much waits."""


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How much of one kind of work goes on at once, and may wait.

    Attributes:
        places: what goes on at once.
        of_one: places that one tenant may have of them.
        waiting: pieces of work of one tenant that may wait; more are refused.
    """

    places: int
    of_one: int
    waiting: int = 1_024


class TenantTurns:
    """Places that tenants take turns at; a tenant's own come in their order. Any thread may use it.

    Args:
        name: of what is waited for, for messages.
        size: places, and who may have how many.
    """

    def __init__(self, name: str, size: PoolSize) -> None:
        self._name, self._size = name, size
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()

    def ask(self, owner: str, start: Callable[[], None]) -> None:
        """Have `start` called once, soon or later, when there is a place; whoever asked then has to `leave` it.

        Raises:
            BusyError: too much of this tenant's waits already.
        """
        with self._lock:
            waiting = self._waiting.setdefault(owner, deque())
            if len(waiting) >= self._size.waiting:
                raise BusyError(f"{len(waiting)} of your requests wait for {self._name} already", RETRY_SECONDS)
            waiting.append(start)
        self._give()

    def leave(self, owner: str) -> None:
        """Give a place back."""
        with self._lock:
            self._taken[owner] -= 1
            if not self._taken[owner]:
                del self._taken[owner]
        self._give()

    @property
    def taken(self) -> int:
        """Places that are taken."""
        with self._lock:
            return self._taken.total()

    @property
    def waiting(self) -> int:
        """What waits for a place."""
        with self._lock:
            return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place, and have it until the block ends; errors as `ask`."""
        given: Future[None] = Future()

        def start() -> None:
            if given.set_running_or_notify_cancel():
                given.set_result(None)
            else:
                self.leave(owner)

        self.ask(owner, start)
        try:
            await asyncio.wrap_future(given)
        except asyncio.CancelledError:
            if not given.cancel():
                self.leave(owner)
            raise
        try:
            yield
        finally:
            self.leave(owner)

    def _give(self) -> None:
        """Give out the places that are free, to the tenant who has waited for a turn longest."""
        while (start := self._next()) is not None:
            start()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._taken.total() >= self._size.places:
                return None
            for owner in self._waiting:
                if self._taken[owner] < self._size.of_one:
                    break
            else:
                return None
            waiting = self._waiting.pop(owner)
            start = waiting.popleft()
            if waiting:
                self._waiting[owner] = waiting
            self._taken[owner] += 1
            return start


class WorkPool:
    """Threads of their own for one kind of work.

    Args:
        name: of the threads; they are called `emblema-NAME_0` and so on.
        size: threads, and how many of them one tenant may have.
    """

    def __init__(self, name: str, size: PoolSize) -> None:
        self.name, self.turns = name, TenantTurns(name, size)
        self._threads = ThreadPoolExecutor(size.places, f"emblema-{name}")

    async def run(self, owner: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Do something on a thread, in its tenant's turn. What nobody waits for any more is not begun.

        Raises:
            BusyError: too much of this tenant's waits already.
        """
        return await asyncio.wrap_future(self.submit(owner, partial(work, *given, **named)))

    def submit(self, owner: str, work: Callable[[], T]) -> "Future[T]":
        """Have something done on a thread, in its tenant's turn; errors as `run`."""
        future: Future[T] = Future()

        # Emptied, as an error holds the frames that led to it, and these would hold the work.
        job = [(future, work)]

        def act() -> None:
            try:
                _settle(*job.pop())
            finally:
                self.turns.leave(owner)

        def start() -> None:
            try:
                self._threads.submit(act)
            except RuntimeError:
                # Or the interpreter ends.
                given, _ = job.pop()
                if given.set_running_or_notify_cancel():
                    given.set_exception(EmblemaError("the engine or server is closed: nothing more is begun"))
                self.turns.leave(owner)

        del work
        self.turns.ask(owner, start)
        return future

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _settle(future: "Future[T]", work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
        # An error holds this frame, which must not hold the error, or what was worked on stays until cycles are sought.
        del future, work
    else:
        future.set_result(result)


async def run_alone(name: str, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Do something once, such as loading a model, on a thread of its own, which is left behind if this is cancelled."""
    future: Future[T] = Future()
    threading.Thread(
        target=_settle, args=(future, partial(work, *given, **named)), name=f"emblema-{name}", daemon=True
    ).start()
    return await asyncio.wrap_future(future)

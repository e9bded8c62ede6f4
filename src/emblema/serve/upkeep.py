"""What a server does again and again until it ends: nothing ends it, and what fails is told."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from emblema.errors import EmblemaError

_LOG = logging.getLogger("emblema.serve")
T = TypeVar("T")


async def retried(work: Callable[[], Awaitable[T]]) -> T:
    """Do something, and again as long as its error says after which time that is worth it."""
    while True:
        try:
            return await work()
        except EmblemaError as error:
            again: float | None = getattr(error, "retry_after", None)
            if again is None:
                raise
        await asyncio.sleep(again)


class Upkeep:
    """Work in the background that goes on whatever it raises. Errors are logged once until it works again.

    Attributes:
        failures: how often each work has failed, which is known from its beginning.
    """

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._failing: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def failing(self) -> dict[str, str]:
        """What does not work now, and why."""
        return dict(self._failing)

    async def repeat(self, name: str, work: Callable[[], Awaitable[None]], seconds: float) -> None:
        """Do something every so many seconds, until this is cancelled."""
        self.failures.setdefault(name, 0)
        while True:
            try:
                await work()
                if self._failing.pop(name, None) is not None:
                    _LOG.info("%s works again", name)
            except Exception as error:
                foreseen = isinstance(error, EmblemaError)
                said = f"{type(error).__name__}: {error}"
                if self._failing.get(name) is None:
                    _LOG.warning("%s fails, it is tried again and again: %s", name, said, exc_info=not foreseen)
                self._failing[name] = said[:200]
                self.failures[name] += 1
            await asyncio.sleep(seconds)

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something once, beside requests; what it raises is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.failures[name] += 1
                _LOG.error("%s failed", name, exc_info=error)

        task.add_done_callback(ended)

    async def close(self) -> None:
        """End all of it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

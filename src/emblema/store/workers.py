"""Threads that make the store's calls to slow devices."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from emblema.errors import StoreError

log = logging.getLogger(__name__)
T = TypeVar("T")

THREADS = 4
"""Of each pool."""


class WorkerPool:
    """A few daemon threads that make calls in order, and hold up no end of the process. They start with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closed = False
        self._hanging: Future[Any] | None = None
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Have a call made; returns its outcome to come.

        Raises:
            StoreError: the pool is closed.
        """
        outcome: Future[T] = Future()

        def answer() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)

        with self._lock:
            if self._closed:
                raise StoreError("the store is closed: open it again, on the same folder to find what it kept")
            if not self._threads:
                names = [f"emblema-{self._name}-{index}" for index in range(THREADS)]
                self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
                for thread in self._threads:
                    thread.start()
            self._queue.put(answer)
        return outcome

    def call(self, call: Callable[[], T], seconds: float) -> T:
        """Return what a call returns.

        Raises:
            TimeoutError: it took longer, or one that did is not over yet: one that hangs is waited for once.
            StoreError: the pool is closed.
        """
        if self._hanging is not None and not self._hanging.done():
            raise TimeoutError
        outcome = self.submit(call)
        try:
            return outcome.result(seconds)
        except TimeoutError:
            if not outcome.done():
                self._hanging = outcome
                log.warning("a %s was not over within %g s, and is done without", self._name, seconds)
            raise

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)

    def _run(self) -> None:
        while (answer := self._queue.get()) is not None:
            answer()

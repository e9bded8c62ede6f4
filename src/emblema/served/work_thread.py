"""A thread beside an engine's own that does one piece of work after another, and outlives their errors."""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

import torch

from emblema.errors import EmblemaError

_log = logging.getLogger(__name__)
Work = Callable[[], None]


class WorkThread:
    """Does what it is given, in order, without gradients. An error is logged, and the next piece is done.

    Args:
        name: of the thread.
        failure: what an error means, for the log.
        rest: returns the seconds without work after which `resting` is called; None for never.
        resting: what is done then.
    """

    def __init__(
        self, name: str, failure: str, rest: Callable[[], float | None] = lambda: None, resting: Work = lambda: None
    ) -> None:
        self._failure, self._rest, self._resting = failure, rest, resting
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Work) -> None:
        """Have something done once all that was given before is."""
        self._work.put(work)

    def drain(self) -> None:
        """Wait until all that was given so far is done."""
        done = threading.Event()
        self._work.put(done.set)
        done.wait()

    def close(self, timeout: float | None = None) -> None:
        """Do what was given, and end the thread; do not wait for that for longer than `timeout` seconds."""
        self._work.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=self._rest())
            except Empty:
                work = self._resting
            if work is None:
                return
            try:
                with torch.inference_mode():
                    work()
            except Exception as error:
                # The engine goes on without this piece.
                log_failure(self._failure, error)


def log_failure(what: str, error: Exception) -> None:
    """Log an error; an unexpected one with its trace."""
    _log.warning("emblema: %s: %s", what, error, exc_info=not isinstance(error, EmblemaError | OSError))

"""A thread beside an engine's own that does one piece of work after another, and outlives their errors."""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch

from emblema.errors import EmblemaError

_log = logging.getLogger(__name__)
Work = Callable[[], None]


class WorkThread:
    """Does what it is given, in order, without gradients. An error is logged, and the next piece is done.

    Args:
        name: of the thread.
        failure: what an error means, for the log.
    """

    def __init__(self, name: str, failure: str) -> None:
        self._failure = failure
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
        while (work := self._work.get()) is not None:
            try:
                with torch.inference_mode():
                    work()
            except Exception as error:
                # The engine goes on without this piece.
                log_failure(self._failure, error)


def log_failure(what: str, error: Exception) -> None:
    """Log an error; an unexpected one with its trace."""
    _log.warning("emblema: %s: %s", what, error, exc_info=not isinstance(error, EmblemaError | OSError))

"""Threads that a test starts, apart from those of servers that other tests share."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def started_threads() -> Iterator[list[threading.Thread]]:
    """Note every thread that this one starts, or that such a thread starts."""
    started: list[threading.Thread] = []
    here, start = threading.current_thread(), threading.Thread.start

    def noting(self: threading.Thread) -> None:
        if threading.current_thread() is here or threading.current_thread() in started:
            started.append(self)
        start(self)

    with patch.object(threading.Thread, "start", noting):
        yield started


def await_end(started: list[threading.Thread], of: Callable[[str], bool], seconds: float = 60) -> None:
    """Fail where a thread whose name `of` accepts still runs after some seconds."""
    deadline = time.monotonic() + seconds
    while left := [each.name for each in started if each.is_alive() and of(each.name)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)

"""How long a request is worked for: until its deadline, and no longer than its client is there."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from emblema.errors import DeadlineError
from emblema.serve.faults import ServeError

T = TypeVar("T")
_LOOK_SECONDS = 0.5
"""Between two looks whether the client is there."""


def seconds_left(request: Request, seconds: float) -> float:
    """Return what is left of a request's time, which began when it arrived."""
    now = asyncio.get_running_loop().time()
    return seconds - (now - float(getattr(request.state, "arrived", now)))


async def within(request: Request, seconds: float, work: Coroutine[Any, Any, T], late: str) -> T:
    """Wait for what a request asks for, and give it up with the request.

    Args:
        request: whose client waits.
        seconds: from its arrival to its deadline.
        work: what is done for it.
        late: what is said after its deadline.

    Raises:
        DeadlineError: the deadline is over.
        ServeError: the client has left.
    """
    until = asyncio.get_running_loop().time() + seconds_left(request, seconds)
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                raise DeadlineError(late)
            await asyncio.wait((task,), timeout=min(_LOOK_SECONDS, left))
            if not task.done() and await request.is_disconnected():
                raise ServeError(499, "the client left", "cancelled")
        return task.result()
    finally:
        task.cancel()
        # An error holds this frame, which must not hold the error, or the request's media stay.
        del task

"""Bodies of requests as they come: bounded in bytes, in what their JSON may hold, in time, and counted."""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.exceptions import HTTPException

from emblema.errors import BusyError
from emblema.serve.faults import ServeError
from emblema.serve.held_bytes import Holding

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
FIRST_SECONDS = 30.0
"""Seconds that a body may take beside those for its bytes."""
BYTES_A_SECOND = 16 * 2**10
"""Bytes of a body that have to come in a second, on the whole."""
_MARKS = 200_000
"""Commas of a body beside those of its text: what has more is no conversation, and takes seconds to be read."""


class BodyReader:
    """The body of one request. It is called as a `receive` of ASGI.

    Args:
        receive: gives what the client sends.
        most: bytes that it may have.
        text: of these, bytes that may be text; None for a body that is no JSON.

    Attributes:
        bytes: that have come.
        holding: where they are counted; None for nowhere.
    """

    def __init__(self, receive: Receive, most: int, text: int | None) -> None:
        self._receive, self._most = receive, most
        self._marks = math.inf if text is None else text + _MARKS
        self.bytes = 0
        self.holding: Holding | None = None
        self._seconds, self._whole = 0.0, False

    async def __call__(self) -> Message:
        """Return the next message.

        Raises:
            HTTPException: the body is too large, too slow, or more than may be held now. Of this kind, so that whoever
                reads the body passes it on as it is.
        """
        if self._whole:
            return await self._receive()
        message = await self._within()
        part: bytes = message.get("body", b"")
        self._whole = message["type"] != "http.request" or not message.get("more_body")
        self.bytes += len(part)
        self._marks -= part.count(b",")
        if self.bytes > self._most:
            raise HTTPException(413, str(too_large(self._most)))
        if self._marks < 0:
            raise HTTPException(413, "the body has more values than a request may have")
        if self.holding is not None:
            try:
                self.holding.take_body(len(part))
            except BusyError as error:
                retry = {"Retry-After": str(round(error.retry_after))}
                raise HTTPException(429, str(error), retry) from error
        return message

    async def _within(self) -> Message:
        left = FIRST_SECONDS + self.bytes / BYTES_A_SECOND - self._seconds
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(left):
                return await self._receive()
        except TimeoutError as error:
            raise HTTPException(408, "the body did not come in time", {"connection": "close"}) from error
        finally:
            self._seconds += loop.time() - began


async def _nobody_leaves() -> Message:
    """Return nothing for as long as it is waited for."""
    await asyncio.Event().wait()
    return {"type": "http.disconnect"}


def receive_of(body: bytes, then: Receive = _nobody_leaves) -> Receive:
    """Return a `receive` of ASGI that gives a whole body, and then what `then` gives: that the client has left."""
    left = [body]

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await then()

    return receive


def too_large(most: int) -> ServeError:
    """Return the error for a body of too many bytes."""
    return ServeError(413, f"the body is larger than {most} bytes", "body_too_large")

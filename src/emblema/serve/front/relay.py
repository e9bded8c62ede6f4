"""A client's request passed to the engine, and the engine's reply passed back as it comes."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import httpcore2
from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from emblema.errors import EmblemaError
from emblema.serve.deadlines import seconds_left, within
from emblema.serve.front.engine import EngineClient, pieces

_LOG = logging.getLogger("emblema.serve")
PASSED = (
    b"accept", b"anthropic-beta", b"anthropic-version", b"content-type", b"traceparent", b"tracestate", b"user-agent",
)  # fmt: skip
"""Headers of a client that the engine gets, beside the request's id. Keys and cookies are for this server."""
KEPT_BACK = (
    b"alt-svc", b"connection", b"content-length", b"date", b"keep-alive", b"location", b"proxy-authenticate", b"server",
    b"set-cookie", b"strict-transport-security", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"x-request-id",
)  # fmt: skip
"""Headers of a reply that are about the connection to the engine, its address, or the id that the guard writes."""
_CORS = b"access-control-"
Written = Callable[[AsyncIterator[bytes], bool], AsyncIterator[bytes]]
"""Writes into a reply's body as it comes, given whether it is a stream of events."""


async def relay(
    request: Request, engine: EngineClient, body: bytes, seconds: float, written: Written | None = None
) -> "RelayedReply":
    """Return the engine's reply to a request.

    Args:
        request: of the client.
        engine: that is asked.
        body: in place of the client's.
        seconds: from the request's arrival to its deadline.
        written: writes into a reply that is no refusal; None passes it on as it is.

    Raises:
        ServeError: the engine is not there or breaks off, or the client has left.
        DeadlineError: the engine did not begin to answer in time.
    """
    headers = [(name, value) for name, value in request.scope["headers"] if name in PASSED]
    headers.append((b"x-request-id", request.state.id.encode()))
    path, query = request.scope["path"], request.scope.get("query_string", b"")
    sending = engine.send(request.method, path, headers, body, query, seconds)
    reply = await within(request, seconds, sending, "the engine did not answer by the deadline")
    return RelayedReply(reply, seconds_left(request, seconds), written)


class RelayedReply(Response):
    """A reply that is passed on until it ends, its client leaves, or its time is over; then the engine's is closed."""

    def __init__(self, reply: httpcore2.Response, seconds: float, written: Written | None) -> None:
        self._reply, self._seconds, self._written = reply, seconds, written
        self.status_code, self.background = reply.status, None
        self.raw_headers = [
            (name.lower(), value)
            for name, value in reply.headers
            if name.lower() not in KEPT_BACK and not name.lower().startswith(_CORS)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks = [asyncio.ensure_future(self._pass_on(send)), asyncio.ensure_future(_leaving(receive))]
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                _LOG.warning("a reply was not whole by its deadline, and is broken off")
            if tasks[0] in done:
                tasks[0].result()
        except EmblemaError as error:
            # The headers are sent: a connection that ends too early is all that can be said.
            _LOG.warning("a reply is broken off: %s", error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._reply.aclose()

    async def _pass_on(self, send: Send) -> None:
        body = pieces(self._reply)
        if self._written is not None and self.status_code == 200:
            kind = dict(self.raw_headers).get(b"content-type", b"")
            body = self._written(body, kind.startswith(b"text/event-stream"))
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in body:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _leaving(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass

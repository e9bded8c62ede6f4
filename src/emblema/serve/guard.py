"""What stands before every route, on the server of any engine."""

import json
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from emblema.serve.faults import ServeError, response_to
from emblema.serve.host import Host, key_of
from emblema.serve.settings import LOOPBACK, ServeSettings

_LOG = logging.getLogger("emblema.serve")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Guard:
    """What stands before every route: the body's size, pages of others, keys, a request's id, its line in the log.

    Pages of `origins` may use the server beside its own.
    """

    def __init__(self, app: App, settings: ServeSettings, origins: Collection[str] = ()) -> None:
        self._app, self._settings, self._origins = app, settings, origins

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, id = time.perf_counter(), f"req_{uuid.uuid4().hex[:16]}"
        host, headers = _ready(scope), Headers(scope=scope)
        scope.setdefault("state", {})["lane"] = None
        most = self._settings.file_bytes if scope["path"] == "/v1/files" else self._settings.body_bytes
        status, read = 499, 0

        async def counted() -> Message:
            nonlocal read
            message: Message = await receive()
            read += len(message.get("body", b""))
            if read > most:
                # Of this kind, so that whoever reads the body passes it on as it is.
                raise HTTPException(413, str(_too_large(most)))
            return message

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        try:
            refusal = self._refusal(scope["path"], headers, most, host)
            await (self._app(scope, counted, answer) if refusal is None else refuse(refusal, answer))
        finally:
            line = {
                "request": id, "method": scope["method"], "path": scope["path"][:200], "status": status,
                "seconds": round(time.perf_counter() - began, 4), "bytes": read, "lane": scope["state"].get("lane"),
            }  # fmt: skip
            _LOG.info(json.dumps(line))
            if host is not None:
                # The route's own path, so that clients cannot make names.
                host.requests.labels(getattr(scope.get("route"), "path", "other"), str(status)).inc()

    def _refusal(self, path: str, headers: Headers, most: int, host: Host | None) -> ServeError | None:
        """Return why a request goes no further, before its body is read."""
        length, origin = headers.get("content-length", "0"), headers.get("origin")
        if not length.isdecimal() or int(length[:20]) > most:
            return _too_large(most)
        if origin not in (None, *self._origins) and _split(origin).netloc != headers.get("host"):
            return ServeError(403, "pages of other origins may not use this server", "foreign_origin")
        # A name that was made to lead here would let a page of its owner in.
        if self._settings.loopback and _split(f"//{headers.get('host', '')}").hostname not in LOOPBACK:
            return ServeError(403, "this server answers to localhost alone", "foreign_host")
        if host is not None and path.startswith("/v1/"):
            try:
                host.tenant_of(key_of(headers))
            except ServeError as error:
                return error
        return None


def _split(address: str | None) -> SplitResult:
    """Return an address in its parts; one that cannot be read has none."""
    try:
        return urlsplit(address or "")
    except ValueError:
        return urlsplit("")


def _ready(scope: Message) -> Host | None:
    """Return the server; None while its model is not loaded."""
    try:
        host: Host = scope["app"].state.host()
    except ServeError:
        return None
    return host


def _too_large(most: int) -> ServeError:
    return ServeError(413, f"the body is larger than {most} bytes", "body_too_large")


async def refuse(error: Exception, send: Any) -> None:
    """Answer a request with an error; the connection is closed, so that a body nobody wants is not read to its end."""
    response = response_to(error)
    response.headers["connection"] = "close"
    await response({"type": "http"}, None, send)  # type: ignore[arg-type]

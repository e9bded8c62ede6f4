"""What stands before every route, on the server of any engine."""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection
from contextlib import nullcontext
from typing import Any
from urllib.parse import SplitResult, urlsplit

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.datastructures import Headers

from emblema.errors import EmblemaError
from emblema.serve.body_reading import BodyReader, Message, Receive, too_large
from emblema.serve.faults import ServeError, response_to
from emblema.serve.held_bytes import Holding
from emblema.serve.host import KeyedServer, key_of
from emblema.serve.keys import Tenant
from emblema.serve.settings import LOOPBACK, ServeSettings
from emblema.serve.work_pools import NOBODY

_LOG = logging.getLogger("emblema.serve")
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
_ID = re.compile(r"[!-~]{1,128}")
_FOREIGN_ORIGIN = (
    "pages of other origins may not use this server: name yours in its setting allowed_origins, as with `emblema serve "
    "--set allowed_origins=http://localhost:3000` (inside vLLM: --allowed-origins)"
)
_FOREIGN_HOST = (
    "this server answers to localhost alone: name the host in its setting host_names, as with `emblema serve --set "
    "host_names=host.docker.internal`, or make a key with `emblema keys add NAME` and start it with --host 0.0.0.0"
)


class Guard:
    """What stands before every route: the body's size, pages of others, keys, a request's id, its line in the log.

    Pages of `origins` may use the server beside its own. A route finds in its request's state when it arrived, whose it
    is, its id, and what it holds.
    """

    def __init__(self, app: App, settings: ServeSettings, origins: Collection[str] = ()) -> None:
        self._app, self._settings, self._origins = app, settings, origins

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        method = scope["method"]
        if method == "HEAD":
            # Answered as GET is; the server sends no body for it.
            scope = {**scope, "method": "GET"}
        server, headers = _ready(scope), Headers(scope=scope)
        id = _id_of(headers)
        state = scope.setdefault("state", {})
        state |= {"id": id, "lane": None, "arrived": asyncio.get_running_loop().time()}
        upload = scope["path"] == "/v1/files"
        most = self._settings.file_bytes if upload else self._settings.body_bytes
        body, status = BodyReader(receive, most, None if upload else self._settings.text_bytes), 499

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", id.encode())]
            await send(message)

        try:
            refusal: EmblemaError | None = self._refusal(headers, most)
            if refusal is None and server is not None:
                refusal = await self._admit(server, scope["path"], headers, state)
            with nullcontext() if server is None or refusal is not None else self._held(server, state, body):
                await (self._app(scope, body, answer) if refusal is None else refuse(refusal, scope, answer))
        finally:
            line = {
                "request": id, "method": method, "path": scope["path"][:200], "status": status,
                "seconds": round(time.perf_counter() - began, 4), "bytes": body.bytes, "lane": state.get("lane"),
            }  # fmt: skip
            if "misses" in state:
                line |= {"rows": state["rows"], "misses": state["misses"]}
            _LOG.info(json.dumps(line))
            if server is not None:
                # The route's own path, so that clients cannot make names.
                server.requests.labels(getattr(scope.get("route"), "path", "other"), str(status)).inc()

    def _refusal(self, headers: Headers, most: int) -> ServeError | None:
        """Return why a request goes no further, whoever sent it."""
        length, origin = headers.get("content-length", "0"), headers.get("origin")
        if not length.isdecimal() or int(length[:20]) > most:
            return too_large(most)
        if origin not in (None, *self._origins) and _split(origin).netloc != headers.get("host"):
            return ServeError(403, _FOREIGN_ORIGIN, "foreign_origin")
        # A name that was made to lead here would let a page of its owner in.
        names = (*LOOPBACK, *self._settings.host_names)
        if self._settings.loopback and _split(f"//{headers.get('host', '')}").hostname not in names:
            return ServeError(403, _FOREIGN_HOST, "foreign_host")
        return None

    async def _admit(self, server: KeyedServer, path: str, headers: Headers, state: Message) -> EmblemaError | None:
        """Note whose a request is, before its body is read; return why it is nobody's."""
        if path.startswith("/v1/"):
            try:
                state["tenant"] = await server.tenant_of(key_of(headers))
            except EmblemaError as error:
                return error
        return None

    def _held(self, server: KeyedServer, state: Message, body: BodyReader) -> Holding:
        tenant: Tenant | None = state.get("tenant")
        state["holding"] = body.holding = server.held.open(NOBODY if tenant is None else tenant.owner)
        return body.holding


def guard(app: FastAPI, settings: ServeSettings) -> None:
    """Have an application guarded, and pages of the settings' origins let in."""
    origins = settings.allowed_origins
    app.add_middleware(Guard, settings=settings, origins=origins)
    if origins:
        app.add_middleware(
            CORSMiddleware, origins, allow_methods=["*"], allow_headers=["*"], expose_headers=["x-request-id"]
        )


def _id_of(headers: Headers) -> str:
    """Return a request's id: the client's own where it is a word of at most 128 characters."""
    given = headers.get("x-request-id", "")
    return given if _ID.fullmatch(given) else f"req_{uuid.uuid4().hex[:16]}"


def _split(address: str | None) -> SplitResult:
    """Return an address in its parts; one that cannot be read has none."""
    try:
        return urlsplit(address or "")
    except ValueError:
        return urlsplit("")


def _ready(scope: Message) -> KeyedServer | None:
    """Return the server; None while its model is not loaded."""
    try:
        server: KeyedServer = scope["app"].state.host()
    except ServeError:
        return None
    return server


async def refuse(error: Exception, scope: Message, send: Any) -> None:
    """Answer a request with an error; the connection is closed, so that a body nobody wants is not read to its end."""
    response = response_to(error, scope)
    response.headers["connection"] = "close"
    await response({"type": "http"}, None, send)  # type: ignore[arg-type]

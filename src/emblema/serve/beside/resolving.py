"""The service on an engine's own application: what names a file is the file to the engine's routes, a key is a salt.

A middleware within the engine's own, so that its checks come first. A body is read once it is known whose it is.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from emblema.errors import DeadlineError, EmblemaError
from emblema.serve.beside.body_media import Form, lists_of_parts, resolve_media
from emblema.serve.beside.engine_api import EngineApi, give_options
from emblema.serve.beside.engine_host import EngineHost
from emblema.serve.beside.reply_notes import ReplyNotes
from emblema.serve.body_reading import receive_of
from emblema.serve.cache_routes import cache_content
from emblema.serve.endpoints import SHARED, add_endpoints
from emblema.serve.faults import ServeError, answer_error
from emblema.serve.guard import App, Guard, Message, Send, refuse
from emblema.serve.host import key_of
from emblema.serve.keys import LOCAL, Tenant, cache_salt
from emblema.serve.parts import CacheBreakpoint, CacheOptions
from emblema.served.request_options import read_options

CHAT = "/v1/chat/completions"
READING_SECONDS = 60.0
"""Time to read all media of a request."""
Breakpoints = tuple[tuple[list[Any], int, int], ...]
"""Lists of parts, which of them is to be kept, and for how many seconds."""
OFFERED = frozenset({"/v1/models", *(endpoint.path.partition("/{")[0] for endpoint in SHARED)})
"""Paths that tenants are offered beside those of forms. An engine's others know no salt, or are its operator's."""


def mount(app: FastAPI, host: EngineHost, origins: Iterable[str] = ()) -> None:
    """Add files, caches and keys to an engine's application, which has not started yet.

    Args:
        app: the application.
        host: of the service.
        origins: whose pages may use the server, beside its own.
    """
    app.state.host = lambda: host
    add_endpoints(app, SHARED)
    app.add_exception_handler(EmblemaError, answer_error)
    app.add_middleware(Resolving, host=host, application=app)
    app.add_middleware(Guard, settings=host.settings, origins=frozenset(origins) - {"*"})


class Resolving:
    """What stands before an engine's own routes.

    Args:
        app: what is within.
        host: of the service.
        application: that the routes belong to.
    """

    def __init__(self, app: App, host: EngineHost, application: Any) -> None:
        self._app, self._host, self._application = app, host, application
        self._api = host.api
        host.warmer.bind(self._ask)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer: Callable[[], Awaitable[None]] = partial(self._app, scope, receive, send)
        try:
            if not _begins(path, self._api.open):
                known: Tenant | None = scope.get("state", {}).get("tenant")
                tenant = known or await self._host.tenant_of(key_of(headers))
                if tenant is not LOCAL and (scope["type"] != "http" or not self._is_offered(path)):
                    raise ServeError(404, f"{path[:80]} is not offered where requests need a key", "not_offered")
                if path in self._api.forms and scope["method"] == "POST":
                    resolved = await self._resolve(await _read(receive), self._api.forms[path], tenant)
                    send = await self._keep(resolved, tenant, send)
                    answer = partial(self._app, scope, with_body(scope, receive, resolved.written), send)
        except (EmblemaError, HTTPException) as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await refuse(error, scope, send)
            return
        await answer()

    def _is_offered(self, path: str) -> bool:
        """Return whether a path is offered to tenants."""
        known = path in self._api.forms and path not in self._api.unsalted
        return known or _begins(path, OFFERED)

    async def _ask(self, tenant: Tenant, body: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's answer to a chat request of the service's own.

        Raises:
            EmblemaError: it is refused.
        """
        resolved = await self._resolve(json.dumps(body).encode(), self._api.forms[CHAT], tenant)
        status, answer = await post(self._app, self._application, CHAT, resolved.written)
        told: dict[str, Any] = json.loads(answer)
        if status != 200:
            raise ServeError(status, str(told.get("error", told).get("message", told)))
        return told

    async def _keep(self, resolved: "ResolvedBody", tenant: Tenant, send: Send) -> Send:
        """Keep the parts that a request wants kept, and return what takes its reply."""
        if not resolved.kept:
            return send
        done = [await self._host.keep_part(tenant, part, seconds) for part, seconds in resolved.kept]
        remarks = tuple(dict.fromkeys(remark for _, remark in done if remark is not None))
        return ReplyNotes(send, sum(written for written, _ in done), remarks, self._api.remark).pass_on

    async def _resolve(self, raw: bytes, form: Form, tenant: Tenant) -> "ResolvedBody":
        """Return the body that the engine gets; what is slow to fetch or decode holds up its own tenant alone."""
        async with self._host.reading.place(tenant.owner):
            try:
                async with asyncio.timeout(READING_SECONDS):
                    return await resolve_body(raw, form, tenant, self._host)
            except TimeoutError as error:
                said = f"the request's media were not read within {READING_SECONDS:g} seconds"
                raise DeadlineError(said) from error


@dataclass(frozen=True, slots=True)
class ResolvedBody:
    """The body that an engine gets.

    Attributes:
        written: it, as JSON.
        kept: the parts of it that are to be kept, each with seconds.
    """

    written: bytes
    kept: tuple[tuple[dict[str, Any], int], ...]


async def resolve_body(raw: bytes, form: Form, tenant: Tenant, host: EngineHost) -> ResolvedBody:
    """Return the body that an engine gets for a tenant's.

    Raises:
        EmblemaError: the body is malformed or too large, chooses a salt, names collections, or has media that cannot be
            read.
    """
    run = host.pools.tables.run
    body, breakpoints = await run(tenant.owner, _read_body, raw, form, tenant, host)
    bounds = host.settings.parts, host.settings.body_bytes
    media = await resolve_media(body, form, partial(host.shown, tenant), *bounds, host.api.media_name)
    written = await run(tenant.owner, _write_body, body, tenant, host.api)
    if len(written) - media > host.settings.text_bytes:
        raise ServeError(400, f"the request has more than {host.settings.text_bytes} bytes beside its media")
    return ResolvedBody(written, tuple((parts[index], seconds) for parts, index, seconds in breakpoints))


def _read_body(raw: bytes, form: Form, tenant: Tenant, host: EngineHost) -> tuple[dict[str, Any], Breakpoints]:
    """Return a body with the parts of caches in their place, and its breakpoints; errors as `resolve_body`."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ServeError(400, f"the body is no JSON that can be read: {error}") from error
    if not isinstance(body, dict):
        raise ServeError(400, "the body is no JSON object")
    api = host.api
    for name in api.chosen:
        if body.get(name) is not None:
            raise ServeError(400, f"{name} is not a client's to choose: it follows from the key", None, name)
    for name in api.operator:
        if tenant is not LOCAL and body.get(name) is not None:
            raise ServeError(400, f"{name} is not taken where requests need a key", None, name)
    if tenant is not LOCAL and body.get("previous_response_id") is not None:
        raise ServeError(400, "replies are not kept: send the conversation", None, "previous_response_id")
    if form != "chat":
        return body, ()
    if body.get("collections"):
        raise ServeError(400, f"collections are not looked up inside {api.engine}", None, "collections")
    _expand_caches(body, tenant, host)
    return body, _take_breakpoints(body)


def _write_body(body: dict[str, Any], tenant: Tenant, api: EngineApi) -> bytes:
    """Return a body with what follows from its key, as JSON."""
    salt = cache_salt(tenant)
    if salt is not None:
        body["cache_salt"] = salt
    strategy = body.pop("strategy", None)
    try:
        give_options(body, api, {} if strategy is None else read_options({"strategy": strategy}))
    except EmblemaError as error:
        raise ServeError(400, str(error), None, "emblema") from error
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise ServeError(400, f"the body cannot be written as JSON again: {error}") from error


def _expand_caches(body: dict[str, Any], tenant: Tenant, host: EngineHost) -> None:
    """Write a cache's parts in its place.

    Raises:
        ServeError: there is no such cache, or a part names none.
    """
    for parts in lists_of_parts(body, "chat"):
        given, parts[:] = [*parts], []
        for part in given:
            if not isinstance(part, dict) or part.get("type") != "cache":
                parts.append(part)
                continue
            named = part.get("cache")
            id = named.get("cache_id") if isinstance(named, dict) else None
            if not isinstance(id, str) or len(id) > 200:
                raise ServeError(400, "a part of type cache needs a cache_id", None, "cache_id")
            parts += cache_content(host.caches.entry(tenant, id))


def _take_breakpoints(body: dict[str, Any]) -> Breakpoints:
    """Take the breakpoints off the parts with media; return the places of these, and how long each is to be kept.

    Raises:
        ServeError: a breakpoint is malformed.
    """
    found: list[tuple[list[Any], int, int]] = []
    try:
        given = body.pop("prompt_cache_options", None)
        options = None if given is None else CacheOptions.model_validate(given)
        for parts in lists_of_parts(body, "chat"):
            for index, part in enumerate(parts):
                wanted = part.pop("prompt_cache_breakpoint", None) if isinstance(part, dict) else None
                if wanted is not None and part.get("type") != "text":
                    seconds = CacheBreakpoint.model_validate(wanted).seconds(options)
                    found.append((parts, index, seconds))
    except ValidationError as error:
        raise ServeError(400, f"a breakpoint is not right: {error.errors()[0]['msg']}") from error
    return tuple(found)


def _begins(path: str, paths: Iterable[str]) -> bool:
    return any(path == known or path.startswith(f"{known}/") for known in paths)


async def _read(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def with_body(scope: Message, receive: Any, body: bytes) -> Any:
    """Return a `receive` that gives another body first, and then what the client sends: that it has gone."""
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")
    ]
    # In place: what is around tells by the scope which route was taken.
    scope["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
    return receive_of(body, receive)


async def post(app: App, application: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Return the status and body of the answer to a request. Cancelling the call is as a client that leaves.

    Args:
        app: what answers.
        application: that its routes belong to.
        path: of the route.
        body: JSON.
    """
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": None, "server": None,
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "app": application, "state": {},
    }  # fmt: skip
    status, parts = 0, []

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive_of(body), send)
    return status, b"".join(parts)

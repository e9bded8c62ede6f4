"""Requests as vLLM's own routes get them: what names a file is the file, and a key is a salt.

A middleware within vLLM's own, so that its checks come first. A body is read once it is known whose it is.
"""

import asyncio
import json
import time
from collections.abc import Iterable
from typing import Any

from starlette.exceptions import HTTPException

from emblema.errors import EmblemaError
from emblema.serve.cache_routes import cache_content
from emblema.serve.faults import ServeError
from emblema.serve.guard import App, Message, refuse
from emblema.serve.host import key_of
from emblema.serve.keys import LOCAL, Tenant, cache_salt
from emblema.vllm.body_media import FORMS, Form, resolve_media
from emblema.vllm.host import READING_SECONDS, VllmHost
from emblema.vllm.inner import post

CHAT = "/v1/chat/completions"
OPEN = ("/health", "/ping", "/version", "/load", "/metrics", "/openapi.json", "/docs", "/redoc")
"""Paths that need no key."""
OFFERED = ("/v1/models", "/v1/files", "/v1/caches")
"""Paths that tenants are offered beside those of `FORMS`. vLLM's others know no salt, or are its operator's."""


class Resolving:
    """What stands before vLLM's own routes.

    Args:
        app: what is within.
        host: of the service.
        application: that the routes belong to.
    """

    def __init__(self, app: App, host: VllmHost, application: Any) -> None:
        self._app, self._host, self._application = app, host, application
        host.warmer.bind(self._ask)

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if not _begins(path, OPEN):
                tenant = self._host.tenant_of(key_of(headers))
                if tenant is not LOCAL and (scope["type"] != "http" or not (path in FORMS or _begins(path, OFFERED))):
                    raise ServeError(404, f"{path[:80]} is not offered where requests need a key", "not_offered")
                if path in FORMS and scope["method"] == "POST":
                    raw = await _read(receive)
                    receive = _with_body(scope, receive, await self._resolve(raw, FORMS[path], tenant))
        except (EmblemaError, HTTPException) as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await refuse(error, send)
            return
        await self._app(scope, receive, send)

    async def _ask(self, tenant: Tenant, body: dict[str, Any]) -> dict[str, Any]:
        """Return vLLM's answer to a chat request of the service's own.

        Raises:
            EmblemaError: it is refused.
        """
        resolved = await self._resolve(json.dumps(body).encode(), FORMS[CHAT], tenant)
        status, answer = await post(self._app, self._application, CHAT, resolved)
        told: dict[str, Any] = json.loads(answer)
        if status != 200:
            raise ServeError(status, str(told.get("error", told).get("message", told)))
        return told

    async def _resolve(self, raw: bytes, form: Form, tenant: Tenant) -> bytes:
        """Return the body that vLLM gets; what is slow to fetch or decode holds up its own tenant alone."""
        async with self._host.turns_of(tenant):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._host.readers, resolve_body, raw, form, tenant, self._host)


def resolve_body(raw: bytes, form: Form, tenant: Tenant, host: VllmHost) -> bytes:
    """Return the body that vLLM gets for a tenant's.

    Raises:
        EmblemaError: the body is malformed or too large, chooses a salt, or has media that cannot be read.
    """
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ServeError(400, f"the body is no JSON that can be read: {error}") from error
    if not isinstance(body, dict):
        raise ServeError(400, "the body is no JSON object")
    for name in ("cache_salt", "salt"):
        if body.get(name) is not None:
            raise ServeError(400, f"{name} is not a client's to choose: it follows from the key", None, name)
    if tenant is not LOCAL and body.get("previous_response_id") is not None:
        raise ServeError(400, "replies are not kept: send the conversation", None, "previous_response_id")
    until = time.monotonic() + READING_SECONDS
    bounds = host.settings.parts, host.settings.body_bytes
    if form == "chat":
        _expand_caches(body, tenant, host)
    media = resolve_media(body, form, lambda part: host.read(tenant, part, until), *bounds)
    salt = cache_salt(tenant)
    if salt is not None:
        body["cache_salt"] = salt
    _name_strategy(body)
    try:
        written = json.dumps(body, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise ServeError(400, f"the body cannot be written as JSON again: {error}") from error
    if len(written) - media > host.settings.text_bytes:
        raise ServeError(400, f"the request has more than {host.settings.text_bytes} bytes beside its media")
    return written


def _expand_caches(body: dict[str, Any], tenant: Tenant, host: VllmHost) -> None:
    """Write a cache's parts in its place.

    Raises:
        ServeError: there is no such cache, or a part names none.
    """
    turns = body.get("messages")
    for turn in turns if isinstance(turns, list) else ():
        content = turn.get("content") if isinstance(turn, dict) else None
        if not isinstance(content, list):
            continue
        parts: list[Any] = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "cache":
                parts.append(part)
                continue
            named = part.get("cache")
            id = named.get("cache_id") if isinstance(named, dict) else None
            if not isinstance(id, str) or len(id) > 200:
                raise ServeError(400, "a part of type cache needs a cache_id", None, "cache_id")
            parts += cache_content(host.caches.entry(tenant, id))
        turn["content"] = parts


def _name_strategy(body: dict[str, Any]) -> None:
    """Write the field `strategy`, as the embedded engine takes it, where the plugin looks for it."""
    strategy, parameters = body.pop("strategy", None), body.get("kv_transfer_params")
    if strategy is None or not isinstance(parameters, dict | None):
        return
    options = (parameters or {}).get("emblema")
    if isinstance(options, dict | None):
        body["kv_transfer_params"] = {**(parameters or {}), "emblema": {"strategy": strategy, **(options or {})}}


def _begins(path: str, paths: Iterable[str]) -> bool:
    return any(path == known or path.startswith(f"{known}/") for known in paths)


async def _read(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body"):
            return b"".join(parts)


def _with_body(scope: Message, receive: Any, body: bytes) -> Any:
    """Return a `receive` that gives another body first, and then what the client sends: that it has gone."""
    headers = [
        (name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")
    ]
    left = [body]

    async def receive_body() -> Message:
        return {"type": "http.request", "body": left.pop()} if left else await receive()

    # In place: what is around tells by the scope which route was taken.
    scope["headers"] = [*headers, (b"content-length", str(len(body)).encode())]
    return receive_body

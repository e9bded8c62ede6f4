"""Requests as vLLM's own routes get them: what names a file is the file, and a key is a salt.

A middleware within vLLM's own, so that its checks come first. A body is read once it is known whose it is.
"""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from starlette.exceptions import HTTPException

from emblema.errors import EmblemaError
from emblema.serve.cache_routes import cache_content
from emblema.serve.faults import ServeError
from emblema.serve.guard import App, Message, Send, refuse
from emblema.serve.host import key_of
from emblema.serve.keys import LOCAL, Tenant, cache_salt
from emblema.serve.parts import CacheBreakpoint, CacheOptions, CollectionChoice
from emblema.vllm.body_media import FORMS, Form, resolve_media
from emblema.vllm.host import READING_SECONDS, VllmHost
from emblema.vllm.inner import post
from emblema.vllm.reply_notes import ReplyNotes
from emblema.vllm.retrieving import NOT_CONTINUED, ChatReply, ReplyRetrieval, go_on, relay_of, written
from emblema.vllm.word_search import Searched

CHAT = "/v1/chat/completions"
OPEN = ("/health", "/ping", "/version", "/load", "/metrics", "/openapi.json", "/docs", "/redoc")
"""Paths that need no key."""
OFFERED = ("/v1/models", "/v1/files", "/v1/caches", "/v1/collections")
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
        reply: ChatReply | None = None
        whole = receive
        try:
            if not _begins(path, OPEN):
                tenant = self._host.tenant_of(key_of(headers))
                if tenant is not LOCAL and (scope["type"] != "http" or not (path in FORMS or _begins(path, OFFERED))):
                    raise ServeError(404, f"{path[:80]} is not offered where requests need a key", "not_offered")
                if path in FORMS and scope["method"] == "POST":
                    resolved = await self._resolve(await _read(receive), FORMS[path], tenant)
                    send = await self._keep(resolved, tenant, send)
                    if resolved.search is not None:
                        reply = ChatReply(resolved.body, *resolved.search)
                        whole = _with_body(scope, receive, await asyncio.to_thread(written, reply.body))
                    else:
                        receive = _with_body(scope, receive, resolved.written)
        except (EmblemaError, HTTPException) as error:
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            else:
                await refuse(error, send)
            return
        if reply is None:
            await self._app(scope, receive, send)
        else:
            relay = relay_of(reply, send)
            await self._app(scope, whole, relay.catch)
            await go_on(reply, relay, self._app, scope, receive)

    async def _ask(self, tenant: Tenant, body: dict[str, Any]) -> dict[str, Any]:
        """Return vLLM's answer to a chat request of the service's own.

        Raises:
            EmblemaError: it is refused.
        """
        resolved = await self._resolve(json.dumps(body).encode(), FORMS[CHAT], tenant)
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
        return ReplyNotes(send, sum(written for written, _ in done), remarks).pass_on

    async def _resolve(self, raw: bytes, form: Form, tenant: Tenant) -> "ResolvedBody":
        """Return the body that vLLM gets; what is slow to fetch or decode holds up its own tenant alone."""
        async with self._host.turns_of(tenant):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._host.readers, resolve_body, raw, form, tenant, self._host)


@dataclass(frozen=True, slots=True)
class ResolvedBody:
    """The body that vLLM gets.

    Attributes:
        body, written: it, and as JSON.
        kept: the parts of it that are to be kept, each with seconds.
        search: how its model asks for what is in collections, and where it is looked for.
    """

    body: dict[str, Any]
    written: bytes
    kept: tuple[tuple[dict[str, Any], int], ...]
    search: tuple[ReplyRetrieval, Searched] | None


def resolve_body(raw: bytes, form: Form, tenant: Tenant, host: VllmHost) -> ResolvedBody:
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
    breakpoints: tuple[tuple[list[Any], int, int], ...] = ()
    search = None
    if form == "chat":
        _expand_caches(body, tenant, host)
        breakpoints = _take_breakpoints(body)
        search = _take_collections(body, host)
    media = resolve_media(body, form, lambda part: host.read(tenant, part, until), *bounds)
    salt = cache_salt(tenant)
    if salt is not None:
        body["cache_salt"] = salt
    _name_strategy(body)
    try:
        raw = json.dumps(body, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise ServeError(400, f"the body cannot be written as JSON again: {error}") from error
    if len(raw) - media > host.settings.text_bytes:
        raise ServeError(400, f"the request has more than {host.settings.text_bytes} bytes beside its media")
    kept = tuple((parts[index], seconds) for parts, index, seconds in breakpoints)
    return ResolvedBody(body, raw, kept, search)


def _expand_caches(body: dict[str, Any], tenant: Tenant, host: VllmHost) -> None:
    """Write a cache's parts in its place.

    Raises:
        ServeError: there is no such cache, or a part names none.
    """
    for turn in _turns_of_parts(body):
        parts: list[Any] = []
        for part in turn["content"]:
            if not isinstance(part, dict) or part.get("type") != "cache":
                parts.append(part)
                continue
            named = part.get("cache")
            id = named.get("cache_id") if isinstance(named, dict) else None
            if not isinstance(id, str) or len(id) > 200:
                raise ServeError(400, "a part of type cache needs a cache_id", None, "cache_id")
            parts += cache_content(host.caches.entry(tenant, id))
        turn["content"] = parts


def _take_breakpoints(body: dict[str, Any]) -> tuple[tuple[list[Any], int, int], ...]:
    """Take the breakpoints off the parts with media; return the places of these, and how long each is to be kept.

    Raises:
        ServeError: a breakpoint is malformed.
    """
    found: list[tuple[list[Any], int, int]] = []
    try:
        given = body.pop("prompt_cache_options", None)
        options = None if given is None else CacheOptions.model_validate(given)
        for turn in _turns_of_parts(body):
            for index, part in enumerate(turn["content"]):
                wanted = part.pop("prompt_cache_breakpoint", None) if isinstance(part, dict) else None
                if wanted is not None and part.get("type") != "text":
                    seconds = CacheBreakpoint.model_validate(wanted).seconds(options)
                    found.append((turn["content"], index, seconds))
    except ValidationError as error:
        raise ServeError(400, f"a breakpoint is not right: {error.errors()[0]['msg']}") from error
    return tuple(found)


def _take_collections(body: dict[str, Any], host: VllmHost) -> tuple[ReplyRetrieval, Searched] | None:
    """Take the choice of collections off a request; return how its model asks, and where that is looked for.

    Raises:
        ServeError: the choice is malformed, there is no such collection, or the reply could not be continued.
    """
    given = {name: body.pop(name) for name in ("collections", "retrieval") if name in body}
    try:
        choice = CollectionChoice.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ServeError(400, f"{place}: {problem['msg']}", None, place) from error
    if not choice.collections:
        return None
    refused = [name for name in ("logprobs", "top_logprobs", *NOT_CONTINUED) if body.get(name)]
    if refused or body.get("n") not in (None, 1):
        name = (*refused, "n")[0]
        raise ServeError(400, f"{name} is not taken with collections: a reply goes on in another request", None, name)
    if not isinstance(body.get("messages"), list):
        raise ServeError(400, "messages are a list", None, "messages")
    rules = choice.rules(host.settings)
    return ReplyRetrieval(**rules, after=host.settings.ask_after or None), host.collections.search(choice.collections)


def _turns_of_parts(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the turns of a chat request whose content is a list of parts."""
    turns = body.get("messages")
    for turn in turns if isinstance(turns, list) else ():
        if isinstance(turn, dict) and isinstance(turn.get("content"), list):
            yield turn


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

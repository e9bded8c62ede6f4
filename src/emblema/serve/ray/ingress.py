"""The ingress: reads requests, says to the router what they show, and passes them to a replica."""

import asyncio
import logging
from collections.abc import AsyncIterator, MutableMapping
from functools import partial
from typing import Any, Protocol

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers
from starlette.requests import Request

from emblema.errors import EmblemaError
from emblema.serve import faults
from emblema.serve.body_reading import receive_of
from emblema.serve.caches import CacheStore
from emblema.serve.faults import ServeError, response_to
from emblema.serve.guard import Guard
from emblema.serve.host import KeyedServer
from emblema.serve.keys import KeyRing, Tenant
from emblema.serve.ray.placement import RoutedRequest
from emblema.serve.ray.replica import ForwardedRequest, ResponseStart
from emblema.serve.ray.request_media import routed_body, routed_upload
from emblema.serve.settings import ServeSettings

_LOG = logging.getLogger("emblema.serve.ray")
TRIES = 3
"""Replicas that a request is given to, one after another, where they end under it."""
_BROKEN_OFF = (
    b'data: {"error": {"message": "the replica ended; ask again", "type": "server_error"}}\n\ndata: [DONE]\n\n'
)
LARGEST_HELD = 64 * 2**20
"""Bytes of an answer of known length that are held until it is whole, so that it can be asked for again."""


class ReplicaGoneError(EmblemaError):
    """A replica ended before it had answered."""


class ReplicaPool(Protocol):
    """All replicas, behind a router."""

    def answer(self, request: ForwardedRequest, routed: RoutedRequest) -> AsyncIterator[ResponseStart | bytes]:
        """Yield a replica's answer.

        Raises:
            ReplicaGoneError: the replica ended, perhaps in the middle of it.
        """


class Ingress(KeyedServer):
    """An ASGI application in front of replicas. It holds no model and keeps no state.

    Whose a request is, it finds out before it reads a body; the replicas do so again.

    A request whose replica ends is given to another, as long as nothing of its answer was passed on: chats, uploads,
    caches and deletions may all be carried out twice. A streamed answer that breaks off ends with an error event.
    """

    def __init__(self, settings: ServeSettings, replicas: ReplicaPool) -> None:
        # Where this machine has none of the keys, the replicas alone ask for them.
        super().__init__(settings, KeyRing(settings.folder), CollectorRegistry(), open=True)
        self._replicas = replicas
        self._caches = CacheStore(settings.folder, settings.caches, settings.cache_bytes, _leave_pins)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        body = await request.body()
        routed = await self._routed(scope, body)
        headers = tuple((bytes(name), bytes(value)) for name, value in scope["headers"])
        client = scope.get("client")
        forwarded = ForwardedRequest(
            scope["method"],
            scope["path"],
            scope["query_string"],
            headers,
            body,
            None if client is None else tuple(client),
        )
        for attempt in range(1, TRIES + 1):
            answer = _PassedAnswer(send)
            try:
                await self._answer(forwarded, routed, answer)
                return
            except ReplicaGoneError as error:
                _LOG.warning("a replica ended under a request (try %d): %s", attempt, error)
                if answer.begun:
                    await answer.body(_BROKEN_OFF, more=False)
                    return
            except TimeoutError:
                late = ServeError(504, "no replica has answered in time", "deadline")
                await response_to(late, scope)(scope, receive, send)
                return
        gone = ServeError(503, f"{TRIES} replicas ended under this request", "replica_gone")
        await response_to(gone, scope)(scope, receive, send)

    async def _answer(self, request: ForwardedRequest, routed: RoutedRequest, answer: "_PassedAnswer") -> None:
        """Pass one replica's answer on; one of known length when it is whole."""
        pieces = self._replicas.answer(request, routed)
        # A model that is loaded again takes its time: longer than a reply may take, and no request hangs.
        async with asyncio.timeout(self.settings.deadline + self.settings.grace):
            start = await anext(pieces)
            if not isinstance(start, ResponseStart):
                raise ReplicaGoneError("the answer has no beginning")
            length = int(Headers(raw=list(start.headers)).get("content-length", "-1"))
            held = [piece async for piece in pieces if isinstance(piece, bytes)] if 0 <= length <= LARGEST_HELD else []
        if held and sum(map(len, held)) != length:
            raise ReplicaGoneError("the answer was cut short")
        await answer.start(start)
        if 0 <= length <= LARGEST_HELD:
            await answer.body(b"".join(held), more=False)
            return
        async for piece in pieces:
            if isinstance(piece, bytes):
                await answer.body(piece, more=True)
        await answer.body(b"", more=False)

    async def _routed(self, scope: MutableMapping[str, Any], body: bytes) -> RoutedRequest:
        """Return what a request shows. A request that cannot be read goes anywhere."""
        tenant = scope["state"].get("tenant")
        if tenant is None:
            return RoutedRequest()
        try:
            if scope["path"] == "/v1/files" and scope["method"] == "POST":
                return await routed_upload(tenant.owner, Request(scope, receive_of(body)))
            files = partial(self._files_of, tenant)
            return await self.pools.tables.run(tenant.owner, routed_body, tenant.owner, scope["path"], body, files)
        except Exception as error:
            _LOG.warning("a request is routed by load alone: %s", error)
            return RoutedRequest()

    def _files_of(self, tenant: Tenant, cache: str) -> tuple[str, ...]:
        return self._caches.entry(tenant, cache).files


class _PassedAnswer:
    """What of an answer was passed on to the client."""

    def __init__(self, send: Any) -> None:
        self._send, self.begun = send, False

    async def start(self, start: ResponseStart) -> None:
        self.begun = True
        headers = [pair for pair in start.headers if pair[0].lower() != b"connection"]
        await self._send({"type": "http.response.start", "status": start.status, "headers": headers})

    async def body(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


def make_ingress(settings: ServeSettings, replicas: ReplicaPool) -> FastAPI:
    """Return the ingress behind the guard that asks for keys, bounds bodies and refuses pages of other origins."""
    app = FastAPI(openapi_url=None)
    ingress = Ingress(settings, replicas)
    app.state.host = lambda: ingress
    faults.install(app)
    app.mount("/", ingress)
    app.add_middleware(Guard, settings=settings)
    return app


def _leave_pins(owner: str, tenant: str, pieces: Any, pinned: bool) -> None:
    """Leave pins to replicas."""

"""An engine that answers over HTTP, as the service in front of it asks: what it is, and its replies, within bounds."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpcore2

from emblema.errors import EmblemaError
from emblema.serve.faults import ServeError
from emblema.serve.front.engine_api import EngineApi, api_of

_LOG = logging.getLogger("emblema.serve")
LARGEST_REPLY = 64 * 2**20
"""Bytes of a reply that is held until it is whole; others are passed on as they come."""
LOOK_SECONDS = 10.0
"""Seconds that an engine may take to say how it is."""
CONNECT_SECONDS = 5.0
RETRY_SECONDS = 2.0
"""After which it is worth asking again an engine that did not answer."""
_IDLE_SECONDS = 2.0
"""Less than servers wait for a next request, so that none is sent to one that stops waiting."""
_ABSENT = (401, 403, 404, 405)
"""What hosted engines answer where there is no such route."""
Headers = Sequence[tuple[bytes, bytes]]


class EngineClient:
    """An engine behind the service. Redirects are not followed; headers of a reply have 100 kB at most.

    Args:
        address: http or https, with `/v1` at its end or without.
        key: that the engine asks for.
        socket: of the engine, in place of the address's host and port.
        api: what it is; None where that is to be found out.

    Attributes:
        api: what it is, once it has answered.
        model: what it calls its model, the first of several; None until it has answered.

    Raises:
        EmblemaError: the address is none.
    """

    def __init__(
        self, address: str, key: str | None = None, socket: Path | None = None, api: EngineApi | None = None
    ) -> None:
        self._origin, self._host, self._base = _read_address(address)
        self._key, self._socket = key, socket
        self.api, self.model = api, None
        self._pool: Any = None

    api: EngineApi | None
    model: str | None

    @property
    def known(self) -> EngineApi:
        """What the engine is; `ServeError` before it has answered."""
        if self.api is None:
            raise ServeError(503, "the engine has not answered yet", "loading", retry_after=RETRY_SECONDS)
        return self.api

    async def send(
        self, method: str, path: str, headers: Headers = (), body: bytes = b"", query: bytes = b"", seconds: float = 600
    ) -> httpcore2.Response:
        """Return a reply once its headers are there. Who calls reads it by `pieces`, and closes it.

        Args:
            method: of HTTP.
            path: as clients ask for it.
            headers: beside those for the engine's own key and the body's length.
            body: whole.
            query: of the address.
            seconds: in which some of the reply has to come.

        Raises:
            ServeError: the engine is not there, breaks off, or wants to have another asked.
        """
        if self._pool is None:
            self._pool = httpcore2.AsyncConnectionPool(
                max_connections=None,
                keepalive_expiry=_IDLE_SECONDS,
                uds=str(self._socket) if self._socket else None,
            )
        target = quote(f"{self._base}{path}", safe="/:@!$&'()*+,;=~").encode() + (b"?" + query if query else b"")
        own = [(b"host", self._host), (b"accept-encoding", b"identity"), (b"content-length", b"%d" % len(body))]
        if self._key is not None:
            own.append((b"authorization", f"Bearer {self._key}".encode()))
        scheme, host, port = self._origin
        request = httpcore2.Request(
            method, httpcore2.URL(scheme=scheme, host=host, port=port, target=target), headers=[*own, *headers],
            content=body,
            extensions={"timeout": {"connect": CONNECT_SECONDS, "read": seconds, "write": seconds, "pool": seconds}},
        )  # fmt: skip
        with telling():
            reply: httpcore2.Response = await self._pool.handle_async_request(request)
        if 300 <= reply.status < 400:
            await reply.aclose()
            raise ServeError(502, f"the engine answers {path[:80]} with a redirect, which is not followed")
        return reply

    async def ask(self, method: str, path: str, body: bytes = b"", seconds: float = LOOK_SECONDS) -> tuple[int, bytes]:
        """Return the status and the whole body of a reply; errors as `send`, and where it is too late or too large."""
        headers = [(b"content-type", b"application/json")] if body else []
        try:
            async with asyncio.timeout(seconds):
                reply = await self.send(method, path, headers, body, seconds=seconds)
                try:
                    return reply.status, await whole(pieces(reply))
                finally:
                    await reply.aclose()
        except TimeoutError as error:
            raise ServeError(504, f"the engine did not answer in {seconds:g} seconds", "engine_late") from error

    async def look(self) -> None:
        """Find out whether the engine is ready, and the first time what it is; `ServeError` where it is not."""
        status, _ = await self.ask("GET", "/health")
        if status != 200 and status not in _ABSENT:
            said = f"the engine is not ready: its /health says {status}"
            raise ServeError(503, said, "loading", retry_after=RETRY_SECONDS)
        if status == 200 and self.model is not None:
            return
        status, listed = await self.ask("GET", "/v1/models")
        try:
            first = json.loads(listed)["data"][0]
            model, owner = str(first["id"]), str(first.get("owned_by"))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            said = f"the engine's /v1/models says {status} and no model: is its address right, and its key?"
            raise ServeError(503, said, "failed") from error
        self.api = self.api or api_of(owner)
        self.model = model

    async def learn(self) -> EngineApi:
        """Return what the engine is, and know its model from now on; `ServeError` where it is not ready."""
        if self.model is None:
            await self.look()
        return self.known

    async def close(self) -> None:
        """Close all connections."""
        if self._pool is not None:
            await self._pool.aclose()


@contextmanager
def telling() -> Iterator[None]:
    """Say of an engine that fails that it does, and to the log how.

    Raises:
        ServeError: it is not there, or breaks off.
    """
    try:
        yield
    except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
        raise ServeError(503, "the engine does not answer", "engine_down", retry_after=RETRY_SECONDS) from error
    except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
        _LOG.warning("the engine broke off: %s: %s", type(error).__name__, error)
        raise ServeError(502, "the engine broke off its reply: its log may say why", "engine_failed") from error


async def pieces(reply: httpcore2.Response) -> AsyncIterator[bytes]:
    """Yield a reply's body as it comes; `ServeError` where it breaks off."""
    with telling():
        async for piece in reply.aiter_stream():
            yield piece


async def whole(parts: AsyncIterator[bytes]) -> bytes:
    """Return a body that is held until it is whole; `ServeError` for more bytes than `LARGEST_REPLY`."""
    held, size = [], 0
    async for part in parts:
        held.append(part)
        size += len(part)
        if size > LARGEST_REPLY:
            raise ServeError(502, f"the engine's reply has more than {LARGEST_REPLY} bytes", "engine_failed")
    return b"".join(held)


def _read_address(address: str) -> tuple[tuple[bytes, bytes, int], bytes, str]:
    """Return an address's scheme, host and port; its host as a header has it; and its path, without `/v1`."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host or "@" in parts.netloc or parts.query or parts.fragment:
        raise EmblemaError(f"{address[:200]} is no address of an engine: give one like http://127.0.0.1:8001")
    port = port or {"http": 80, "https": 443}[parts.scheme]
    base = parts.path.rstrip("/").removesuffix("/v1")
    return (parts.scheme.encode(), host.encode(), port), parts.netloc.encode(), base

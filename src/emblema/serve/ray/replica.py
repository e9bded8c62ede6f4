"""One replica: the embedded server's application, called without a socket."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass
from typing import Any

from emblema.errors import EmblemaError
from emblema.serve.app import make_app
from emblema.serve.body_reading import receive_of
from emblema.serve.ray.identity import ReplicaIdentity, in_folder, in_redis, join_cluster
from emblema.serve.running import collect_beside_program
from emblema.serve.service import Service
from emblema.serve.settings import ServeSettings
from emblema.work_pool import run_alone

REPLICA_HEADER = b"x-emblema-replica"
"""Header of an answer that says which replica gave it."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """An HTTP request as the ingress has read it."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    client: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ResponseStart:
    """An answer's status and headers; its body follows."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]


class ServerReplica:
    """The server's application with its model.

    Args:
        settings: of the server.
        name: of this replica, which its answers have in a header.
    """

    def __init__(self, settings: ServeSettings, name: str) -> None:
        self._settings, self._name = settings, name
        self._app = make_app(settings)
        self._lifespan = self._app.router.lifespan_context(self._app)

    async def open(self, cluster: str) -> None:
        """Load the model and join a cluster.

        Raises:
            EmblemaError: the model cannot be loaded, or the cluster is another model's or version's.
        """
        await self._lifespan.__aenter__()
        try:
            service: Service = await self._app.state.loading
            await run_alone("join", self._join, service, cluster)
        except EmblemaError:
            await self.close()
            raise
        collect_beside_program()

    def _join(self, service: Service, cluster: str) -> None:
        settings = self._settings
        fingerprint = service.engine.engine.adapter.fingerprint
        own = ReplicaIdentity(fingerprint, settings.name, tenants=service.keys.fingerprint)
        places = [in_folder(settings.folder), *([] if settings.redis is None else [in_redis(settings.redis)])]
        join_cluster(places, cluster, own)

    async def answer(self, request: ForwardedRequest) -> AsyncIterator[ResponseStart | bytes]:
        """Yield the start of the answer and then its body, in pieces."""
        pieces: asyncio.Queue[ResponseStart | bytes | None] = asyncio.Queue()
        left = asyncio.Event()

        async def leave() -> MutableMapping[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = ((bytes(name), bytes(value)) for name, value in message.get("headers", ()))
                start = ResponseStart(message["status"], (*headers, (REPLICA_HEADER, self._name.encode())))
                pieces.put_nowait(start)
            elif message["type"] == "http.response.body" and message.get("body"):
                pieces.put_nowait(bytes(message["body"]))

        task = asyncio.create_task(self._app(_scope(request), receive_of(request.body, leave), send))
        task.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            await task
        finally:
            left.set()
            if not task.done():
                task.cancel()

    @property
    def media(self) -> int | None:
        """Media whose rows are in memory; None while there is room for more."""
        service: Service = self._app.state.loading.result()
        statistics = service.engine.store.parent.statistics
        return statistics.chunks if statistics.evictions else None

    async def close(self) -> None:
        """End the replies under way, and close the engine and its store."""
        await self._lifespan.__aexit__(None, None, None)


def _scope(request: ForwardedRequest) -> dict[str, Any]:
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "scheme": "http",
        "method": request.method, "path": request.path, "raw_path": request.path.encode(), "root_path": "",
        "query_string": request.query, "headers": list(request.headers), "client": request.client, "server": None,
        "state": {},
    }  # fmt: skip

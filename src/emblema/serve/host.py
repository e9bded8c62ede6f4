"""What the routes of every engine's server share: its settings, its tenants, their files, and how these are listed."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Query, Request
from prometheus_client import CollectorRegistry, Counter

from emblema.serve.caches import CacheMaker, CachePart, CacheStore
from emblema.serve.files import FileStore
from emblema.serve.held_bytes import HeldBytes, Holding
from emblema.serve.keys import Access, KeyRing, Tenant, store_salts
from emblema.serve.media_reading import MediaReader
from emblema.serve.reply_types import ListedPage
from emblema.serve.settings import ServeSettings
from emblema.serve.upkeep import Upkeep, retried
from emblema.serve.work_pools import NOBODY, PoolMetrics, WorkPools
from emblema.store.store import Store, TenantStore
from emblema.store.warm_parts import WarmParts

_SWEEP_SECONDS = 60.0
"""Seconds between two looks for what has expired."""


class KeyedServer:
    """A server as the guard sees it.

    Args:
        settings: of the server.
        keys: of its tenants.
        registry: of its metrics.
        open, own: see `Access`.

    Attributes:
        requests: counts requests by path and status.
        pools: threads for all that is not the model's.
        held: what requests hold of memory.
        upkeep: what is done again and again.
    """

    def __init__(
        self,
        settings: ServeSettings,
        keys: KeyRing,
        registry: CollectorRegistry,
        open: bool,
        own: Collection[str] = (),
    ) -> None:
        self.settings, self.keys = settings, keys
        self.requests = Counter("emblema_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.pools, self.held, self.upkeep = WorkPools(), HeldBytes(settings.byte_bounds), Upkeep()
        self.access = Access(keys, open, self.pools.keys, own)
        registry.register(PoolMetrics(self.pools, self.held, self.upkeep))

    async def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header; `ServeError` where a key is needed and there is none that fits."""
        return await self.access.tenant_of(authorization)

    @property
    def failing(self) -> dict[str, str]:
        """What is done beside requests that fails now, as `failing`; empty without."""
        said = "; ".join(f"{name}: {why}" for name, why in self.upkeep.failing.items())
        return {"failing": said} if said else {}


class Host(KeyedServer, ABC):
    """A server of one engine, as the routes of files and caches see it; each engine has one.

    Args:
        settings, keys, registry, open, own: see `KeyedServer`.
        store: of its tenants' pieces.

    Attributes:
        reader: fetches and decodes media.
        files, caches: of all tenants.
        cache_maker: makes and extends caches.
    """

    def __init__(
        self,
        settings: ServeSettings,
        keys: KeyRing,
        registry: CollectorRegistry,
        store: Store,
        open: bool,
        own: Collection[str] = (),
    ) -> None:
        super().__init__(settings, keys, registry, open, own)
        self._store = store
        self.reader = MediaReader(settings.media_limits, self.pools, self.held)
        self.files = FileStore(settings.folder, settings.quota_bytes, forget=self._forget)
        self.caches = CacheStore(settings.folder, settings.caches, settings.cache_bytes, self._set_pins)
        self.cache_maker = CacheMaker(self.files, self.caches, self.reader, self.warm, self.upkeep, settings.deadline)

    @property
    def model(self) -> str:
        """What clients call the model."""
        return self.settings.name

    @abstractmethod
    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Have the engine make parts ready in their order, and return what is durable of them."""

    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload read behind its answer, in its tenant's turn; nothing of it is in memory before."""

        async def read() -> None:
            async with self.pools.uploads.place(tenant.owner):
                await self.read_upload(tenant, id)

        self.upkeep.begin("uploads", retried(read))

    @abstractmethod
    async def read_upload(self, tenant: Tenant, id: str) -> None:
        """Read an upload as far as the engine does before a request shows it; `BusyError` where it is to wait."""

    async def delete_file(self, tenant: Tenant, id: str) -> None:
        """Delete a file and what was made of it; `ServeError` where there is none."""
        run, deleted = self.pools.tables.run, False
        while not deleted:
            entry = await run(tenant.owner, self.files.entry, tenant, id)
            await run(tenant.owner, self.delete_chunks, tenant.owner, tenant.name, entry.chunks)
            deleted = await run(tenant.owner, self.files.delete, tenant, entry)

    async def sweep(self) -> None:
        """Go on with the caches that are not made yet, and delete what has expired, once a minute, until the end."""
        for owner, name, id in await self.pools.upkeep.run(NOBODY, self.caches.unmade):
            for tenant in self.keys.tenants_named(name, owner):
                self.cache_maker.make_later(tenant, id)

        async def expire() -> None:
            failures = []
            for work in (self.caches.expire, self.files.expire):
                try:
                    await self.pools.upkeep.run(NOBODY, work)
                except Exception as error:
                    failures.append(error)
            if failures:
                raise failures[0]

        await self.upkeep.repeat("sweep", expire, _SWEEP_SECONDS)

    def delete_chunks(self, owner: str, name: str, chunks: Iterable[str]) -> None:
        """Delete chunks of an owner, by the tenant's name too."""
        for store in self._stores_of(owner, name):
            for chunk in chunks:
                store.delete(chunk)

    def _forget(self, owner: str, name: str, chunks: Sequence[str]) -> None:
        """Delete the chunks of a file that has expired; those that a cache holds stay."""
        self.delete_chunks(owner, name, set(chunks) - self.caches.held(owner))

    def _set_pins(self, owner: str, name: str, pieces: Iterable[str], pinned: bool) -> None:
        for store in self._stores_of(owner, name):
            for piece in pieces:
                store.pin(piece) if pinned else store.unpin(piece)

    def _stores_of(self, owner: str, name: str) -> Iterator[TenantStore]:
        salts = (salt for tenant in self.keys.tenants_named(name, owner) for salt in store_salts(tenant))
        return map(self._store.tenant, salts)


def host_of(request: Request) -> Host:
    """Return the server that an application was made for; `ServeError` while its model is not loaded."""
    host: Host = request.app.state.host()
    return host


async def tenant_of(request: Request) -> Tenant:
    """Return whose a request is; the guard knows it already."""
    known: Tenant | None = getattr(request.state, "tenant", None)
    return known or await host_of(request).tenant_of(key_of(request.headers))


def holding_of(request: Request) -> Holding:
    """Return what a request holds, as long as it is answered."""
    holding: Holding = request.state.holding
    return holding


Hosted = Annotated[Host, Depends(host_of)]
Owner = Annotated[Tenant, Depends(tenant_of)]
Held = Annotated[Holding, Depends(holding_of)]


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the header with a request's key, as clients of OpenAI, Anthropic or Azure send it; names in lower case."""
    named = headers.get("x-api-key") or headers.get("api-key")
    return headers.get("authorization") or (None if named is None else f"Bearer {named}")


MOST = 10_000
Body = TypeVar("Body", bound=Mapping[str, Any])


@dataclass(frozen=True, slots=True)
class ListPage:
    """Which part of a list is asked for.

    Attributes:
        after: id of the entry before the first; of one that is not there the list is empty.
        limit: entries, at most.
        order: `desc` from the newest on, `asc` from the oldest; None leaves it to the list.
    """

    after: str | None = None
    limit: Annotated[int, Query(ge=1)] = MOST
    order: Literal["asc", "desc"] | None = None

    def page(self, bodies: Sequence[Body], usual: Literal["asc", "desc"] = "desc") -> ListedPage[Body]:
        """Return the page of entries that stand in their usual order, which is turned where the other is asked for."""
        listed = bodies if self.order in (None, usual) else bodies[::-1]
        ids = [str(body["id"]) for body in listed]
        start = 0
        if self.after is not None:
            start = ids.index(self.after) + 1 if self.after in ids else len(ids)
        stop = start + min(self.limit, MOST)
        shown = ids[start:stop]
        return {
            "object": "list",
            "data": [*listed[start:stop]],
            "has_more": len(ids) > stop,
            "first_id": shown[0] if shown else None,
            "last_id": shown[-1] if shown else None,
        }


AskedPage = Annotated[ListPage, Depends()]

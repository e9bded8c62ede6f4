"""What the routes of every engine's server share: its settings, its tenants, their files."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter

from emblema.serve.access import Access
from emblema.serve.cache_making import CacheMaker
from emblema.serve.caches import CacheStore
from emblema.serve.files import FileStore
from emblema.serve.held_bytes import HeldBytes, Holding
from emblema.serve.keys import KeyRing, Tenant, store_salts
from emblema.serve.media_reading import MediaReader
from emblema.serve.settings import ServeSettings
from emblema.serve.upkeep import Upkeep
from emblema.serve.work_pools import NOBODY, WorkPools
from emblema.store.store import Store, TenantStore

_SWEEP_SECONDS = 60.0
"""Seconds between two looks for what has expired."""


class Host(ABC):
    """A server of one engine, as the guard and the routes of files and caches see it; each engine has one.

    Args:
        settings: of the server.
        keys: of its tenants.
        store: of their pieces.
        requests: counts requests by path and status.
        open, again: see `Access`.

    Attributes:
        pools: threads for all that is not the model's.
        held: what requests hold of memory.
        upkeep: what is done again and again.
        reader: fetches and decodes media.
        files, caches: of all tenants.
        cache_maker: makes and extends caches.
    """

    cache_maker: CacheMaker

    def __init__(
        self,
        settings: ServeSettings,
        keys: KeyRing,
        store: Store,
        requests: Counter,
        open: bool,
        again: bool = False,
    ) -> None:
        self.settings, self.keys, self.requests, self._store = settings, keys, requests, store
        self.pools, self.held, self.upkeep = WorkPools(), HeldBytes(settings.byte_bounds), Upkeep()
        self.access = Access(keys, open, self.pools.keys, again)
        self.reader = MediaReader(settings.media_limits, self.pools, self.held)
        self.files = FileStore(settings.folder, settings.quota_bytes, forget=self._forget)
        self.caches = CacheStore(settings.folder, settings.caches, settings.cache_bytes, self._set_pins)

    @abstractmethod
    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload read behind its answer, as far as the engine does."""

    async def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header; `ServeError` where a key is needed and there is none that fits."""
        return await self.access.tenant_of(authorization)

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


def request_counter(registry: CollectorRegistry) -> Counter:
    """Return a new counter of requests."""
    return Counter("emblema_requests", "Requests answered.", ["path", "status"], registry=registry)

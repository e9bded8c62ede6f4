"""What the routes of every engine's server share: its settings, its tenants, their files."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

from fastapi import Depends, Request
from prometheus_client import CollectorRegistry, Counter

from emblema.errors import EmblemaError
from emblema.serve.cache_making import CacheMaker
from emblema.serve.caches import CacheStore
from emblema.serve.collection_items import Collections
from emblema.serve.faults import ServeError
from emblema.serve.file_bytes import S3FileBytes
from emblema.serve.files import FileStore, Forget
from emblema.serve.folder_files import FolderFileStore
from emblema.serve.keys import LOCAL, KeyRing, Tenant, store_salts
from emblema.serve.redis_files import RedisFileStore
from emblema.serve.settings import ServeSettings
from emblema.store.store import Store, TenantStore

_LOG = logging.getLogger("emblema.serve")
_SWEEP_SECONDS = 60.0
"""Seconds between two looks for what has expired."""


class Host(ABC):
    """A server of one engine, as the guard and the routes of files and caches see it; each engine has one.

    Args:
        settings: of the server.
        keys: of its tenants.
        store: of their pieces.
        requests: counts requests by path and status.
        open: whether no key is needed as long as there is none.

    Attributes:
        files, caches: of all tenants.
        cache_maker: makes and extends caches.
        collections: what every tenant's model may look up.
    """

    cache_maker: CacheMaker
    collections: Collections

    def __init__(self, settings: ServeSettings, keys: KeyRing, store: Store, requests: Counter, open: bool) -> None:
        self.settings, self.keys, self.requests, self._store, self._open = settings, keys, requests, store, open
        self.files = open_files(settings, self._forget)
        self.caches = CacheStore(settings.folder, settings.caches, settings.cache_bytes, self._set_pins)

    @abstractmethod
    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload read behind its answer, as far as the engine does."""

    def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header; `ServeError` where a key is needed and there is none that fits."""
        kind, _, key = (authorization or "").partition(" ")
        if self._open and len(self.keys) == 0:
            return LOCAL
        tenant = self.keys.tenant(key.strip()) if kind.lower() == "bearer" else None
        if tenant is None:
            raise ServeError(401, "give a key of this server: `Authorization: Bearer emb-…`", "invalid_api_key")
        return tenant

    async def delete_file(self, tenant: Tenant, id: str) -> None:
        """Delete a file and what was made of it; `ServeError` where there is none."""
        deleted = False
        while not deleted:
            entry = await asyncio.to_thread(self.files.entry, tenant, id)
            await asyncio.to_thread(self.delete_chunks, tenant.owner, tenant.name, entry.chunks)
            deleted = await asyncio.to_thread(self.files.delete, tenant, entry)

    async def sweep(self) -> None:
        """Delete what has expired, once a minute, until the server ends."""
        while True:
            try:
                await asyncio.to_thread(self.caches.expire)
                await asyncio.to_thread(self.files.expire)
            except EmblemaError as error:
                _LOG.warning("what has expired could not be deleted, it is tried again: %s", error)
            await asyncio.sleep(_SWEEP_SECONDS)

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


def open_files(settings: ServeSettings, forget: Forget) -> FileStore:
    """Return the files of all tenants, in the server's folder or where several servers share them.

    Raises:
        EmblemaError: they cannot be opened.
    """
    if settings.files_redis is None:
        if settings.files_bucket is not None:
            raise EmblemaError("files_bucket holds bytes alone: give files_redis too, for what is known of files")
        return FolderFileStore(settings.folder, settings.quota_bytes, forget=forget)
    held = None if settings.files_bucket is None else S3FileBytes(settings.files_bucket)
    return RedisFileStore(settings.files_redis, settings.quota_bytes, forget, held)


def host_of(request: Request) -> Host:
    """Return the server that an application was made for; `ServeError` while its model is not loaded."""
    host: Host = request.app.state.host()
    return host


def tenant_of(request: Request) -> Tenant:
    """Return whose a request is."""
    return host_of(request).tenant_of(key_of(request.headers))


Hosted = Annotated[Host, Depends(host_of)]
Owner = Annotated[Tenant, Depends(tenant_of)]


def key_of(headers: Mapping[str, str]) -> str | None:
    """Return the header with a request's key, as OpenAI's or Anthropic's clients send it; names in lower case."""
    named = headers.get("x-api-key")
    return headers.get("authorization") or (None if named is None else f"Bearer {named}")


def request_counter(registry: CollectorRegistry) -> Counter:
    """Return a new counter of requests."""
    return Counter("emblema_requests", "Requests answered.", ["path", "status"], registry=registry)


def check_open(keys: KeyRing, settings: ServeSettings) -> None:
    """Raise `EmblemaError` where others reach the server and there is no key."""
    if not settings.loopback and len(keys) == 0:
        raise EmblemaError(
            f"{settings.host} is reached by others and there is no key: make one with `emblema keys add NAME`, or "
            "serve on 127.0.0.1"
        )

"""What the routes of a server share: one model, its tenants, their files and caches, and what is counted."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.request_queue import SchedulerLimits
from emblema.errors import EmblemaError, MediaError
from emblema.serve.cache_making import CacheMaker, MediaFetcher
from emblema.serve.collection_items import Collections
from emblema.serve.collections import EngineCollections
from emblema.serve.content import ContentReader
from emblema.serve.files import FAILED
from emblema.serve.host import Host, check_open, host_of
from emblema.serve.keys import LOCAL, KeyRing, Tenant
from emblema.serve.metrics import Metrics
from emblema.serve.settings import ServeSettings
from emblema.serve.shared_collections import SharedCollections
from emblema.session.fidelity_logs import FOLDER
from emblema.session.redis_fidelity_logs import RedisFidelityLogs
from emblema.store.deletion_feed import DeletionFeed
from emblema.store.folder_feed import FolderFeed
from emblema.store.remote.redis import RedisTier
from emblema.store.remote.redis_feed import RedisFeed
from emblema.store.settings import StoreSettings
from emblema.store.store import Store

_LOG = logging.getLogger("emblema.serve")
_TENANTS = 1_000
"""Tenants whose engines are kept ready."""


class Service(Host):
    """One model with its tenants; the engine given is that of the tenant without a key."""

    def __init__(self, settings: ServeSettings, engine: AsyncEngine, keys: KeyRing) -> None:
        self.engine, self.metrics = engine, Metrics(engine.engine, engine.scheduler)
        super().__init__(settings, keys, engine.store.parent, self.metrics.requests, settings.loopback)
        self.shared = engine.on(engine.store.parent.shared)
        fetcher, model = MediaFetcher(engine.engine.session.limits), engine.engine.adapter.fingerprint
        self.content = ContentReader(self.files, self.caches, self.engine_of, fetcher, model)
        self.collections: Collections = EngineCollections(self.shared, self.files)
        if settings.files_redis is not None:
            self.collections = SharedCollections(self.collections, self.files, settings.files_redis)
        self.cache_maker = CacheMaker(self.files, self.caches, fetcher, self.content.warm)
        self._engines: OrderedDict[str, AsyncEngine] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, settings: ServeSettings) -> "Service":
        """Load the model; `EmblemaError` where it, the store or a setting is not right, or a key is missing."""
        keys = KeyRing(settings.folder)
        check_open(keys, settings)
        scheduler = SchedulerLimits(waiting=settings.waiting, batch_rows=settings.batch_rows)
        options: dict[str, Any] = {"device": settings.device, "dtype": settings.dtype, "limits": settings.media_limits}
        store = await asyncio.to_thread(open_store, settings)
        engine = await AsyncEngine.load(settings.model, scheduler=scheduler, store=store, **options)
        service = cls(settings, engine, keys)
        service.resume()
        return service

    def resume(self) -> None:
        """Take up what a server that has ended left of its files, and look for what expires from now on."""
        self.files.forget_begun()
        for owner, name, id in self.files.unprocessed():
            for tenant in self.keys.tenants_named(name, owner):
                self.read_later(tenant, id)
        self._begin(self.sweep())
        if isinstance(self.collections, SharedCollections):
            # Twice, so that a version is everywhere within the time of a deletion.
            self._begin(self.collections.keep_following(self.settings.deletion_seconds / 2))

    def engine_of(self, tenant: Tenant) -> AsyncEngine:
        """Return a tenant's engine."""
        if tenant is LOCAL:
            return self.engine
        known = self._engines.pop(tenant.name, None)
        found = known or self.engine.on(self.engine.store.parent.tenant(tenant.salt))
        self._engines[tenant.name] = found
        if len(self._engines) > _TENANTS:
            self._engines.popitem(last=False)
        return found

    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload encoded and prefilled, after what waits already."""
        self._begin(self._prefill(tenant, id))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _prefill(self, tenant: Tenant, id: str) -> None:
        try:
            await self.content.prefill_file(tenant, id)
        except MediaError as error:
            await asyncio.to_thread(self.files.note, tenant, id, FAILED, str(error), None, ())
        except EmblemaError as error:
            _LOG.warning("%s could not be prefilled, it is read when it is asked for: %s", id, error)

    async def close(self) -> None:
        """Let the replies under way end within the grace, and close the engine and its store."""
        for task in self._background:
            task.cancel()
        await self.engine.close(self.settings.grace)
        await asyncio.to_thread(self.engine.store.parent.close)
        self.files.close()
        if isinstance(self.collections, SharedCollections):
            self.collections.close()


def open_store(settings: ServeSettings) -> Path | Store:
    """Return the store with what it shares with other servers; its folder where it shares nothing."""
    alone = settings.redis is None and settings.files_redis is None and not settings.several
    if alone and settings.device_bytes is None:
        return settings.store
    remote = None if settings.redis is None else RedisTier(settings.redis)
    deletions: DeletionFeed | None = None
    # The server of files evicts nothing.
    told = settings.files_redis or settings.redis
    if told is not None:
        deletions = RedisFeed(told)
    elif settings.several:
        deletions = FolderFeed(settings.store / "deletions.sqlite")
    placed = StoreSettings(device=settings.device, deletion_seconds=settings.deletion_seconds)
    memory: int | Literal["auto"] = "auto" if settings.device_bytes is None else int(settings.device_bytes)
    store = Store(settings.store, device_bytes=memory, remote=remote, deletions=deletions, settings=placed)
    if settings.files_redis is not None:
        url = settings.files_redis
        # Whoever asks for the store's measurements from now on gets these.
        store.companion(FOLDER, lambda: RedisFidelityLogs(url))
    return store


Served = Annotated[Service, Depends(host_of)]

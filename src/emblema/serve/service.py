"""What the routes of a server share: one model, its tenants, their files and caches, and what is counted."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import Depends
from prometheus_client import CollectorRegistry

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.request_queue import SchedulerLimits
from emblema.errors import BusyError, EmblemaError, MediaError
from emblema.serve.caches import CachePart
from emblema.serve.content import ContentReader
from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED
from emblema.serve.host import Host, host_of
from emblema.serve.keys import LOCAL, KeyRing, Tenant, check_open
from emblema.serve.metrics import Metrics
from emblema.serve.settings import ServeSettings
from emblema.serve.work_pools import NOBODY
from emblema.session.grammar import GrammarCompiler
from emblema.store.deletion_feed import DeletionFeed
from emblema.store.folder_feed import FolderFeed
from emblema.store.record import RemoteTier
from emblema.store.remote.bucket import BucketTier
from emblema.store.remote.redis import RedisTier
from emblema.store.remote.redis_feed import RedisFeed
from emblema.store.settings import StoreSettings
from emblema.store.store import Store
from emblema.store.warm_parts import WarmParts
from emblema.work_pool import run_alone

_LOG = logging.getLogger("emblema.serve")
_TENANTS = 1_000
"""Tenants whose engines are kept ready."""


class Service(Host):
    """One model with its tenants; the engine given is that of the tenant without a key.

    Attributes:
        created: when the model was loaded, in seconds of Unix time.
        grammars: makes what replies are held to.
    """

    def __init__(self, settings: ServeSettings, engine: AsyncEngine, keys: KeyRing) -> None:
        self.engine, registry = engine, CollectorRegistry()
        self.created = int(time.time())
        self.grammars = GrammarCompiler(engine.engine.tokenizer, engine.engine.end_tokens, settings.name)
        super().__init__(settings, keys, registry, engine.store.parent, settings.loopback)
        self.metrics = Metrics(registry, engine.engine, engine.scheduler)
        self.shared = engine.on(engine.store.parent.shared)
        model = engine.engine.adapter.fingerprint
        self.content = ContentReader(self.files, self.caches, self.engine_of, self.reader, model)
        self._engines: OrderedDict[str, AsyncEngine] = OrderedDict()

    @classmethod
    async def open(cls, settings: ServeSettings) -> "Service":
        """Load the model; `EmblemaError` where it, the store or a setting is not right, or a key is missing."""
        keys = await run_alone("open", KeyRing, settings.folder)
        check_open(keys, settings)
        scheduler = SchedulerLimits(waiting=settings.waiting, batch_rows=settings.batch_rows)
        options: dict[str, Any] = {"device": settings.device, "dtype": settings.dtype, "limits": settings.media_limits}
        store = await run_alone("open", open_store, settings)
        engine = await AsyncEngine.load(settings.model, scheduler=scheduler, store=store, **options)
        service = await run_alone("open", cls, settings, engine, keys)
        await service.resume()
        return service

    async def resume(self) -> None:
        """Take up what a server that has ended left of its files, and look for what expires from now on."""

        def left() -> list[tuple[Tenant, str]]:
            self.files.forget_begun()
            found = self.files.unprocessed()
            return [(tenant, id) for owner, name, id in found for tenant in self.keys.tenants_named(name, owner)]

        for tenant, id in await self.pools.upkeep.run(NOBODY, left):
            self.read_later(tenant, id)
        self.upkeep.begin("sweep", self.sweep())

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

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Prefill parts in their order, and return what the store has of them; errors as `ContentReader.warm`."""
        return await self.content.warm(tenant, parts)

    async def read_upload(self, tenant: Tenant, id: str) -> None:
        """Have an upload encoded and prefilled; `BusyError` where it is to wait."""
        try:
            async with asyncio.timeout(self.settings.deadline):
                await self.content.prefill_file(tenant, id)
        except BusyError:
            raise
        except (MediaError, ServeError) as error:
            if isinstance(error, ServeError) and error.status != 413:
                _LOG.info("%s is not prefilled: %s", id, error)
                return
            note = self.files.note
            await self.pools.tables.run(tenant.owner, note, tenant, id, FAILED, str(error), None, ())
        except (EmblemaError, TimeoutError) as error:
            _LOG.warning("%s could not be prefilled, it is read when it is asked for: %s", id, error)

    async def close(self) -> None:
        """Let the replies under way end within the grace, and close the engine and its store."""
        await self.upkeep.close()
        await self.engine.close(self.settings.grace)
        await run_alone("close", self.engine.store.parent.close)
        self.pools.close()
        self.files.close()
        self.caches.close()


def open_store(settings: ServeSettings) -> Path | Store:
    """Return the store with what it shares with other servers; its folder where it shares nothing."""
    alone = settings.redis is None and settings.bucket is None and not settings.several
    if alone and settings.device_bytes is None:
        return settings.store
    remote: RemoteTier | None = None
    deletions: DeletionFeed | None = None
    if settings.bucket is not None:
        remote = BucketTier(settings.bucket)
    elif settings.redis is not None:
        remote = RedisTier(settings.redis)
    if settings.redis is not None:
        deletions = RedisFeed(settings.redis)
    elif settings.several:
        deletions = FolderFeed(settings.store / "deletions.sqlite")
    placed = StoreSettings(device=settings.device, deletion_seconds=settings.deletion_seconds)
    memory: int | Literal["auto"] = "auto" if settings.device_bytes is None else int(settings.device_bytes)
    return Store(settings.store, device_bytes=memory, remote=remote, deletions=deletions, settings=placed)


Served = Annotated[Service, Depends(host_of)]

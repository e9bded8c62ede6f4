"""Tenants, their files and caches, beside the engine of a server that the plugin runs in."""

import base64
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from blake3 import blake3
from prometheus_client import REGISTRY, CollectorRegistry

from emblema.errors import EmblemaError, MediaError
from emblema.serve.beside.body_media import MediaReference, ReadMedia
from emblema.serve.beside.command_line import check_access
from emblema.serve.beside.engine_api import EngineApi
from emblema.serve.beside.warming import PartWarmer
from emblema.serve.caches import CachePart
from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, UPLOADED
from emblema.serve.host import Host
from emblema.serve.keys import LOCAL, KeyRing, Tenant
from emblema.serve.settings import ServeSettings
from emblema.store.settings import StoreSettings
from emblema.store.store import Store
from emblema.store.warm_parts import WarmParts
from emblema.work_pool import PoolSize, TenantTurns

_NAME = "emblema 2026-11 vllm media name 1"
_READERS = PoolSize(32, 4)
"""Requests whose bodies are read at once: of all tenants, and of one."""
CHECKED_MEDIA = 8_192
"""Media that are known to be within the limits."""


class EngineHost(Host):
    """What the routes need, beside an engine. Rows are made when a request shows a file, not behind its upload.

    Args:
        settings: of the server.
        api: of the engine.
        own_key: whether the engine itself asks for a key.
        registry: of the engine's metrics.
        shards: workers that the model's heads are split over.

    Raises:
        EmblemaError: others would be let in without a key, or two kinds of keys would be asked for.
    """

    def __init__(
        self,
        settings: ServeSettings,
        api: EngineApi,
        own_key: bool,
        registry: CollectorRegistry = REGISTRY,
        shards: int = 1,
    ) -> None:
        keys = KeyRing(settings.folder)
        check_access(settings, keys, own_key, api)
        # Rows are never read here, so that they need no memory.
        store = Store(settings.store, device_bytes=1, settings=StoreSettings(device="cpu"))
        # An engine with a key of its own asks for that, as long as there are no others.
        open = settings.loopback or own_key
        super().__init__(settings, keys, registry, store, open)
        self.api = api
        self.warmer = PartWarmer(store, settings.name, api, shards, self.pools.tables)
        self.reading = TenantTurns("the reading of their media", _READERS)
        self._checked: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Show parts to the engine in their order, and return what is on disk of them; errors as `PartWarmer.warm`."""
        return await self.warmer.warm(tenant, parts)

    async def read_upload(self, tenant: Tenant, id: str) -> None:
        """Have an upload decoded once, so that it says what it is, or why it cannot be read."""
        run = self.pools.tables.run
        try:
            entry = await run(tenant.owner, self.files.entry, tenant, id)
            if entry.status == UPLOADED:
                kind = (await self.read(tenant, MediaReference(id))).kind
                await run(tenant.owner, self.files.note, tenant, id, UPLOADED, None, kind, ())
        except MediaError as error:
            await run(tenant.owner, self.files.note, tenant, id, FAILED, str(error), None, ())
        except ServeError:
            # Deleted meanwhile, or too large beside others: it is looked at when it is shown.
            return

    async def delete_file(self, tenant: Tenant, id: str) -> None:
        """Delete a file, the caches that hold it, and the rows and patches that requests made of it.

        Raises:
            EmblemaError: there is no such file, or the engine does not answer now, so that its rows are not known: the
                file stays, and can be deleted again.
        """
        run, owner = self.pools.tables.run, tenant.owner
        await run(owner, self.files.entry, tenant, id)
        made = await self.warmer.chunks_of(tenant, id)
        await run(owner, self.delete_chunks, owner, tenant.name, made)
        await super().delete_file(tenant, id)
        for cache in await run(owner, self.caches.entries, tenant):
            if id in cache.files:
                await run(owner, self.caches.delete, tenant, cache.id)

    async def keep_part(self, tenant: Tenant, part: Mapping[str, Any], seconds: float) -> tuple[int, str | None]:
        """Keep the rows of a picture for some time at least, wherever it stands.

        Args:
            tenant: whose it is.
            part: as a chat request has it, with its data.
            seconds: how long.

        Returns:
            How many rows were made for that, and why it is not kept; None where it is.
        """
        if part.get("type") != "image_url":
            return 0, f"a part is not kept: inside {self.api.engine} pictures are"
        written = 0
        try:
            made, fresh = await self.warmer.warm_part(tenant, part)
            written = made.tokens if fresh else 0
            await self.pools.tables.run(tenant.owner, self.caches.keep_part, tenant, seconds, made, fresh)
        except EmblemaError as error:
            return written, f"a part is not kept: {error}"
        return written, None

    async def shown(self, tenant: Tenant, reference: MediaReference) -> ReadMedia:
        """Return what a part of a request names, as the engine can be shown it.

        Raises:
            ServeError: there is no such file, or the address is none.
            MediaError: it cannot be fetched or decoded, or is of another kind than its part says, or a document.
        """
        media = await self.read(tenant, reference)
        if media.kind == "document":
            engine = self.api.engine
            raise MediaError(
                f"a document is not read inside {engine}: send its pages as pictures, or use `emblema serve`"
            )
        if reference.kind not in (None, media.kind):
            raise MediaError(f"this is of the kind {media.kind}, the part says {reference.kind}")
        return media

    async def read(self, tenant: Tenant, reference: MediaReference) -> ReadMedia:
        """Return what a reference names, decoded once to see that it is within the limits; errors as `shown`.

        What one tenant showed is decoded again for another, so that the time tells nothing of it.
        """
        run = self.pools.tables.run
        if reference.file is not None:
            data = await run(tenant.owner, self.files.read, tenant, reference.file)
        else:
            data = await self.reader.fetch(tenant, reference.address)
        digest, name, text = await run(tenant.owner, _written, tenant, data)
        kind = self._checked.get((tenant.owner, digest))
        if kind is None:
            with self.held.open(tenant.owner) as holding:
                with holding.keeping(len(data)):
                    kind = await self.reader.kind_of(tenant, data)
                await self.reader.load(tenant, data, kind, holding)
            self._checked[tenant.owner, digest] = kind
            if len(self._checked) > CHECKED_MEDIA:
                self._checked.popitem(last=False)
        return ReadMedia(kind, text, name)


def _written(tenant: Tenant, data: bytes) -> tuple[bytes, str | None, str]:
    """Return the digest of media, the tenant's own name for them where there are tenants, and them in base64."""
    key = blake3(tenant.salt, derive_key_context=_NAME).digest()
    name = None if tenant is LOCAL else blake3(data, key=key).hexdigest()
    return blake3(data).digest(), name, base64.b64encode(data).decode()

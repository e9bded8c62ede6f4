"""Tenants, their files and caches, beside the engine of a server that the plugin runs in."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from blake3 import blake3
from prometheus_client import REGISTRY, CollectorRegistry

from emblema.errors import DeadlineError, EmblemaError, MediaError
from emblema.media.source import is_address
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
from emblema.work_pool import PoolSize, WorkPool

T = TypeVar("T")
_NAME = "emblema 2026-11 vllm media name 1"
_READERS = PoolSize(32, 4)
"""Requests whose bodies are read at once: of all tenants, and of one. Most of their threads wait for other pools."""
READING_SECONDS = 60.0
"""Time to read all media of a request."""
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
        super().__init__(settings, keys, registry, store, open, again=own_key)
        self.api = api
        self.warmer = PartWarmer(store, settings.name, api, shards, self.pools.tables)
        self.readers = WorkPool("media", _READERS)
        self._checked: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Show parts to the engine in their order, and return what is on disk of them; errors as `PartWarmer.warm`."""
        return await self.warmer.warm(tenant, parts)

    async def read_upload(self, tenant: Tenant, id: str) -> None:
        """Have an upload decoded once, so that it says what it is, or why it cannot be read."""
        await self.readers.run(tenant.owner, self._look_at, tenant, id)

    def _look_at(self, tenant: Tenant, id: str) -> None:
        try:
            if self.files.entry(tenant, id).status == UPLOADED:
                until = time.monotonic() + READING_SECONDS
                kind = self._kind_of(tenant, self.files.read(tenant, id), until)
                self.files.note(tenant, id, UPLOADED, None, kind, ())
        except MediaError as error:
            self.files.note(tenant, id, FAILED, str(error), None, ())
        except (ServeError, DeadlineError):
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

    def read(self, tenant: Tenant, reference: MediaReference, until: float) -> ReadMedia:
        """Return what a part names, decoded once to see that it is within the limits.

        Args:
            tenant: whose request it is.
            reference: what its part names.
            until: when, by the steady clock, the request is given up.

        Raises:
            ServeError: there is no such file, or the address is none.
            MediaError: it cannot be fetched or decoded, or is of another kind.
            DeadlineError: the time is over.
        """
        if time.monotonic() > until:
            raise _late()
        if reference.file is not None:
            data = self.files.read(tenant, reference.file)
        elif is_address(reference.address):
            data = self._in_time(until, partial(self.reader.fetch_now, tenant, reference.address))
        else:
            raise ServeError(400, "a part with media needs a file's id, or a data, http or https address")
        kind = self._kind_of(tenant, data, until)
        if kind == "document":
            engine = self.api.engine
            raise MediaError(
                f"a document is not read inside {engine}: send its pages as pictures, or use `emblema serve`"
            )
        if reference.kind not in (None, kind):
            raise MediaError(f"this is of the kind {kind}, the part says {reference.kind}")
        name = None if tenant is LOCAL else blake3(data, key=_key(_NAME, tenant)).hexdigest()
        return ReadMedia(kind, data, name)

    def _in_time(self, until: float, work: Callable[[float], T]) -> T:
        try:
            return work(min(until - time.monotonic(), READING_SECONDS))
        except TimeoutError as error:
            raise _late() from error

    def _kind_of(self, tenant: Tenant, data: bytes, until: float) -> str:
        """Return the kind of media that can be decoded within the limits; errors as `load_media`.

        What one tenant showed is checked again for another, so that the time tells nothing of it.
        """
        digest = tenant.owner, blake3(data).digest()
        kind = self._checked.get(digest)
        if kind is None:
            with self.held.open(tenant.owner) as holding, holding.keeping(len(data)):
                check = partial(self.reader.check_now, tenant, data, holding)
                kind = self._in_time(until, check)
            self._checked[digest] = kind
            if len(self._checked) > CHECKED_MEDIA:
                self._checked.popitem(last=False)
        return kind


def _late() -> DeadlineError:
    return DeadlineError(f"the request's media were not read within {READING_SECONDS:g} seconds")


def _key(context: str, tenant: Tenant) -> bytes:
    return blake3(tenant.salt, derive_key_context=context).digest()

"""Tenants, their files and caches, beside the engine of a server that the plugin runs in."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from blake3 import blake3
from prometheus_client import REGISTRY, CollectorRegistry

from emblema.errors import DeadlineError, EmblemaError, MediaError
from emblema.media import media_kind
from emblema.media.load import load_media
from emblema.media.source import is_address, read_source
from emblema.plugin.body_media import MediaReference, ReadMedia
from emblema.plugin.dialect import Dialect
from emblema.plugin.warming import PartWarmer
from emblema.serve.cache_making import CacheMaker, MediaFetcher
from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, UPLOADED
from emblema.serve.host import Host, check_open, request_counter
from emblema.serve.keys import LOCAL, KeyRing, Tenant
from emblema.serve.settings import ServeSettings
from emblema.store.settings import StoreSettings
from emblema.store.store import Store

_NAME = "emblema 2026-11 vllm media name 1"
_READERS, _READERS_OF_ONE = 8, 4
"""Requests whose bodies are read at once: of all tenants, and of one."""
READING_SECONDS = 60.0
"""Time to read all media of a request."""
CHECKED_MEDIA = 8_192
"""Media that are known to be within the limits."""


class EngineHost(Host):
    """What the routes need, beside an engine. Rows are made when a request shows a file, not behind its upload.

    Args:
        settings: of the server.
        dialect: of the engine.
        own_key: whether the engine itself asks for a key.
        registry: of the engine's metrics.
        shards: workers that the model's heads are split over.

    Raises:
        EmblemaError: others would be let in without a key, or two kinds of keys would be asked for.
    """

    def __init__(
        self,
        settings: ServeSettings,
        dialect: Dialect,
        own_key: bool,
        registry: CollectorRegistry = REGISTRY,
        shards: int = 1,
    ) -> None:
        keys = KeyRing(settings.folder)
        check_access(settings, keys, own_key, dialect)
        # Rows are never read here, so that they need no memory.
        store = Store(settings.store, device_bytes=1, settings=StoreSettings(device="cpu"))
        super().__init__(settings, keys, store, request_counter(registry), settings.loopback or own_key)
        self.dialect = dialect
        self.limits = settings.media_limits
        self.warmer = PartWarmer(store, settings.name, dialect, shards)
        self.cache_maker = CacheMaker(self.files, self.caches, MediaFetcher(self.limits), self.warmer.warm)
        self.readers = ThreadPoolExecutor(_READERS, "emblema-media")
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._checked: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    def turns_of(self, tenant: Tenant) -> asyncio.Semaphore:
        """Return what bounds the requests of a tenant that are read at once. There are no more of them than tenants."""
        return self._turns.setdefault(tenant.name, asyncio.Semaphore(_READERS_OF_ONE))

    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload decoded once, so that it says what it is, or why it cannot be read."""
        asyncio.get_running_loop().run_in_executor(self.readers, self._look_at, tenant, id)

    def _look_at(self, tenant: Tenant, id: str) -> None:
        try:
            if self.files.entry(tenant, id).status == UPLOADED:
                kind = self._kind_of(tenant, self.files.read(tenant, id))
                self.files.note(tenant, id, UPLOADED, None, kind, ())
        except MediaError as error:
            self.files.note(tenant, id, FAILED, str(error), None, ())
        except ServeError:
            # Deleted meanwhile.
            return

    async def delete_file(self, tenant: Tenant, id: str) -> None:
        """Delete a file, the caches that hold it, and the rows and patches that requests made of it.

        Raises:
            EmblemaError: there is no such file, or the engine does not answer now, so that its rows are not known: the
                file stays, and can be deleted again.
        """
        await asyncio.to_thread(self.files.entry, tenant, id)
        made = await self.warmer.chunks_of(tenant, id)
        await asyncio.to_thread(self.delete_chunks, tenant.owner, tenant.name, made)
        await super().delete_file(tenant, id)
        for cache in await asyncio.to_thread(self.caches.entries, tenant):
            if id in cache.files:
                await asyncio.to_thread(self.caches.delete, tenant, cache.id)

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
            return 0, f"a part is not kept: inside {self.dialect.engine} pictures are"
        written = 0
        try:
            made, fresh = await self.warmer.warm_part(tenant, part)
            written = made.tokens if fresh else 0
            await asyncio.to_thread(self.caches.keep_part, tenant, seconds, made, fresh)
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
            raise DeadlineError(f"the request's media were not read within {READING_SECONDS:g} seconds")
        if reference.file is not None:
            data = self.files.read(tenant, reference.file)
        elif is_address(reference.address):
            data = read_source(reference.address, self.limits)
        else:
            raise ServeError(400, "a part with media needs a file's id, or a data, http or https address")
        kind = self._kind_of(tenant, data)
        if kind == "document":
            engine = self.dialect.engine
            raise MediaError(
                f"a document is not read inside {engine}: send its pages as pictures, or use `emblema serve`"
            )
        if reference.kind not in (None, kind):
            raise MediaError(f"this is of the kind {kind}, the part says {reference.kind}")
        name = None if tenant is LOCAL else blake3(data, key=_key(_NAME, tenant)).hexdigest()
        return ReadMedia(kind, data, name)

    def picture(self, tenant: Tenant, id: str) -> bytes:
        """Return the bytes of a file that is a picture; errors as `read`."""
        return self.read(tenant, MediaReference(id, kind="image"), math.inf).data

    def _kind_of(self, tenant: Tenant, data: bytes) -> str:
        """Return the kind of media that can be decoded within the limits; errors as `load_media`.

        What one tenant showed is checked again for another, so that the time tells nothing of it.
        """
        digest = tenant.owner, blake3(data).digest()
        kind = self._checked.get(digest)
        if kind is None:
            kind = media_kind(data, self.limits)
            load_media(data, kind, limits=self.limits)
            self._checked[digest] = kind
            if len(self._checked) > CHECKED_MEDIA:
                self._checked.popitem(last=False)
        return kind


def check_access(settings: ServeSettings, keys: KeyRing, own_key: bool, dialect: Dialect) -> None:
    """Refuse to let others in without a key, and to ask for two.

    Raises:
        EmblemaError: others reach the address and there is no key, or there are keys of both kinds.
    """
    if not own_key:
        check_open(keys, settings)
    elif len(keys):
        raise EmblemaError(
            f"{settings.store} has keys of tenants: leave {dialect.engine}'s {dialect.key_option} out, or revoke them"
        )


def _key(context: str, tenant: Tenant) -> bytes:
    return blake3(tenant.salt, derive_key_context=context).digest()

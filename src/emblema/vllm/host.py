"""Tenants, their files and caches, beside vLLM's engine."""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from blake3 import blake3
from prometheus_client import REGISTRY, CollectorRegistry

from emblema.errors import DeadlineError, EmblemaError, MediaError
from emblema.media import media_kind
from emblema.media.load import load_media
from emblema.media.source import is_address, read_source
from emblema.serve.cache_making import CacheMaker, MediaFetcher
from emblema.serve.caches import CacheStore
from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, UPLOADED, FileStore
from emblema.serve.host import authenticate, check_open, request_counter
from emblema.serve.keys import LOCAL, KeyRing, Tenant, store_salts
from emblema.serve.settings import ServeSettings
from emblema.store.settings import StoreSettings
from emblema.store.store import Store
from emblema.vllm.body_media import MediaReference, ReadMedia
from emblema.vllm.warming import PartWarmer

_LOG = logging.getLogger("emblema.serve")
_NAME = "emblema 2026-11 vllm media name 1"
_READERS, _READERS_OF_ONE = 8, 4
"""Requests whose bodies are read at once: of all tenants, and of one."""
READING_SECONDS = 60.0
"""Time to read all media of a request."""
_SWEEP_SECONDS = 60.0
"""Seconds between two looks for what has expired."""
CHECKED_MEDIA = 8_192
"""Media that are known to be within the limits."""


class VllmHost:
    """What the routes need, beside vLLM's engine. Rows are made when a request shows a file, not behind its upload.

    Args:
        settings: of the server.
        own_key: whether vLLM itself asks for a key.
        registry: of vLLM's metrics.

    Raises:
        EmblemaError: others would be let in without a key, or two kinds of keys would be asked for.
    """

    def __init__(self, settings: ServeSettings, own_key: bool, registry: CollectorRegistry = REGISTRY) -> None:
        self.settings, self._own_key = settings, own_key
        self.keys = KeyRing(settings.folder)
        check_access(settings, self.keys, own_key)
        self.files = FileStore(settings.folder, settings.quota_bytes, forget=self._forget)
        self.caches = CacheStore(settings.folder, settings.caches, settings.cache_bytes, self._set_pins)
        self.requests = request_counter(registry)
        self.limits = settings.media_limits
        # Rows are never read here, so that they need no memory.
        self._store = Store(settings.store, device_bytes=1, settings=StoreSettings(device="cpu"))
        self.warmer = PartWarmer(self._store, settings.name)
        self.cache_maker = CacheMaker(self.files, self.caches, MediaFetcher(self.limits), self.warmer.warm)
        self.readers = ThreadPoolExecutor(_READERS, "emblema-media")
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._checked: OrderedDict[bytes, str] = OrderedDict()

    def turns_of(self, tenant: Tenant) -> asyncio.Semaphore:
        """Return what bounds the requests of a tenant that are read at once. There are no more of them than tenants."""
        return self._turns.setdefault(tenant.name, asyncio.Semaphore(_READERS_OF_ONE))

    def tenant_of(self, authorization: str | None) -> Tenant:
        """Return whose a request is, by its header.

        Raises:
            ServeError: a key is needed and there is none, or it is not known.
        """
        return authenticate(self.keys, authorization, self.settings.loopback or self._own_key)

    def read_later(self, tenant: Tenant, id: str) -> None:
        """Have an upload decoded once, so that it says what it is, or why it cannot be read."""
        asyncio.get_running_loop().run_in_executor(self.readers, self._look_at, tenant, id)

    def _look_at(self, tenant: Tenant, id: str) -> None:
        try:
            if self.files.entry(tenant, id).status == UPLOADED:
                kind = self._kind_of(self.files.read(tenant, id))
                self.files.note(tenant, id, UPLOADED, None, kind, ())
        except MediaError as error:
            self.files.note(tenant, id, FAILED, str(error), None, ())
        except ServeError:
            # Deleted meanwhile.
            return

    async def delete_file(self, tenant: Tenant, id: str) -> None:
        """Delete a file and the caches that hold it, with what the embedded engine made of it in a store of both.

        Rows that requests made of it here stay in the store as long as it keeps them.

        Raises:
            ServeError: there is no such file.
        """
        deleted = False
        while not deleted:
            entry = await asyncio.to_thread(self.files.entry, tenant, id)
            await asyncio.to_thread(self._delete_chunks, [tenant], entry.chunks)
            deleted = await asyncio.to_thread(self.files.delete, tenant, entry)
        for cache in await asyncio.to_thread(self.caches.entries, tenant):
            if id in cache.files:
                await asyncio.to_thread(self.caches.delete, tenant, cache.id)

    async def sweep(self) -> None:
        """Delete what has expired, once a minute, until the server ends."""
        while True:
            try:
                await asyncio.to_thread(self.caches.expire)
                await asyncio.to_thread(self.files.expire)
            except EmblemaError as error:
                _LOG.warning("what has expired could not be deleted, it is tried again: %s", error)
            await asyncio.sleep(_SWEEP_SECONDS)

    def _forget(self, owner: str, name: str, chunks: Sequence[str]) -> None:
        """Delete the chunks of a file that has expired; those that a cache holds stay."""
        if chunks:
            held = self.caches.held(owner)
            self._delete_chunks(self.keys.tenants_named(name, owner), [chunk for chunk in chunks if chunk not in held])

    def _delete_chunks(self, tenants: Iterable[Tenant], chunks: Sequence[str]) -> None:
        for tenant in tenants:
            for chunk in chunks:
                self._store.tenant(tenant.salt).delete(chunk)

    def _set_pins(self, owner: str, name: str, pieces: Iterable[str], pinned: bool) -> None:
        pieces = list(pieces)
        for tenant in self.keys.tenants_named(name, owner):
            for store in map(self._store.tenant, store_salts(tenant)):
                for piece in pieces:
                    store.pin(piece) if pinned else store.unpin(piece)

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
        kind = self._kind_of(data)
        if kind == "document":
            raise MediaError("a document is not read inside vLLM: send its pages as pictures, or use `emblema serve`")
        if reference.kind not in (None, kind):
            raise MediaError(f"this is of the kind {kind}, the part says {reference.kind}")
        name = None if tenant is LOCAL else blake3(data, key=_key(_NAME, tenant)).hexdigest()
        return ReadMedia(kind, data, name)

    def _kind_of(self, data: bytes) -> str:
        """Return the kind of media that can be decoded within the limits; errors as `load_media`."""
        digest = blake3(data).digest()
        kind = self._checked.get(digest)
        if kind is None:
            kind = media_kind(data, self.limits)
            load_media(data, kind, limits=self.limits)
            self._checked[digest] = kind
            if len(self._checked) > CHECKED_MEDIA:
                self._checked.popitem(last=False)
        return kind


def check_access(settings: ServeSettings, keys: KeyRing, own_key: bool) -> None:
    """Refuse to let others in without a key, and to ask for two.

    Raises:
        EmblemaError: others reach the address and there is no key, or there are keys of both kinds.
    """
    if not own_key:
        check_open(keys, settings)
    elif len(keys):
        raise EmblemaError(f"{settings.store} has keys of tenants: leave vLLM's --api-key out, or revoke them")


def _key(context: str, tenant: Tenant) -> bytes:
    return blake3(tenant.salt, derive_key_context=context).digest()

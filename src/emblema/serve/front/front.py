"""The service in front of an engine: its tenants, their files and caches, and what the engine is asked for them."""

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from blake3 import blake3
from prometheus_client import CollectorRegistry

from emblema.errors import DeadlineError, EmblemaError, MediaError
from emblema.serve.caches import CachePart
from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, UPLOADED
from emblema.serve.front.body_media import Form, MediaReference, ReadMedia, media_type, resolve_media
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.engine_body import read_body, write_body
from emblema.serve.front.warming import PartWarmer
from emblema.serve.host import Host
from emblema.serve.keys import LOCAL, KeyRing, Tenant, check_open
from emblema.serve.settings import ServeSettings
from emblema.store.settings import StoreSettings
from emblema.store.store import Store
from emblema.store.warm_parts import WarmParts
from emblema.work_pool import PoolSize, TenantTurns, run_alone

CHAT = "/v1/chat/completions"
_NAME = "emblema 2026-11 vllm media name 1"
_READERS = PoolSize(32, 4)
"""Requests whose bodies are read at once: of all tenants, and of one."""
READING_SECONDS = 60.0
"""Time to read all media of a request."""
CHECKED_MEDIA = 8_192
"""Media that are known to be within the limits."""


@dataclass(frozen=True, slots=True)
class EngineBody:
    """The body that an engine gets.

    Attributes:
        written: it, as JSON.
        kept: the parts of it that are to be kept, each with seconds.
    """

    written: bytes
    kept: tuple[tuple[dict[str, Any], int], ...]


class Front(Host):
    """What the routes need in front of an engine. Rows are made when a request shows a file, not behind its upload.

    Args:
        settings: of the service.
        engine: behind it.
        own_keys: with which requests are the local tenant's.

    Attributes:
        registry: of the service's metrics.

    Raises:
        EmblemaError: others would be let in without a key, or two kinds of keys would be asked for.
    """

    def __init__(self, settings: ServeSettings, engine: EngineClient, own_keys: Collection[str] = ()) -> None:
        keys = KeyRing(settings.folder)
        check_access(settings, keys, own_keys)
        # Rows are never read here, so that they need no memory.
        store = Store(settings.store, device_bytes=1, settings=StoreSettings(device="cpu"))
        self.engine, self.registry = engine, CollectorRegistry()
        super().__init__(settings, keys, self.registry, store, settings.loopback, own_keys)
        self._warmer = PartWarmer(store, engine, self.ask, self.pools.tables)
        self._reading = TenantTurns("the reading of their media", _READERS)
        self._checked: OrderedDict[tuple[str, bytes], str] = OrderedDict()

    @property
    def model(self) -> str:
        """What clients call the model."""
        return self.engine.model or super().model

    async def ask(self, tenant: Tenant, body: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's answer to a chat request of the service's own; `EmblemaError` where it is refused."""
        written = (await self.engine_body(json.dumps(body).encode(), "chat", tenant)).written
        status, answer = await self.engine.ask("POST", CHAT, written, self.settings.deadline)
        try:
            told: dict[str, Any] = json.loads(answer)
            error = told.get("error", told)
        except (ValueError, AttributeError, RecursionError) as failure:
            raise ServeError(502, f"the engine's reply is no JSON: {failure}", "engine_failed") from failure
        if status != 200:
            said = error.get("message", error) if isinstance(error, dict) else error
            raise ServeError(status, str(said)[:1_000])
        return told

    async def engine_body(self, raw: bytes, form: Form, tenant: Tenant) -> EngineBody:
        """Return the body that the engine gets; what is slow to fetch or decode holds up its own tenant alone.

        Raises:
            EmblemaError: the body is malformed or too large, chooses a salt, names collections, or has media that
                cannot be read.
        """
        async with self._reading.place(tenant.owner):
            try:
                async with asyncio.timeout(READING_SECONDS):
                    return await self._engine_body(raw, form, tenant)
            except TimeoutError as error:
                said = f"the request's media were not read within {READING_SECONDS:g} seconds"
                raise DeadlineError(said) from error

    async def _engine_body(self, raw: bytes, form: Form, tenant: Tenant) -> EngineBody:
        run, api, settings = self.pools.tables.run, self.engine.known, self.settings
        body, breakpoints = await run(tenant.owner, read_body, raw, form, tenant, self.caches, api)
        media = await resolve_media(body, form, partial(self.shown, tenant), settings.parts, settings.body_bytes)
        written = await run(tenant.owner, write_body, body, tenant, api)
        if len(written) - media > settings.text_bytes:
            raise ServeError(400, f"the request has more than {settings.text_bytes} bytes beside its media")
        return EngineBody(written, tuple((parts[index], seconds) for parts, index, seconds in breakpoints))

    async def close(self) -> None:
        """End what is done beside requests, and let go of the engine and the store."""
        await self.upkeep.close()
        await self.engine.close()
        await run_alone("close", self._store.close)
        self.pools.close()
        self.files.close()
        self.caches.close()

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Show parts to the engine in their order, and return what is on disk of them; errors as `PartWarmer.warm`."""
        return await self._warmer.warm(tenant, parts)

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
        made = await self._warmer.chunks_of(tenant, id)
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
            return 0, f"a part is not kept: inside {self.engine.known.name} pictures are"
        written = 0
        try:
            made, fresh = await self._warmer.warm_part(tenant, part)
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
            name = self.engine.known.name
            raise MediaError(f"a document is not read for {name}: send its pages as pictures, or use `emblema serve`")
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
        api = self.engine.api
        return ReadMedia(kind, media_type(data, kind), text, name if api is not None and api.named else None)


def _written(tenant: Tenant, data: bytes) -> tuple[bytes, str | None, str]:
    """Return the digest of media, the tenant's own name for them where there are tenants, and them in base64."""
    key = blake3(tenant.salt, derive_key_context=_NAME).digest()
    name = None if tenant is LOCAL else blake3(data, key=key).hexdigest()
    return blake3(data).digest(), name, base64.b64encode(data).decode()


def check_access(settings: ServeSettings, keys: KeyRing, own_keys: Collection[str]) -> None:
    """Refuse to let others in without a key, and to ask for two kinds.

    Raises:
        EmblemaError: others reach the address and there is no key, or there are keys of both kinds.
    """
    if not own_keys:
        check_open(keys, settings)
    elif len(keys):
        raise EmblemaError(f"{settings.store} has keys of tenants: leave --api-key out, or revoke them")

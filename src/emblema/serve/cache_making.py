"""Making and extending caches, on the server of any engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from emblema.errors import DeadlineError, EmblemaError
from emblema.serve.caches import CacheEntry, CachePart, CacheStore
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import Tenant
from emblema.serve.media_reading import MediaReader
from emblema.serve.parts import FileContent, MediaContent, TextContent
from emblema.serve.upkeep import Upkeep, retried
from emblema.store.warm_parts import WarmParts

_SHORTEST_FILE = 3_600
"""Seconds that a file is kept at least that comes with a cache, so that it is there until the cache is made."""


class CacheMaker:
    """Makes caches of parts and extends them, for any engine.

    `warm` has an engine make a tenant's parts ready in their order, and returns what is durable of them. A cache is
    given up after so many `seconds` of that; `upkeep` runs it.
    """

    def __init__(
        self,
        files: FileStore,
        caches: CacheStore,
        reader: MediaReader,
        warm: Callable[[Tenant, Sequence[CachePart]], Awaitable[WarmParts]],
        upkeep: Upkeep,
        seconds: float,
    ) -> None:
        self._files, self._caches, self._reader, self._warm = files, caches, reader, warm
        self._upkeep, self._seconds = upkeep, seconds
        self._making: dict[tuple[str, str], asyncio.Future[CacheEntry | EmblemaError]] = {}

    async def open(
        self, tenant: Tenant, content: Sequence[TextContent | MediaContent], name: str | None, seconds: float
    ) -> CacheEntry:
        """Keep parts for some time, whose rows and patches are made later: see `make_later`.

        Media that come by an address become files of the tenant, and no file of the cache expires before it.

        Raises:
            ServeError: there is no such file, or the tenant has too many caches or files.
            EmblemaError: media cannot be read.
        """
        parts: list[CachePart] = []
        for part in content:
            if isinstance(part, TextContent):
                parts.append(("text", part.text))
            else:
                parts.append(("file", await self._file_of(tenant, part, seconds)))
        run = self._reader.pools.tables.run
        entry = await run(tenant.owner, self._caches.open, tenant, parts, name, seconds)
        await run(tenant.owner, self._files.keep_until, tenant, entry.files, entry.expires)
        return entry

    def make_later(self, tenant: Tenant, id: str) -> "asyncio.Future[CacheEntry | EmblemaError]":
        """Have a cache made in its tenant's turn, and return what will be the cache, or why it could not be made."""
        place = (tenant.owner, id)
        if place not in self._making:
            self._making[place] = asyncio.get_running_loop().create_future()
            self._upkeep.begin("caches", self._make(tenant, id, self._making[place]))
        return self._making[place]

    async def _make(self, tenant: Tenant, id: str, made: "asyncio.Future[CacheEntry | EmblemaError]") -> None:
        run = self._reader.pools.tables.run
        outcome: CacheEntry | EmblemaError = ServeError(500, "the cache was not made: the server's log says why")
        try:
            outcome = await self._made(tenant, id)
            if isinstance(outcome, EmblemaError):
                await run(tenant.owner, self._caches.fail, tenant, id, str(outcome))
        except Exception:
            await run(tenant.owner, self._caches.fail, tenant, id, str(outcome))
            raise
        finally:
            del self._making[tenant.owner, id]
            if not made.done():
                made.set_result(outcome)

    async def _made(self, tenant: Tenant, id: str) -> CacheEntry | EmblemaError:
        run = self._reader.pools.tables.run

        async def make() -> CacheEntry:
            # One that was deleted waits for no place.
            await run(tenant.owner, self._caches.entry, tenant, id)
            async with self._reader.pools.caches.place(tenant.owner), asyncio.timeout(self._seconds):
                entry = await run(tenant.owner, self._caches.entry, tenant, id)
                pieces = await self._warm(tenant, entry.parts)
                return await run(tenant.owner, self._caches.fill, tenant, id, pieces)

        try:
            return await retried(make)
        except TimeoutError:
            return DeadlineError(f"the cache was not made in {self._seconds:g} seconds: give it fewer parts")
        except EmblemaError as error:
            return error

    async def extend(self, tenant: Tenant, id: str, seconds: float) -> CacheEntry:
        """Let a cache end so many seconds from now, and its files no sooner; `ServeError` where there is none."""
        run = self._reader.pools.tables.run
        entry = await run(tenant.owner, self._caches.extend, tenant, id, seconds)
        await run(tenant.owner, self._files.keep_until, tenant, entry.files, entry.expires)
        return entry

    async def _file_of(self, tenant: Tenant, part: MediaContent, seconds: float) -> str:
        """Return the id of a part's file; one that comes by an address is kept as a file."""
        part.settings.refuse_all("a part of a cache")
        if isinstance(part, FileContent) and part.slid:
            raise ServeError(400, "a cache is made before anything slides: give slid in the message", None, "slid")
        run = self._reader.pools.tables.run
        if part.named.file_id is not None:
            return (await run(tenant.owner, self._files.entry, tenant, part.named.file_id)).id
        data = await self._reader.fetch(tenant, part.named.address)
        with self._reader.held.open(tenant.owner) as holding:
            await self._reader.load(tenant, data, part.kind, holding)
        name = (part.file.filename if isinstance(part, FileContent) else None) or "part of a cache"
        kept = max(seconds, _SHORTEST_FILE)
        add = self._files.add
        return (await run(tenant.owner, add, tenant, data, name[:200], "user_data", kept, renew=False)).id

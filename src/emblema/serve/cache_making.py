"""Making and extending caches, on the server of any engine; what is fetched for parts."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from emblema.media import MediaLimits
from emblema.media.load import load_media
from emblema.media.source import is_address, read_source
from emblema.serve.caches import CacheEntry, CachePart, CacheStore
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import Tenant
from emblema.serve.parts import FileContent, ImageContent, MediaContent, TextContent
from emblema.store.warm_parts import WarmParts

_DOWNLOADS = 8
"""Media that are fetched or decoded from text at once."""
_SHORTEST_FILE = 3_600
"""Seconds that a file is kept at least that comes with a cache, so that it is there until the cache is made."""
_MADE_AT_ONCE = 2
"""Caches that are made at once: each waits for its patches."""


class MediaFetcher:
    """Fetches what parts of requests name by an address, a few at once and within limits."""

    def __init__(self, limits: MediaLimits) -> None:
        self.limits = limits
        self._downloads = asyncio.Semaphore(_DOWNLOADS)

    async def fetch(self, part: MediaContent) -> tuple[str | None, bytes]:
        """Return what a part has to be, None for anything, and the bytes at its address; errors as `read_source`."""
        if isinstance(part, FileContent):
            kind, address = None, part.file.file_data
        elif isinstance(part, ImageContent):
            kind, address = "image", part.image_url.url
        else:
            kind, address = "video", part.video_url.url
        if address is None or not is_address(address):
            raise ServeError(400, f"a part of type {part.type} needs a file_id, or a data, http or https address")
        async with self._downloads:
            return kind, await asyncio.to_thread(read_source, address, self.limits)


class CacheMaker:
    """Makes caches of parts and extends them, for any engine.

    `warm` has an engine make a tenant's parts ready in their order, and returns what is durable of them.
    """

    def __init__(
        self,
        files: FileStore,
        caches: CacheStore,
        fetcher: MediaFetcher,
        warm: Callable[[Tenant, Sequence[CachePart]], Awaitable[WarmParts]],
    ) -> None:
        self._files, self._caches, self._fetcher, self._warm = files, caches, fetcher, warm
        self._making = asyncio.Semaphore(_MADE_AT_ONCE)

    async def make(
        self, tenant: Tenant, content: Sequence[TextContent | MediaContent], name: str | None, seconds: float
    ) -> CacheEntry:
        """Have parts made ready in their order, and keep their rows and patches for some time.

        Media that come by an address become files of the tenant, and no file of the cache expires before it.

        Raises:
            ServeError: there is no such file, or the tenant has too many caches or files.
            EmblemaError: media cannot be read, or the parts are longer than the model's context.
        """
        parts: list[CachePart] = []
        for part in content:
            if isinstance(part, TextContent):
                parts.append(("text", part.text))
            else:
                parts.append(("file", await self._file_of(tenant, part, seconds)))
        async with self._making:
            made = await self._warm(tenant, parts)
        entry = await asyncio.to_thread(self._caches.put, tenant, parts, name, seconds, made)
        await asyncio.to_thread(self._files.keep_until, tenant, entry.files, entry.expires)
        return entry

    async def extend(self, tenant: Tenant, id: str, seconds: float) -> CacheEntry:
        """Let a cache end so many seconds from now, and its files no sooner; `ServeError` where there is none."""
        entry = await asyncio.to_thread(self._caches.extend, tenant, id, seconds)
        await asyncio.to_thread(self._files.keep_until, tenant, entry.files, entry.expires)
        return entry

    async def _file_of(self, tenant: Tenant, part: MediaContent, seconds: float) -> str:
        """Return the id of a part's file; one that comes by an address is kept as a file."""
        if isinstance(part, FileContent) and part.file.file_id is not None:
            return (await asyncio.to_thread(self._files.entry, tenant, part.file.file_id)).id
        kind, data = await self._fetcher.fetch(part)
        await asyncio.to_thread(load_media, data, kind, limits=self._fetcher.limits)
        name = (part.file.filename if isinstance(part, FileContent) else None) or "part of a cache"
        add, kept = self._files.add, max(seconds, _SHORTEST_FILE)
        return (await asyncio.to_thread(add, tenant, data, name[:200], "user_data", kept, renew=False)).id

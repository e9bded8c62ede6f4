"""The parts of requests: files, addresses and caches become texts, chunks, and media that are decoded."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.engine import Engine
from emblema.engine.warming import warm
from emblema.errors import CapacityError
from emblema.kv.chunk import Chunk, Clip
from emblema.media.load import load_media
from emblema.serve.cache_making import MediaFetcher
from emblema.serve.caches import CachePart, CacheStore
from emblema.serve.faults import ServeError, missing
from emblema.serve.files import PROCESSED, FileStore
from emblema.serve.keys import Tenant
from emblema.serve.messages import MediaItem
from emblema.serve.parts import CacheContent, FileContent, MediaContent
from emblema.store.store import TenantStore
from emblema.store.warm_parts import WarmParts


@dataclass(frozen=True, slots=True)
class ReadPart:
    """What a part of a request stands for in a prompt.

    Attributes:
        items: texts, pieces that are known, and content items with media.
        written: rows of chunks that were made to keep it.
        remark: why it is not kept.
    """

    items: Sequence[str | MediaItem]
    written: int = 0
    remark: str | None = None


class ContentReader:
    """Reads the parts of requests, with a tenant's engine for the model of a fingerprint."""

    def __init__(
        self,
        files: FileStore,
        caches: CacheStore,
        engine_of: Callable[[Tenant], AsyncEngine],
        fetcher: MediaFetcher,
        model: str,
    ) -> None:
        self._files, self._caches, self._engine_of = files, caches, engine_of
        self._fetcher, self._limits, self._model = fetcher, fetcher.limits, model

    async def read(self, tenant: Tenant, part: MediaContent | CacheContent, seconds: float | None = None) -> ReadPart:
        """Return what a part of a request stands for, which the store then keeps for so many seconds at least.

        Raises:
            ServeError: there is no such file or cache.
            MediaError: an address cannot be fetched or is refused, or the file cannot be decoded.
        """
        if isinstance(part, CacheContent):
            entry = await asyncio.to_thread(self._caches.entry, tenant, part.cache.cache_id)
            items = [value if kind == "text" else await self._file_item(tenant, value) for kind, value in entry.parts]
            return ReadPart(items)
        item = await self._item(tenant, part)
        if seconds is None:
            return ReadPart([item])
        piece, written = await self._made(tenant, item)
        chunks = (piece,) if isinstance(piece, Chunk) else piece.chunks
        held = {chunk.id: chunk.bytes + chunk.encoded.bytes for chunk in chunks}
        try:
            made = WarmParts(piece.tokens, held)
            await asyncio.to_thread(self._caches.keep_part, tenant, seconds, made, written > 0)
        except (ServeError, CapacityError) as error:
            return ReadPart([piece], written, f"a part is not kept: {error}")
        return ReadPart([piece], written)

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Prefill parts in their order, and return what the store has of them; errors as `read` and `warming.warm`."""
        pieces = [value if kind == "text" else await self.prefill_file(tenant, value) for kind, value in parts]
        return await warm(self._engine_of(tenant), pieces)

    async def prefill_file(self, tenant: Tenant, id: str) -> Chunk | Clip:
        """Return a file's chunks, made now where they are not known; errors as `read`."""
        item = await self._file_item(tenant, id)
        piece, _ = await self._made(tenant, item, id)
        if piece is not item:
            chunks = [piece.id] if isinstance(piece, Chunk) else [chunk.id for chunk in piece]
            if not await asyncio.to_thread(self._files.note, tenant, id, PROCESSED, None, piece.kind, chunks):
                await self.forget(tenant, chunks)
                await asyncio.to_thread(self._files.end, tenant.owner, id)
                raise missing("file", id)
        return piece

    async def forget(self, tenant: Tenant, chunks: Sequence[str]) -> None:
        """Delete chunks of a file that is deleted."""

        def delete(engine: Engine) -> None:
            for chunk in chunks:
                engine.store.delete(chunk)

        await self._engine_of(tenant).run(delete)

    async def _made(self, tenant: Tenant, item: MediaItem, file: str | None = None) -> tuple[Chunk | Clip, int]:
        """Return the chunks of an item with media, perhaps a file's, and how many rows were prefilled for it."""
        if isinstance(item, Chunk | Clip):
            return item, 0
        engine = self._engine_of(tenant)
        pending = await engine.run(lambda own: own.session.chunk_builder.prepare(item[item["type"]]))
        if file is not None:
            await asyncio.to_thread(self._files.begin, tenant, file, [chunk.ids[0] for chunk in pending.chunks])

        def add(own: Engine) -> tuple[Chunk | Clip, int]:
            builder = own.session.chunk_builder
            before = builder.captured_tokens
            return builder.add(pending), builder.captured_tokens - before

        return await engine.run(add)

    async def _item(self, tenant: Tenant, part: MediaContent) -> MediaItem:
        """Return a file's chunks where they are known, else a content item with what was decoded."""
        if isinstance(part, FileContent) and part.file.file_id is not None:
            return await self._file_item(tenant, part.file.file_id)
        kind, data = await self._fetcher.fetch(part)
        # Not on the model's thread: what is slow to decode holds up its own request alone.
        media = await asyncio.to_thread(load_media, data, kind, limits=self._limits)
        return {"type": kind or "file", kind or "file": media}

    async def _file_item(self, tenant: Tenant, id: str) -> MediaItem:
        return await asyncio.to_thread(self._read_file, tenant, id, self._engine_of(tenant).store)

    def _read_file(self, tenant: Tenant, id: str, store: TenantStore) -> MediaItem:
        """Return a file's chunks, or what is decoded of it where one is gone, another model's, or not made yet."""
        entry = self._files.entry(tenant, id)
        chunks = [chunk for chunk in map(store.find, entry.chunks) if chunk is not None and chunk.model == self._model]
        if not chunks or len(chunks) < len(entry.chunks):
            return {"type": "file", "file": load_media(self._files.read(tenant, id), limits=self._limits)}
        if entry.kind in ("video", "document"):
            return Clip(entry.id, "video" if entry.kind == "video" else "document", tuple(chunks))
        return chunks[0]

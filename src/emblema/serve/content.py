"""The parts of requests: files, addresses and caches become texts, chunks, and media that are decoded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.engine import Engine
from emblema.engine.warming import warm
from emblema.errors import CapacityError
from emblema.kv.chunk import Chunk, Clip
from emblema.media.settings import PLAIN, MediaSettings
from emblema.serve.caches import CachePart, CacheStore
from emblema.serve.faults import ServeError, missing
from emblema.serve.files import PROCESSED, FileStore
from emblema.serve.held_bytes import Holding
from emblema.serve.keys import Tenant
from emblema.serve.media_reading import MediaReader
from emblema.serve.messages import MediaItem, ReadItem
from emblema.serve.parts import CacheContent, FileContent, MediaContent
from emblema.session.chunk_builder import PendingMedia
from emblema.session.prompt_reader import slid
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

    items: Sequence[ReadItem]
    written: int = 0
    remark: str | None = None


class ContentReader:
    """Reads the parts of requests, with a tenant's engine for the model of a fingerprint."""

    def __init__(
        self,
        files: FileStore,
        caches: CacheStore,
        engine_of: Callable[[Tenant], AsyncEngine],
        reader: MediaReader,
        model: str,
    ) -> None:
        self._files, self._caches, self._engine_of = files, caches, engine_of
        self._reader, self._tables, self._model = reader, reader.pools.tables, model

    async def read(
        self, tenant: Tenant, part: MediaContent | CacheContent, holding: Holding, seconds: float | None = None
    ) -> ReadPart:
        """Return what a part of a request stands for, which the store then keeps for so many seconds at least.

        Raises:
            ServeError: there is no such file or cache, or the request's media are too large.
            BusyError: too much of the tenant's, or of all media, is held already.
            MediaError: an address cannot be fetched or is refused, or the file cannot be decoded.
        """
        run = self._tables.run
        if isinstance(part, CacheContent):
            entry = await run(tenant.owner, self._caches.entry, tenant, part.cache.cache_id)
            items: list[ReadItem] = [
                value if kind == "text" else await self._file_item(tenant, value, holding)
                for kind, value in entry.parts
            ]
            return ReadPart(items)
        item = await self._item(tenant, part, holding)
        has_slid = isinstance(part, FileContent) and part.slid
        if seconds is None and not has_slid:
            return ReadPart([item])
        piece, written = await self._made(tenant, item)
        shown = slid(piece) if has_slid else piece
        if seconds is None:
            return ReadPart([shown], written)
        chunks = (piece,) if isinstance(piece, Chunk) else piece.chunks
        held = {chunk.id: chunk.bytes + chunk.encoded.bytes for chunk in chunks}
        try:
            made = WarmParts(piece.tokens, held)
            await run(tenant.owner, self._caches.keep_part, tenant, seconds, made, written > 0)
        except (ServeError, CapacityError) as error:
            return ReadPart([shown], written, f"a part is not kept: {error}")
        return ReadPart([shown], written)

    async def warm(self, tenant: Tenant, parts: Sequence[CachePart]) -> WarmParts:
        """Prefill parts in their order, and return what the store has of them; errors as `read` and `warming.warm`."""
        pieces = [value if kind == "text" else await self.prefill_file(tenant, value) for kind, value in parts]
        return await warm(self._engine_of(tenant), pieces)

    async def prefill_file(self, tenant: Tenant, id: str) -> Chunk | Clip:
        """Return a file's chunks, made now where they are not known; errors as `read`."""
        run = self._tables.run
        with self._reader.held.open(tenant.owner) as holding:
            item = await self._file_item(tenant, id, holding)
            holding.settle()
            piece, _ = await self._made(tenant, item, id)
        if piece is not item:
            chunks = [piece.id] if isinstance(piece, Chunk) else [chunk.id for chunk in piece]
            if not await run(tenant.owner, self._files.note, tenant, id, PROCESSED, None, piece.kind, chunks):
                await self.forget(tenant, chunks)
                await run(tenant.owner, self._files.end, tenant.owner, id)
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
            ids = [chunk.ids[0] for chunk in pending.chunks]
            await self._tables.run(tenant.owner, self._files.begin, tenant, file, ids)

        def add(own: Engine) -> tuple[Chunk | Clip, int]:
            builder = own.session.chunk_builder
            before = builder.captured_tokens
            return builder.add(pending), builder.captured_tokens - before

        return await engine.run(add)

    async def _item(self, tenant: Tenant, part: MediaContent, holding: Holding) -> MediaItem:
        """Return a file's chunks where they are known, else a content item with what was decoded."""
        settings, file = part.settings, part.named.file_id
        if file is not None:
            if settings == PLAIN:
                return await self._file_item(tenant, file, holding)
            kind, data = None, await self._tables.run(tenant.owner, self._files.read, tenant, file)
        else:
            kind, data = part.kind, await self._reader.fetch(tenant, part.named.address)
        return {"type": kind or "file", kind or "file": await self._pending(tenant, data, kind, holding, settings)}

    async def _pending(
        self, tenant: Tenant, data: bytes, kind: str | None, holding: Holding, settings: MediaSettings = PLAIN
    ) -> PendingMedia:
        """Decode a file and make the encoder's input of it, so that the model's thread has the encoder's work alone."""
        builder, inputs = self._engine_of(tenant).engine.session.chunk_builder, self._reader.pools.inputs
        before = holding.decoded
        media = await self._reader.load(tenant, data, kind, holding, settings)
        pending = await inputs.run(tenant.owner, builder.prepare, media)
        del media
        if await inputs.run(tenant.owner, lambda: any(builder.find(chunk) is not None for chunk in pending.chunks)):
            # What the store has is not encoded again.
            return pending
        made = 0
        for chunk in pending.chunks:
            if chunk.input is not None:
                await inputs.run(tenant.owner, chunk.input)
                made += chunk.input.bytes
        holding.exchange(holding.decoded - before, made)
        return pending

    async def _file_item(self, tenant: Tenant, id: str, holding: Holding) -> MediaItem:
        found = await self._tables.run(tenant.owner, self._read_file, tenant, id, self._engine_of(tenant).store)
        if isinstance(found, bytes):
            return {"type": "file", "file": await self._pending(tenant, found, None, holding)}
        return found

    def _read_file(self, tenant: Tenant, id: str, store: TenantStore) -> Chunk | Clip | bytes:
        """Return a file's chunks; its bytes where one of them is gone, another model's, or not made yet."""
        entry = self._files.entry(tenant, id)
        chunks = [chunk for chunk in map(store.find, entry.chunks) if chunk is not None and chunk.model == self._model]
        if not chunks or len(chunks) < len(entry.chunks):
            return self._files.read(tenant, id)
        if entry.kind in ("video", "document"):
            return Clip(entry.id, "video" if entry.kind == "video" else "document", tuple(chunks))
        return chunks[0]

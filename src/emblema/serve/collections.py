"""Collections of the embedded engine: what the administrator lets every tenant's model look up (MPIC, section 3.1)."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.engine import Engine
from emblema.engine.retrieval import Retrieval
from emblema.errors import MediaError
from emblema.library.dynamic import DynamicLibrary
from emblema.library.items import NAME_LENGTH, LibraryItem
from emblema.serve.client_body import ClientBody
from emblema.serve.faults import ServeError, missing
from emblema.serve.files import FileStore
from emblema.serve.keys import Tenant
from emblema.serve.media_reading import MediaReader
from emblema.serve.messages import ChatRequest
from emblema.serve.settings import ServeSettings
from emblema.serve.work_pools import NOBODY

Told = dict[str, Any]
"""A collection as clients read it."""


def _readable(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("give printable characters")
    return name


Name = Annotated[str, Field(max_length=NAME_LENGTH), AfterValidator(_readable)]


class CollectionItem(ClientBody):
    """A file of the administrator's, or a text, under a name."""

    name: Name
    file_id: str | None = Field(None, max_length=200)
    text: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file_id is None) == (self.text is None):
            raise ValueError("give a file_id or a text, one of the two")
        return self


class Collections:
    """The collections of an engine on the shared library.

    Args:
        shared: the engine.
        files: of all tenants.
        reader: of media.
    """

    def __init__(self, shared: AsyncEngine, files: FileStore, reader: MediaReader) -> None:
        self._shared, self._files, self._reader = shared, files, reader

    async def told(self, tenant: Tenant) -> list[Told]:
        """Return all collections, without their items."""
        engine = self._shared.engine

        def read() -> list[Told]:
            return [_told(engine.collection(name), items=False) for name in engine.collections]

        return await self._reader.pools.tables.run(tenant.owner, read)

    async def one(self, tenant: Tenant, name: str) -> Told:
        """Return a collection as it is now; `ServeError` where there is none."""
        engine = self._shared.engine
        return await self._reader.pools.tables.run(tenant.owner, lambda: _told(_existing(engine, name)))

    async def write(self, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> Told:
        """Make all items' rows, in turns with other requests, and then the version that holds them."""
        made, run = {}, self._reader.pools.tables.run
        for item in items:
            source = None if item.file_id is None else await run(tenant.owner, self._files.read, tenant, item.file_id)
            options = {} if item.text is None else {"text": item.text}
            try:
                with self._reader.held.open(tenant.owner) as holding:
                    media = None if source is None else await self._reader.load(tenant, source, None, holding)
                    piece = await self._shared.add(media, **options)
                made[item.name] = LibraryItem(source, options, piece)
            except MediaError as error:
                raise ServeError(400, f"the item {item.name!r} cannot be read: {error}", None, "items") from error

        def switch(engine: Engine) -> DynamicLibrary:
            library = engine.collection(name)
            library.replace(made)
            return library

        return await run(tenant.owner, _told, await self._shared.run(switch))

    async def delete(self, name: str) -> None:
        """Delete a collection, and what was made for it alone; `ServeError` where there is none."""
        library = await self._reader.pools.tables.run(NOBODY, _existing, self._shared.engine, name)
        await self._shared.run(lambda engine: library.replace({}))


def _existing(engine: Engine, name: str) -> DynamicLibrary:
    if name not in engine.collections:
        raise missing("collection", name)
    return engine.collection(name)


def _told(library: DynamicLibrary, items: bool = True) -> Told:
    with library.snapshot() as now:
        entries = list(now.entries.values())
        told: Told = {
            "id": library.name,
            "object": "collection",
            "version": now.version,
            "count": len(entries),
            "tokens": sum(entry.tokens for entry in entries),
            "bytes": sum(entry.bytes for entry in entries),
        }
        listed = [{"name": entry.name, "kind": entry.kind, "tokens": entry.tokens} for entry in entries]
        return told | ({"items": listed} if items else {})


def retrieval_of(body: ChatRequest, engine: Engine, settings: ServeSettings) -> Retrieval | None:
    """Return how what a request's model asks for is answered; None where it names no collection."""
    if not body.collections:
        return None
    libraries = tuple(_existing(engine, name) for name in dict.fromkeys(body.collections))
    return Retrieval(libraries, settings.ask_before, settings.ask_after, **body.rules(settings))

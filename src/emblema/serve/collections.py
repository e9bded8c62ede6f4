"""Collections of the embedded engine: what the administrator lets every tenant's model look up (MPIC, section 3.1)."""

import asyncio
from collections.abc import Sequence

from emblema.engine.async_engine import AsyncEngine
from emblema.engine.engine import Engine
from emblema.engine.retrieval import Retrieval
from emblema.errors import MediaError
from emblema.library.dynamic import DynamicLibrary
from emblema.library.items import LibraryItem
from emblema.serve.collection_items import CollectionEntry, CollectionItem, Collections, ItemEntry
from emblema.serve.faults import ServeError, missing
from emblema.serve.files import FileStore
from emblema.serve.keys import Tenant
from emblema.serve.messages import ChatRequest
from emblema.serve.settings import ServeSettings


class EngineCollections(Collections):
    """The collections of an engine on the shared library.

    Args:
        shared: the engine.
        files: of all tenants.
    """

    def __init__(self, shared: AsyncEngine, files: FileStore) -> None:
        self._shared, self._files = shared, files

    def entries(self) -> list[CollectionEntry]:
        engine = self._shared.engine
        return [_entry(engine.collection(name)) for name in engine.collections]

    def entry(self, name: str) -> CollectionEntry:
        return _entry(_existing(self._shared.engine, name))

    async def write(self, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> CollectionEntry:
        """Make all items' rows, in turns with other requests, and then the version that holds them."""
        made = {}
        for item in items:
            source = None if item.file_id is None else await asyncio.to_thread(self._files.read, tenant, item.file_id)
            options = {} if item.text is None else {"text": item.text}
            try:
                made[item.name] = LibraryItem(source, options, await self._shared.add(source, **options))
            except MediaError as error:
                raise ServeError(400, f"the item {item.name!r} cannot be read: {error}", None, "items") from error

        def switch(engine: Engine) -> DynamicLibrary:
            library = engine.collection(name)
            library.replace(made)
            return library

        return await asyncio.to_thread(_entry, await self._shared.run(switch))

    async def delete(self, name: str) -> None:
        library = await asyncio.to_thread(_existing, self._shared.engine, name)
        await self._shared.run(lambda engine: library.replace({}))


def _existing(engine: Engine, name: str) -> DynamicLibrary:
    if name not in engine.collections:
        raise missing("collection", name)
    return engine.collection(name)


def _entry(library: DynamicLibrary) -> CollectionEntry:
    with library.snapshot() as now:
        entries = list(now.entries.values())
        items = tuple(ItemEntry(entry.name, entry.kind, entry.tokens) for entry in entries)
        return CollectionEntry(library.name, now.version, sum(entry.bytes for entry in entries), items)


def retrieval_of(body: ChatRequest, engine: Engine, settings: ServeSettings) -> Retrieval | None:
    """Return how what a request's model asks for is answered; None where it names no collection."""
    if not body.collections:
        return None
    libraries = tuple(_existing(engine, name) for name in dict.fromkeys(body.collections))
    return Retrieval(libraries, settings.ask_before, settings.ask_after, **body.rules(settings))

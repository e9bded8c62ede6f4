"""Collections, which an administrator lets every tenant's model look up (MPIC, section 3.1), and their routes."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from fastapi import Depends
from pydantic import AfterValidator, Field, model_validator

from emblema.engine.engine import Engine
from emblema.engine.retrieval import Retrieval
from emblema.errors import MediaError
from emblema.library.dynamic import DynamicLibrary
from emblema.library.items import NAME_LENGTH, LibraryItem
from emblema.serve.client_body import ClientBody
from emblema.serve.faults import ServeError, missing
from emblema.serve.host import AskedPage, Owner
from emblema.serve.keys import Tenant
from emblema.serve.messages import ChatRequest
from emblema.serve.reply_types import ListedPage
from emblema.serve.service import Served, Service
from emblema.serve.settings import ServeSettings

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


class CollectionBody(ClientBody):
    """All items of a collection."""

    items: list[CollectionItem] = Field(min_length=1, max_length=10_000)

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        if len({item.name for item in self.items}) < len(self.items):
            raise ValueError("give each item a name of its own")
        return self


class NewCollection(CollectionBody):
    """A collection that is not there yet."""

    name: Name


async def administrator(tenant: Owner) -> Tenant:
    """Return whose a request is; `ServeError` where it may not write collections."""
    if not tenant.administrator:
        raise ServeError(403, "collections are written with an administrator's key", "not_administrator")
    return tenant


Administrator = Annotated[Tenant, Depends(administrator)]


async def make(body: NewCollection, service: Served, tenant: Administrator) -> Told:
    """Make a collection."""
    if body.name in service.shared.engine.collections:
        raise ServeError(409, f"there is a collection {body.name!r} already: put a new version", "collection_exists")
    return await _write(service, tenant, body.name, body.items)


async def collections(service: Served, tenant: Owner, wanted: AskedPage) -> ListedPage[Told]:
    """List all collections by name, from the last on if asked."""
    engine = service.shared.engine

    def read() -> list[Told]:
        return [_told(engine.collection(name), items=False) for name in engine.collections]

    known = await service.pools.tables.run(tenant.owner, read)
    return wanted.page(known, "asc")


async def collection(name: str, service: Served, tenant: Owner) -> Told:
    """Return a collection as it is now, with its items."""
    engine = service.shared.engine
    return await service.pools.tables.run(tenant.owner, lambda: _told(_existing(engine, name)))


async def replace(name: str, body: CollectionBody, service: Served, tenant: Administrator) -> Told:
    """Put a new version in place of the present one, all at once; replies under way keep theirs."""
    await service.pools.tables.run(tenant.owner, _existing, service.shared.engine, name)
    return await _write(service, tenant, name, body.items)


async def delete(name: str, service: Served, tenant: Administrator) -> Told:
    """Delete a collection, and what was made for it alone."""
    library = await service.pools.tables.run(tenant.owner, _existing, service.shared.engine, name)
    await service.shared.run(lambda engine: library.replace({}))
    return {"id": name, "object": "collection", "deleted": True}


async def _write(service: Service, tenant: Tenant, name: str, items: Sequence[CollectionItem]) -> Told:
    """Make all items' rows, in turns with other requests, and then the version that holds them."""
    made, run = {}, service.pools.tables.run
    for item in items:
        source = None if item.file_id is None else await run(tenant.owner, service.files.read, tenant, item.file_id)
        options = {} if item.text is None else {"text": item.text}
        try:
            with service.held.open(tenant.owner) as holding:
                media = None if source is None else await service.reader.load(tenant, source, None, holding)
                piece = await service.shared.add(media, **options)
            made[item.name] = LibraryItem(source, options, piece)
        except MediaError as error:
            raise ServeError(400, f"the item {item.name!r} cannot be read: {error}", None, "items") from error

    def switch(engine: Engine) -> DynamicLibrary:
        library = engine.collection(name)
        library.replace(made)
        return library

    return await run(tenant.owner, _told, await service.shared.run(switch))


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

"""Collections: what the administrator lets every tenant's model look up while it answers (MPIC, section 3.1)."""

import asyncio
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends
from pydantic import AfterValidator, BaseModel, Field, model_validator

from emblema.engine.engine import Engine
from emblema.engine.retrieval import Retrieval
from emblema.errors import MediaError
from emblema.library.dynamic import DynamicLibrary
from emblema.library.items import NAME_LENGTH, LibraryItem
from emblema.serve.faults import ServeError, missing
from emblema.serve.host import Owner
from emblema.serve.keys import Tenant
from emblema.serve.messages import ChatRequest
from emblema.serve.service import Served, Service
from emblema.serve.settings import ServeSettings


def _readable(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("give printable characters")
    return name


Name = Annotated[str, Field(max_length=NAME_LENGTH), AfterValidator(_readable)]


class CollectionItem(BaseModel):
    """A file of the administrator's, or a text, under a name."""

    name: Name
    file_id: str | None = Field(None, max_length=200)
    text: str | None = Field(None, min_length=1)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.file_id is None) == (self.text is None):
            raise ValueError("give a file_id or a text, one of the two")
        return self


class CollectionBody(BaseModel):
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


def administrator(tenant: Owner) -> Tenant:
    """Return whose a request is; `ServeError` where it may not write collections."""
    if not tenant.administrator:
        raise ServeError(403, "collections are written with an administrator's key", "not_administrator")
    return tenant


Administrator = Annotated[Tenant, Depends(administrator)]


def collection_routes() -> APIRouter:
    """Return the routes of collections."""
    router = APIRouter()
    router.post("/v1/collections")(make)
    router.get("/v1/collections")(collections)
    router.get("/v1/collections/{name}")(collection)
    router.put("/v1/collections/{name}")(replace)
    router.delete("/v1/collections/{name}")(delete)
    return router


async def make(body: NewCollection, service: Served, tenant: Administrator) -> dict[str, Any]:
    """Make a collection."""
    if body.name in await asyncio.to_thread(lambda: service.shared.engine.collections):
        raise ServeError(409, f"there is a collection {body.name!r} already: put a new version", "collection_exists")
    return await _write(service, tenant, body.name, body.items)


def collections(service: Served, tenant: Owner) -> dict[str, Any]:
    """List all collections, by name."""
    engine = service.shared.engine
    found = [_body(engine.collection(name)) for name in engine.collections]
    return {"object": "list", "data": found, "has_more": False}


def collection(name: str, service: Served, tenant: Owner) -> dict[str, Any]:
    """Return a collection as it is now, with its items."""
    return _body(_existing(service.shared.engine, name), True)


async def replace(name: str, body: CollectionBody, service: Served, tenant: Administrator) -> dict[str, Any]:
    """Put a new version in place of the present one, all at once; replies under way keep theirs."""
    await asyncio.to_thread(_existing, service.shared.engine, name)
    return await _write(service, tenant, name, body.items)


async def delete(name: str, service: Served, tenant: Administrator) -> dict[str, Any]:
    """Delete a collection, and what was made for it alone."""
    library = await asyncio.to_thread(_existing, service.shared.engine, name)
    await service.shared.run(lambda engine: library.replace({}))
    return {"id": name, "object": "collection", "deleted": True}


async def _write(service: Service, tenant: Tenant, name: str, items: list[CollectionItem]) -> dict[str, Any]:
    """Make all items' rows, in turns with other requests, and then the version that holds them."""
    made = {}
    for item in items:
        source = None if item.file_id is None else await asyncio.to_thread(service.files.path, tenant, item.file_id)
        options = {} if item.text is None else {"text": item.text}
        try:
            made[item.name] = LibraryItem(source, options, await service.shared.add(source, **options))
        except MediaError as error:
            raise ServeError(400, f"the item {item.name!r} cannot be read: {error}", None, "items") from error

    def switch(engine: Engine) -> DynamicLibrary:
        library = engine.collection(name)
        library.replace(made)
        return library

    return await asyncio.to_thread(_body, await service.shared.run(switch), True)


def _existing(engine: Engine, name: str) -> DynamicLibrary:
    if name not in engine.collections:
        raise missing("collection", name)
    return engine.collection(name)


def _body(library: DynamicLibrary, items: bool = False) -> dict[str, Any]:
    with library.snapshot() as now:
        entries = list(now.entries.values())
        body = {
            "id": library.name,
            "object": "collection",
            "version": now.version,
            "count": len(entries),
            "tokens": sum(entry.tokens for entry in entries),
            "bytes": sum(entry.bytes for entry in entries),
        }
    told = [{"name": entry.name, "kind": entry.kind, "tokens": entry.tokens} for entry in entries]
    return body | ({"items": told} if items else {})


def retrieval_of(body: ChatRequest, engine: Engine, settings: ServeSettings) -> Retrieval | None:
    """Return how what a request's model asks for is answered; None where it names no collection."""
    if not body.collections:
        return None
    wished = {} if body.retrieval is None else body.retrieval.model_dump(exclude_unset=True)
    rules = {"start": settings.ask_start or None, "end": settings.ask_end} | wished
    libraries = tuple(_existing(engine, name) for name in dict.fromkeys(body.collections))
    return Retrieval(libraries, settings.ask_before, settings.ask_after, **rules)

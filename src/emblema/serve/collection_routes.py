"""Routes of collections, for the server of any engine."""

import asyncio
from typing import Annotated, Any, Self

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field, model_validator

from emblema.serve.collection_items import CollectionEntry, CollectionItem, Name
from emblema.serve.faults import ServeError
from emblema.serve.host import Hosted, Owner
from emblema.serve.keys import Tenant


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


async def make(body: NewCollection, host: Hosted, tenant: Administrator) -> dict[str, Any]:
    """Make a collection."""
    known = await asyncio.to_thread(host.collections.entries)
    if body.name in {entry.name for entry in known}:
        raise ServeError(409, f"there is a collection {body.name!r} already: put a new version", "collection_exists")
    return _body(await host.collections.write(tenant, body.name, body.items), True)


def collections(host: Hosted, tenant: Owner) -> dict[str, Any]:
    """List all collections, by name."""
    return {"object": "list", "data": [_body(entry) for entry in host.collections.entries()], "has_more": False}


def collection(name: str, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Return a collection as it is now, with its items."""
    return _body(host.collections.entry(name), True)


async def replace(name: str, body: CollectionBody, host: Hosted, tenant: Administrator) -> dict[str, Any]:
    """Put a new version in place of the present one, all at once; replies under way keep theirs."""
    await asyncio.to_thread(host.collections.entry, name)
    return _body(await host.collections.write(tenant, name, body.items), True)


async def delete(name: str, host: Hosted, tenant: Administrator) -> dict[str, Any]:
    """Delete a collection, and what was made for it alone."""
    await host.collections.delete(name)
    return {"id": name, "object": "collection", "deleted": True}


def _body(entry: CollectionEntry, items: bool = False) -> dict[str, Any]:
    body = {
        "id": entry.name,
        "object": "collection",
        "version": entry.version,
        "count": len(entry.items),
        "tokens": entry.tokens,
        "bytes": entry.bytes,
    }
    told = [{"name": item.name, "kind": item.kind, "tokens": item.tokens} for item in entry.items]
    return body | ({"items": told} if items else {})

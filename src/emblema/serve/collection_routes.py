"""Routes of collections."""

from typing import Annotated, Any, Self

from fastapi import Depends
from pydantic import Field, model_validator

from emblema.serve.client_body import ClientBody
from emblema.serve.collections import CollectionItem, Name
from emblema.serve.faults import ServeError
from emblema.serve.host import Owner
from emblema.serve.keys import Tenant
from emblema.serve.listing import AskedPage
from emblema.serve.reply_types import ListedPage
from emblema.serve.service import Served


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


async def make(body: NewCollection, service: Served, tenant: Administrator) -> dict[str, Any]:
    """Make a collection."""
    if body.name in {known["id"] for known in await service.collections.told(tenant)}:
        raise ServeError(409, f"there is a collection {body.name!r} already: put a new version", "collection_exists")
    return await service.collections.write(tenant, body.name, body.items)


async def collections(service: Served, tenant: Owner, wanted: AskedPage) -> ListedPage[dict[str, Any]]:
    """List all collections by name, from the last on if asked."""
    known = await service.collections.told(tenant)
    return wanted.page(known[:: -1 if wanted.order == "desc" else 1], lambda told: str(told["id"]), lambda told: told)


async def collection(name: str, service: Served, tenant: Owner) -> dict[str, Any]:
    """Return a collection as it is now, with its items."""
    return await service.collections.one(tenant, name)


async def replace(name: str, body: CollectionBody, service: Served, tenant: Administrator) -> dict[str, Any]:
    """Put a new version in place of the present one, all at once; replies under way keep theirs."""
    await service.collections.one(tenant, name)
    return await service.collections.write(tenant, name, body.items)


async def delete(name: str, service: Served, tenant: Administrator) -> dict[str, Any]:
    """Delete a collection, and what was made for it alone."""
    await service.collections.delete(name)
    return {"id": name, "object": "collection", "deleted": True}

"""Routes of caches, for the server of any engine."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from emblema.errors import DeadlineError
from emblema.serve.caches import CacheEntry
from emblema.serve.faults import ServeError, missing
from emblema.serve.host import Host, Hosted, Owner
from emblema.serve.parts import LONGEST_KEPT, MediaContent, TextContent, refuse_large, text_length


class CacheTime(BaseModel):
    """How long a cache is kept, in seconds from now."""

    ttl: int = Field(3_600, ge=1, le=LONGEST_KEPT)


class CacheBody(CacheTime):
    """The body of `POST /v1/caches`. Fields that are not known are passed over."""

    content: list[Annotated[TextContent | MediaContent, Field(discriminator="type")]] = Field(
        min_length=1, max_length=10_000
    )
    model: str | None = Field(None, max_length=1_000)
    name: str | None = Field(None, max_length=200)


def cache_routes() -> APIRouter:
    """Return the routes of caches."""
    router = APIRouter()
    router.post("/v1/caches")(make)
    router.get("/v1/caches")(caches)
    router.get("/v1/caches/{id}")(cache)
    router.patch("/v1/caches/{id}")(extend)
    router.delete("/v1/caches/{id}")(delete)
    return router


async def make(body: CacheBody, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Keep the rows of some parts, and the patches of their order; on disk when this is answered."""
    if body.model not in (None, host.settings.name):
        raise missing("model", body.model or "")
    media = sum(not isinstance(part, TextContent) for part in body.content)
    if media == 0:
        raise ServeError(400, "a cache needs a part with media: text alone is not kept", None, "content")
    refuse_large(host.settings, media, text_length(body.content))
    try:
        async with asyncio.timeout(host.settings.deadline):
            entry = await host.cache_maker.make(tenant, body.content, body.name, body.ttl)
    except TimeoutError as error:
        raise DeadlineError("the cache was not made by its deadline: give it fewer parts, or ask again") from error
    return _body(host, entry) | {"content": cache_content(entry)}


def caches(host: Hosted, tenant: Owner) -> dict[str, Any]:
    """List the tenant's caches, the newest first."""
    found = [_body(host, entry) for entry in host.caches.entries(tenant)]
    return {"object": "list", "data": found, "has_more": False}


def cache(id: str, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Return what is known of a cache."""
    entry = host.caches.entry(tenant, id)
    return _body(host, entry) | {"content": cache_content(entry)}


async def extend(id: str, body: CacheTime, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Let a cache end so many seconds from now."""
    entry = await host.cache_maker.extend(tenant, id, body.ttl)
    return _body(host, entry) | {"content": cache_content(entry)}


def delete(id: str, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Delete a cache; its files stay."""
    host.caches.delete(tenant, id)
    return {"id": id, "object": "cache", "deleted": True}


def _body(host: Host, entry: CacheEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "object": "cache",
        "model": host.settings.name,
        "name": entry.name,
        "created_at": int(entry.created),
        "expires_at": int(entry.expires),
        "tokens": entry.tokens,
        "bytes": entry.bytes,
    }


def cache_content(entry: CacheEntry) -> list[dict[str, Any]]:
    """Return a cache's parts, as a message has them."""
    return [
        {"type": "text", "text": value} if kind == "text" else {"type": "file", "file": {"file_id": value}}
        for kind, value in entry.parts
    ]

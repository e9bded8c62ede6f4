"""Routes of caches, for the server of any engine."""

import asyncio
from typing import Annotated, Any

from fastapi import Request, Response
from pydantic import Field

from emblema.errors import EmblemaError
from emblema.serve.caches import CacheEntry
from emblema.serve.client_body import ClientBody
from emblema.serve.deadlines import within
from emblema.serve.faults import ServeError, missing
from emblema.serve.files import PROCESSED
from emblema.serve.host import AskedPage, Host, Hosted, Owner
from emblema.serve.parts import LONGEST_KEPT, MediaContent, TextContent, refuse_large, text_length
from emblema.serve.reply_types import CacheObject, DeletedCache, ListedPage


class CacheTime(ClientBody):
    """How long a cache is kept, in seconds from now."""

    ttl: int = Field(3_600, ge=1, le=LONGEST_KEPT)


class CacheBody(CacheTime):
    """The body of `POST /v1/caches`."""

    content: list[Annotated[TextContent | MediaContent, Field(discriminator="type")]] = Field(
        min_length=1, max_length=10_000
    )
    model: str | None = Field(None, max_length=1_000)
    name: str | None = Field(None, max_length=200)


async def make(
    body: CacheBody, request: Request, response: Response, host: Hosted, tenant: Owner, wait: bool = False
) -> CacheObject:
    """Keep some parts; their rows and the patches of their order are made after the answer or, with `wait`, before."""
    if body.model not in (None, host.model):
        raise missing("model", body.model or "")
    media = sum(not isinstance(part, TextContent) for part in body.content)
    if media == 0:
        raise ServeError(400, "a cache needs a part with media: text alone is not kept", None, "content")
    refuse_large(host.settings, media, text_length(body.content))

    opening = host.cache_maker.open(tenant, body.content, body.name, body.ttl)
    entry = await within(request, host.settings.deadline, opening, "the cache's parts were not read by the deadline")
    making = host.cache_maker.make_later(tenant, entry.id)

    async def made() -> CacheEntry | EmblemaError:
        return await asyncio.shield(making)

    if wait:
        late = f"the cache {entry.id} is not made yet: ask for it by this id"
        found = await within(request, host.settings.deadline, made(), late)
        if isinstance(found, EmblemaError):
            # Who was told of an error holds nothing.
            await host.pools.tables.run(tenant.owner, host.caches.release, tenant, entry.id)
            raise found
        entry = found
    if entry.status == PROCESSED:
        response.status_code = 200
    return _whole(host, entry)


async def caches(host: Hosted, tenant: Owner, wanted: AskedPage) -> ListedPage[CacheObject]:
    """List the tenant's caches, the newest first unless asked otherwise."""
    known = await host.pools.tables.run(tenant.owner, host.caches.entries, tenant)
    return wanted.page([_body(host, entry) for entry in known])


async def cache(id: str, host: Hosted, tenant: Owner) -> CacheObject:
    """Return what is known of a cache."""
    entry = await host.pools.tables.run(tenant.owner, host.caches.entry, tenant, id)
    return _whole(host, entry)


async def extend(id: str, body: CacheTime, host: Hosted, tenant: Owner) -> CacheObject:
    """Let a cache end so many seconds from now."""
    entry = await host.cache_maker.extend(tenant, id, body.ttl)
    return _whole(host, entry)


async def delete(id: str, host: Hosted, tenant: Owner) -> DeletedCache:
    """Let go of a cache once; it is deleted where nobody else made it. Its files stay."""
    left = await host.pools.tables.run(tenant.owner, host.caches.release, tenant, id)
    return {"id": id, "object": "cache", "deleted": True, "holders": left}


def _body(host: Host, entry: CacheEntry) -> CacheObject:
    return {
        "id": entry.id,
        "object": "cache",
        "model": host.model,
        "name": entry.name,
        "created_at": int(entry.created),
        "expires_at": int(entry.expires),
        "tokens": entry.tokens,
        "bytes": entry.bytes,
        "status": entry.status,
        "status_details": entry.detail,
        "holders": entry.holders,
    }


def _whole(host: Host, entry: CacheEntry) -> CacheObject:
    return {**_body(host, entry), "content": cache_content(entry)}


def cache_content(entry: CacheEntry) -> list[dict[str, Any]]:
    """Return a cache's parts, as a message has them."""
    return [
        {"type": "text", "text": value} if kind == "text" else {"type": "file", "file": {"file_id": value}}
        for kind, value in entry.parts
    ]

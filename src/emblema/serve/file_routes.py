"""Routes of files, for the server of any engine."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response, UploadFile

from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, PROCESSED, FileEntry
from emblema.serve.host import Hosted, Owner

PURPOSES = ("user_data", "vision", "assistants")
SHORTEST, LONGEST = 3_600, 2_592_000
"""Seconds that a file may be kept for."""


def file_routes() -> APIRouter:
    """Return the routes of files."""
    router = APIRouter()
    router.post("/v1/files")(upload)
    router.get("/v1/files")(files)
    router.get("/v1/files/{id}")(file)
    router.get("/v1/files/{id}/content")(content)
    router.delete("/v1/files/{id}")(delete)
    return router


async def upload(
    request: Request,
    host: Hosted,
    tenant: Owner,
    file: UploadFile,
    purpose: Annotated[str, Form()] = "user_data",
) -> dict[str, Any]:
    """Keep a file; it is on disk when this is answered, and prefilled after it."""
    if purpose not in PURPOSES:
        raise ServeError(400, f"the purpose {purpose[:40]!r} is not one of {', '.join(PURPOSES)}", None, "purpose")
    seconds = _expiry(await request.form())
    data = await file.read(host.settings.file_bytes + 1)
    if len(data) > host.settings.file_bytes:
        raise ServeError(413, f"the file is larger than {host.settings.file_bytes} bytes", "file_too_large", "file")
    if not data:
        raise ServeError(400, "the file is empty", None, "file")
    name = (file.filename or "file")[:200]
    entry = await asyncio.to_thread(host.files.add, tenant, data, name, purpose, seconds)
    host.read_later(tenant, entry.id)
    return _file_body(entry)


def _expiry(form: Any) -> float | None:
    """Return how long a file is to be kept, as OpenAI's clients write it; None without end."""
    anchor, seconds = form.get("expires_after[anchor]"), form.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise ServeError(400, "expires_after counts from created_at", None, "expires_after")
    known = isinstance(seconds, str) and seconds.isdecimal() and len(seconds) <= 12
    if not known or not SHORTEST <= int(seconds) <= LONGEST:
        raise ServeError(400, f"expires_after takes {SHORTEST} to {LONGEST} seconds", None, "expires_after")
    return float(seconds)


async def files(
    host: Hosted, tenant: Owner, after: str | None = None, limit: int = 10_000, purpose: str | None = None
) -> dict[str, Any]:
    """List the tenant's files, the newest first."""
    found = [entry for entry in host.files.entries(tenant) if purpose in (None, entry.purpose)]
    if after is not None:
        ids = [entry.id for entry in found]
        found = found[ids.index(after) + 1 :] if after in ids else []
    limit = min(max(1, limit), 10_000)
    shown = [_file_body(entry) for entry in found[:limit]]
    ends = {"first_id": shown[0]["id"], "last_id": shown[-1]["id"]} if shown else {"first_id": None, "last_id": None}
    return {"object": "list", "data": shown, "has_more": len(found) > limit} | ends


async def file(id: str, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Return what is known of a file."""
    return _file_body(host.files.entry(tenant, id))


async def content(id: str, host: Hosted, tenant: Owner) -> Response:
    """Return a file's bytes."""
    data = await asyncio.to_thread(host.files.read, tenant, id)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def delete(id: str, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Delete a file, and what was made of it."""
    await host.delete_file(tenant, id)
    return {"id": id, "object": "file", "deleted": True}


def _file_body(entry: FileEntry) -> dict[str, Any]:
    return {
        "id": entry.id,
        "object": "file",
        "bytes": entry.bytes,
        "created_at": int(entry.created),
        "expires_at": None if entry.expires is None else int(entry.expires),
        "filename": entry.name,
        "purpose": entry.purpose,
        "status": entry.status,
        "status_details": entry.detail,
        "emblema": {
            "progress": float(entry.status in (PROCESSED, FAILED)),
            "kind": entry.kind,
            "chunks": len(entry.chunks),
        },
    }

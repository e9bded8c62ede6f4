"""Routes of files, for the server of any engine."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Response, UploadFile

from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, PROCESSED, FileEntry
from emblema.serve.host import Hosted, Owner

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
    host: Hosted,
    tenant: Owner,
    file: UploadFile,
    purpose: Annotated[Literal["user_data", "vision", "assistants"], Form()] = "user_data",
    anchor: Annotated[Literal["created_at"] | None, Form(alias="expires_after[anchor]")] = None,
    seconds: Annotated[int | None, Form(alias="expires_after[seconds]", ge=SHORTEST, le=LONGEST)] = None,
) -> dict[str, Any]:
    """Keep a file; it is on disk when this is answered, and prefilled after it."""
    if (anchor is None) != (seconds is None):
        raise ServeError(400, "expires_after needs both its anchor and its seconds", None, "expires_after")
    data = await file.read(host.settings.file_bytes + 1)
    if len(data) > host.settings.file_bytes:
        raise ServeError(413, f"the file is larger than {host.settings.file_bytes} bytes", "file_too_large", "file")
    if not data:
        raise ServeError(400, "the file is empty", None, "file")
    name = (file.filename or "file")[:200]
    entry = await asyncio.to_thread(host.files.add, tenant, data, name, purpose, seconds)
    host.read_later(tenant, entry.id)
    return _file_body(entry)


def files(
    host: Hosted, tenant: Owner, after: str | None = None, limit: int = 10_000, purpose: str | None = None
) -> dict[str, Any]:
    """List the tenant's files, the newest first."""
    found = [entry for entry in host.files.entries(tenant) if purpose in (None, entry.purpose)]
    if after is not None:
        ids = [entry.id for entry in found]
        found = found[ids.index(after) + 1 :] if after in ids else []
    limit = min(max(1, limit), 10_000)
    shown = [_file_body(entry) for entry in found[:limit]]
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"object": "list", "data": shown, "has_more": len(found) > limit, "first_id": first, "last_id": last}


def file(id: str, host: Hosted, tenant: Owner) -> dict[str, Any]:
    """Return what is known of a file."""
    return _file_body(host.files.entry(tenant, id))


def content(id: str, host: Hosted, tenant: Owner) -> Response:
    """Return a file's bytes."""
    data = host.files.read(tenant, id)
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

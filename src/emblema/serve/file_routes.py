"""Routes of files, for the server of any engine."""

from typing import Annotated, Literal

from fastapi import Form, Response, UploadFile

from emblema.serve.faults import ServeError
from emblema.serve.files import FAILED, PROCESSED, FileEntry
from emblema.serve.host import AskedPage, Held, Hosted, Owner
from emblema.serve.reply_types import DeletedFile, FileObject, ListedPage

SHORTEST, LONGEST = 3_600, 2_592_000
"""Seconds that a file may be kept for."""


async def upload(
    host: Hosted,
    tenant: Owner,
    file: UploadFile,
    purpose: Annotated[Literal["user_data", "vision", "assistants"], Form()] = "user_data",
    anchor: Annotated[Literal["created_at"] | None, Form(alias="expires_after[anchor]")] = None,
    seconds: Annotated[int | None, Form(alias="expires_after[seconds]", ge=SHORTEST, le=LONGEST)] = None,
) -> FileObject:
    """Keep a file; it is on disk when this is answered, and prefilled after it."""
    if (anchor is None) != (seconds is None):
        raise ServeError(400, "expires_after needs both its anchor and its seconds", None, "expires_after")
    data = await file.read(host.settings.file_bytes + 1)
    if len(data) > host.settings.file_bytes:
        raise ServeError(413, f"the file is larger than {host.settings.file_bytes} bytes", "file_too_large", "file")
    if not data:
        raise ServeError(400, "the file is empty", None, "file")
    name = (file.filename or "file")[:200]
    entry = await host.pools.tables.run(tenant.owner, host.files.add, tenant, data, name, purpose, seconds)
    host.read_later(tenant, entry.id)
    return _file_body(entry)


async def files(host: Hosted, tenant: Owner, wanted: AskedPage, purpose: str | None = None) -> ListedPage[FileObject]:
    """List the tenant's files, the newest first unless asked otherwise."""
    known = await host.pools.tables.run(tenant.owner, host.files.entries, tenant)
    return wanted.page([_file_body(entry) for entry in known if purpose in (None, entry.purpose)])


async def file(id: str, host: Hosted, tenant: Owner) -> FileObject:
    """Return what is known of a file."""
    return _file_body(await host.pools.tables.run(tenant.owner, host.files.entry, tenant, id))


async def content(id: str, host: Hosted, tenant: Owner, holding: Held) -> Response:
    """Return a file's bytes."""
    run = host.pools.tables.run
    # Counted before it is there, and until the client has it.
    holding.take_body((await run(tenant.owner, host.files.entry, tenant, id)).bytes)
    data = await run(tenant.owner, host.files.read, tenant, id)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(data, media_type="application/octet-stream", headers=headers)


async def delete(id: str, host: Hosted, tenant: Owner) -> DeletedFile:
    """Delete a file, and what was made of it."""
    await host.delete_file(tenant, id)
    return {"id": id, "object": "file", "deleted": True}


def _file_body(entry: FileEntry) -> FileObject:
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

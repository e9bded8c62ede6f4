"""Uploaded files: kept for a tenant under an id that follows from their bytes, and prefilled behind the upload."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from emblema.serve.database import keyed_id
from emblema.serve.faults import ServeError
from emblema.serve.keys import Tenant

_ID = "emblema 2026-11 file identity 1"
UPLOADED, PROCESSED, FAILED = "uploaded", "processed", "error"
Forget = Callable[[str, str, Sequence[str]], None]
"""Deletes chunks, given their owner, the tenant's name, and their ids."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What is known of a file.

    Attributes:
        id: `file-` and a digest of the tenant and the bytes.
        name, purpose: as the client said.
        created, expires: Unix times.
        status: `uploaded`, `processed` once it is prefilled, or `error`, with why in `detail`.
        kind: `image`, `video`, `document` or `audio`, once it was read.
        chunks: ids of its chunks, in order.
    """

    id: str
    name: str
    purpose: str
    bytes: int
    created: float
    expires: float | None
    status: str
    detail: str | None
    kind: str | None
    chunks: tuple[str, ...]


class FileStore(Protocol):
    """The files of all tenants, of one server or of several.

    A file's chunks are deleted first, then it is, so that a deletion that fails can be made again.
    """

    def add(
        self, tenant: Tenant, data: bytes, name: str, purpose: str, seconds: float | None, *, renew: bool = True
    ) -> FileEntry:
        """Keep a file; the same bytes again are the same file, with the new name and time if it is to `renew`.

        Raises:
            ServeError: the tenant's quota is used up.
            StoreError: it cannot be kept.
        """

    def entries(self, tenant: Tenant) -> tuple[FileEntry, ...]:
        """Return a tenant's files, the newest first."""

    def entry(self, tenant: Tenant, id: str) -> FileEntry:
        """Return what is known of a file; `ServeError` where the tenant has none of this id."""

    def read(self, tenant: Tenant, id: str) -> bytes:
        """Return a file's bytes; `ServeError` where the tenant has none of this id, or its bytes are lost."""

    def begin(self, tenant: Tenant, id: str, chunks: Sequence[str]) -> None:
        """Note which chunks are about to be made of a file: `forget_begun` finds them where nobody notes their end."""

    def note(
        self, tenant: Tenant, id: str, status: str, detail: str | None, kind: str | None, chunks: Sequence[str]
    ) -> bool:
        """Note how a file was read; return False where it was deleted meanwhile, and its chunks are to be forgotten."""

    def end(self, owner: str, id: str) -> None:
        """Note that the chunks that were begun of a deleted file are forgotten."""

    def delete(self, tenant: Tenant, entry: FileEntry) -> bool:
        """Delete a file, after its chunks; return False, and keep it, where others were made of it meanwhile."""

    def keep_until(self, tenant: Tenant, ids: Iterable[str], moment: float) -> None:
        """Let files not expire before a Unix time."""

    def unprocessed(self) -> list[tuple[str, str, str]]:
        """Return owner, tenant's name and id of the files that are not prefilled yet."""

    def expire(self) -> None:
        """Delete the files whose time is over; one that cannot be deleted is tried again the next time."""

    def forget_begun(self) -> None:
        """Delete the chunks of files that were deleted while a server that has ended made them."""

    def close(self) -> None:
        """Let go of connections."""


def file_id(owner: str, data: bytes) -> str:
    """Return the id of an owner's file, which follows from its bytes."""
    return keyed_id("file", _ID, owner, data)


def over_quota(total: int, quota: int) -> ServeError:
    """Return the error for files that would take more bytes than they may."""
    return ServeError(413, f"the files would take {total} bytes, the quota is {quota}: delete some")


def forget_nothing(owner: str, tenant: str, chunks: Sequence[str]) -> None:
    """Delete no chunks: a `Forget` for files of which nothing is made."""

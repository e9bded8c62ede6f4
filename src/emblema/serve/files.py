"""Uploaded files: kept for a tenant under an id that follows from their bytes, and prefilled behind the upload."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Row

from blake3 import blake3

from emblema.errors import EmblemaError, StoreError
from emblema.serve.database import Database
from emblema.serve.faults import ServeError, missing
from emblema.serve.keys import Tenant
from emblema.store.files import delete_durably, make_folder, write_whole
from emblema.store.identity import owner_digest

_LOG = logging.getLogger("emblema.serve")
_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    owner TEXT NOT NULL, id TEXT NOT NULL, name TEXT NOT NULL, purpose TEXT NOT NULL, bytes INTEGER NOT NULL,
    created REAL NOT NULL, expires REAL, tenant TEXT NOT NULL, status TEXT NOT NULL, detail TEXT, kind TEXT,
    chunks TEXT NOT NULL,
    PRIMARY KEY (owner, id)
)
"""
_ID = "emblema 2026-11 file identity 1"
UPLOADED, PROCESSED, FAILED = "uploaded", "processed", "error"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What is known of a file.

    Attributes:
        id: `file-` and a digest of the tenant and the bytes.
        name: as it was uploaded.
        purpose: as the client said.
        bytes: its size.
        created, expires: Unix times.
        status: `uploaded`, `processed` once it is prefilled, or `error`.
        detail: why it could not be read.
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


class FileStore:
    """The files of all tenants of a server, in the server's folder. A file is on disk before its upload is answered.

    A file's chunks are deleted first, then its bytes, then its entry, so that what a crash leaves can be deleted again.
    Once a deletion is answered, no power cut brings the file back.

    Args:
        folder: of the server.
        quota: bytes of a tenant's files together, where its key says nothing else.
        clock: returns Unix time in seconds.
        forget: deletes the chunks of a file whose time is over, given its owner and the tenant's name too.
    """

    def __init__(
        self,
        folder: Path,
        quota: int,
        clock: Callable[[], float] = time.time,
        forget: Callable[[str, str, Sequence[str]], None] = lambda owner, tenant, chunks: None,
    ) -> None:
        self._folder, self._quota, self._clock, self._forget = folder / "files", quota, clock, forget
        self._database = Database(folder / "files.sqlite", _TABLES)

    def add(
        self, tenant: Tenant, data: bytes, name: str, purpose: str, seconds: float | None, *, renew: bool = True
    ) -> FileEntry:
        """Keep a file; the same bytes again are the same file, with the new name and time if it is to `renew`.

        Raises:
            ServeError: the tenant's quota is used up.
            StoreError: it cannot be written.
        """
        self.expire()
        owner = owner_digest(tenant.salt)
        id = "file-" + blake3(data, key=blake3(owner.encode(), derive_key_context=_ID).digest()).hexdigest()[:32]
        self._write(owner, id, data)
        now = self._clock()
        with self._database.transaction() as connection:
            used = connection.execute(
                "SELECT COALESCE(SUM(bytes), 0) FROM files WHERE owner = ? AND id != ?", (owner, id)
            ).fetchone()[0]
            quota = tenant.quota or self._quota
            known = connection.execute("SELECT * FROM files WHERE owner = ? AND id = ?", (owner, id)).fetchone()
            if used + len(data) <= quota and (renew or known is None):
                state = (UPLOADED, None, None, "[]") if known is None else tuple(known)[8:]
                expires = None if seconds is None else now + seconds
                row = (owner, id, name, purpose, len(data), now, expires, tenant.name, *state)
                connection.execute(f"INSERT OR REPLACE INTO files VALUES ({', '.join('?' * len(row))})", row)
        if used + len(data) > quota:
            if known is None:
                self._erase(owner, id)
            raise ServeError(413, f"the files would take {used + len(data)} bytes, the quota is {quota}: delete some")
        return self.entry(tenant, id)

    def entries(self, tenant: Tenant) -> tuple[FileEntry, ...]:
        """Return a tenant's files, the newest first."""
        self.expire()
        with self._database.transaction() as connection:
            query = "SELECT * FROM files WHERE owner = ? AND ifnull(expires > ?, 1) ORDER BY created DESC, id"
            rows = connection.execute(query, (owner_digest(tenant.salt), self._clock()))
            return tuple(_entry(row) for row in rows)

    def entry(self, tenant: Tenant, id: str) -> FileEntry:
        """Return what is known of a file.

        Raises:
            ServeError: the tenant has none of this id.
        """
        with self._database.transaction() as connection:
            query = "SELECT * FROM files WHERE owner = ? AND id = ?"
            row = connection.execute(query, (owner_digest(tenant.salt), id)).fetchone()
        if row is None or (row["expires"] is not None and row["expires"] <= self._clock()):
            raise missing("file", id)
        return _entry(row)

    def read(self, tenant: Tenant, id: str) -> bytes:
        """Return a file's bytes.

        Raises:
            ServeError: the tenant has none of this id, or its bytes are lost.
        """
        path = self.path(tenant, id)
        try:
            return path.read_bytes()
        except OSError as error:
            raise ServeError(410, f"the bytes of {id!r} are lost ({error.strerror}): upload it again") from error

    def path(self, tenant: Tenant, id: str) -> Path:
        """Return where a file is.

        Raises:
            ServeError: the tenant has none of this id.
        """
        return self._path(owner_digest(tenant.salt), self.entry(tenant, id).id)

    def note(
        self, tenant: Tenant, id: str, status: str, detail: str | None, kind: str | None, chunks: Sequence[str]
    ) -> bool:
        """Note how a file was read; return False where it was deleted meanwhile."""
        with self._database.transaction() as connection:
            noted = connection.execute(
                "UPDATE files SET status = ?, detail = ?, kind = ?, chunks = ? WHERE owner = ? AND id = ?",
                (status, detail, kind, json.dumps(tuple(chunks)), owner_digest(tenant.salt), id),
            )
            return noted.rowcount > 0

    def delete(self, tenant: Tenant, entry: FileEntry) -> bool:
        """Delete a file, after its chunks; return False, and keep it, where others were made of it meanwhile.

        Raises:
            StoreError: it cannot be deleted, and is still there.
        """
        chunks = json.dumps(entry.chunks)
        return self._delete("owner = ? AND id = ? AND chunks = ?", owner_digest(tenant.salt), entry.id, chunks)

    def keep_until(self, tenant: Tenant, ids: Iterable[str], moment: float) -> None:
        """Let files not expire before a Unix time."""
        with self._database.transaction() as connection:
            rows = [(moment, owner_digest(tenant.salt), id, moment) for id in ids]
            connection.executemany("UPDATE files SET expires = ? WHERE owner = ? AND id = ? AND expires < ?", rows)

    def unprocessed(self) -> list[tuple[str, str, str]]:
        """Return owner, tenant's name and id of the files that are not prefilled yet."""
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT owner, tenant, id FROM files WHERE status = ?", (UPLOADED,))
            return [tuple(row) for row in rows]

    def expire(self) -> None:
        """Delete the files whose time is over; one that cannot be deleted is tried again the next time."""
        now = self._clock()
        with self._database.transaction() as connection:
            query = "SELECT owner, tenant, id, chunks FROM files WHERE expires <= ?"
            ended = connection.execute(query, (now,)).fetchall()
        for owner, tenant, id, chunks in ended:
            try:
                self._forget(owner, tenant, json.loads(chunks))
                # Its time may have been renewed meanwhile.
                self._delete("owner = ? AND id = ? AND expires <= ?", owner, id, now)
            except EmblemaError as error:
                _LOG.warning("%s has expired and is still there: %s", id, error)

    def _delete(self, where: str, *values: object) -> bool:
        with self._database.transaction() as connection:
            deleted = connection.execute(f"DELETE FROM files WHERE {where} RETURNING owner, id", values).fetchall()
            for owner, id in deleted:
                self._erase(owner, id)
        return bool(deleted)

    def _erase(self, owner: str, id: str) -> None:
        try:
            delete_durably(self._path(owner, id))
        except OSError as error:
            raise StoreError(f"the file cannot be deleted: {error}") from error

    def _path(self, owner: str, id: str) -> Path:
        return self._folder / owner / id

    def _write(self, owner: str, id: str, data: bytes) -> None:
        path = self._path(owner, id)
        try:
            make_folder(path.parent, mode=0o700)
            write_whole(path, [data])
        except OSError as error:
            raise StoreError(f"the file cannot be kept: {error}") from error


def _entry(row: Row) -> FileEntry:
    return FileEntry(
        row["id"], row["name"], row["purpose"], row["bytes"], row["created"], row["expires"], row["status"],
        row["detail"], row["kind"], tuple(json.loads(row["chunks"])),
    )  # fmt: skip

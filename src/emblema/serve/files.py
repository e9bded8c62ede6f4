"""Uploaded files: their bytes as files of a folder, what is known of them in the catalogue beside it.

A file is kept for a tenant under an id that follows from its bytes, and prefilled behind the upload.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from emblema.errors import StoreError
from emblema.serve.faults import ServeError
from emblema.serve.keys import Tenant
from emblema.serve.owned_table import OwnedTable, Row, each, keyed_id
from emblema.store.catalogue import FILE
from emblema.store.files import delete_durably, make_folder, written

_LOG = logging.getLogger("emblema.serve")

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


_ARRIVING_SECONDS = 3_600
"""Seconds after which bytes without a name are not being written any more."""
_READS, _BETWEEN = 8, 0.005
"""How often a file is looked for whose bytes are not there, and seconds between: it may be deleted and come again
meanwhile."""
_NEW = {"status": UPLOADED, "detail": None, "kind": None, "chunks": "[]"}


def file_id(owner: str, data: bytes) -> str:
    """Return the id of an owner's file, which follows from its bytes."""
    return keyed_id("file", _ID, owner, data)


def over_quota(total: int, quota: int) -> ServeError:
    """Return the error for files that would take more bytes than they may."""
    return ServeError(413, f"the files would take {total} bytes, the quota is {quota}: delete some")


def forget_nothing(owner: str, tenant: str, chunks: Sequence[str]) -> None:
    """Delete no chunks: a `Forget` for files of which nothing is made."""


class FileStore:
    """The files of all tenants, in a folder that several processes may share.

    A file is on disk before its upload is answered.

    Bytes get their name in the transaction that writes their entry; what a crash left without one is deleted at
    opening. A file's chunks are deleted first, then its bytes, then its entry, so that it can be deleted again. Once
    a deletion is answered, no power cut brings the file back.

    Args:
        folder: of the server.
        quota: bytes of a tenant's files together, where its key says nothing else.
        clock: returns Unix time in seconds.
        forget: deletes chunks, given their owner and the tenant's name too.
    """

    def __init__(
        self,
        folder: Path,
        quota: int,
        clock: Callable[[], float] = time.time,
        forget: Forget = forget_nothing,
    ) -> None:
        self._folder, self._quota, self._forget = folder / "files", quota, forget
        self._table = OwnedTable(folder, "file", clock)
        self._recover()

    def add(
        self, tenant: Tenant, data: bytes, name: str, purpose: str, seconds: float | None, *, renew: bool = True
    ) -> FileEntry:
        """Keep a file; the same bytes again are the same file, with the new name and time if it is to `renew`.

        Raises:
            ServeError: the tenant's quota is used up.
        """
        self.expire(tenant.owner)
        id, quota, now = file_id(tenant.owner, data), tenant.quota or self._quota, self._table.clock()
        values = {
            "owner": tenant.owner, "id": id, "tenant": tenant.name, "name": name, "purpose": purpose,
            "bytes": len(data), "created": now, "expires": None if seconds is None else now + seconds,
        }  # fmt: skip
        path = self._path(tenant.owner, id)
        try:
            make_folder(path.parent, mode=0o700)
            with written(path, [data]) as name_it, self._table.catalogue.change():
                query = "SELECT COALESCE(SUM(bytes), 0) AS total FROM files WHERE owner = ? AND id != ?"
                total = self._table.select(query, tenant.owner, id)[0]["total"] + len(data)
                if total > quota:
                    raise over_quota(total, quota)
                known = self._table.find(tenant.owner, id)
                if renew or known is None:
                    state = _NEW if known is None else {column: known[column] for column in _NEW}
                    self._table.put(**values, **state)
                name_it()
        except OSError as error:
            raise StoreError(f"the file cannot be kept: {error}") from error
        return self.entry(tenant, id)

    def entries(self, tenant: Tenant) -> tuple[FileEntry, ...]:
        """Return a tenant's files, the newest first; one that cannot be read is left out and told of."""
        self.expire(tenant.owner)
        return tuple(each(self._table.rows(tenant.owner), _entry, "cannot be read"))

    def entry(self, tenant: Tenant, id: str) -> FileEntry:
        """Return what is known of a file; `ServeError` where the tenant has none of this id."""
        return _entry(self._table.row(tenant.owner, id))

    def path(self, tenant: Tenant, id: str) -> Path:
        """Return where a file is; `ServeError` where the tenant has none of this id."""
        return self._path(tenant.owner, self.entry(tenant, id).id)

    def read(self, tenant: Tenant, id: str) -> bytes:
        """Return a file's bytes; `ServeError` where the tenant has none of this id, or its bytes are lost."""
        reason: str | None = None
        for _ in range(_READS):
            try:
                return self.path(tenant, id).read_bytes()
            except OSError as error:
                # A file that was deleted since it was found is not there, rather than lost; it may come again, too.
                reason = error.strerror
                time.sleep(_BETWEEN)
        self.entry(tenant, id)
        raise ServeError(410, f"the bytes of {id!r} are lost ({reason}): upload it again")

    def begin(self, tenant: Tenant, id: str, chunks: Sequence[str]) -> None:
        """Note which chunks are about to be made of a file: `forget_begun` finds them where nobody notes their end."""
        statement = "INSERT OR REPLACE INTO begun VALUES (?, ?, ?, ?)"
        self._table.change(statement, tenant.owner, id, tenant.name, json.dumps(chunks))

    def note(
        self, tenant: Tenant, id: str, status: str, detail: str | None, kind: str | None, chunks: Sequence[str]
    ) -> bool:
        """Note how a file was read; return False where it was deleted meanwhile, and its chunks are to be forgotten."""
        statement = "UPDATE files SET status = ?, detail = ?, kind = ?, chunks = ? WHERE owner = ? AND id = ?"
        with self._table.catalogue.change():
            noted = self._table.change(statement, status, detail, kind, json.dumps(chunks), tenant.owner, id)
            if noted:
                self.end(tenant.owner, id)
        return noted > 0

    def end(self, owner: str, id: str) -> None:
        """Note that the chunks that were begun of a deleted file are forgotten."""
        self._table.change("DELETE FROM begun WHERE owner = ? AND id = ?", owner, id)

    def delete(self, tenant: Tenant, entry: FileEntry) -> bool:
        """Delete a file, after its chunks; return False, and keep it, where others were made of it meanwhile."""
        return self._delete("owner = ? AND id = ? AND chunks = ?", tenant.owner, entry.id, json.dumps(entry.chunks))

    def keep_until(self, tenant: Tenant, ids: Iterable[str], moment: float) -> None:
        """Let files not expire before a Unix time."""
        with self._table.catalogue.change() as rows:
            values = [(moment, tenant.owner, id, moment) for id in ids]
            rows.executemany("UPDATE files SET expires = ? WHERE owner = ? AND id = ? AND expires < ?", values)

    def unprocessed(self) -> list[tuple[str, str, str]]:
        """Return owner, tenant's name and id of the files that are not prefilled yet."""
        found = self._table.select("SELECT owner, tenant, id FROM files WHERE status = ?", UPLOADED)
        return [(row["owner"], row["tenant"], row["id"]) for row in found]

    def expire(self, owner: str | None = None) -> None:
        """Delete the files whose time is over, of one owner or of all; one that cannot be deleted holds up no other."""
        now = self._table.clock()

        def end(row: Row) -> None:
            self._forget_chunks(row)
            # Its time may have been renewed meanwhile.
            self._delete("owner = ? AND id = ? AND expires <= ?", row["owner"], row["id"], now)

        query = "SELECT * FROM files WHERE expires <= ? AND owner = ifnull(?, owner)"
        each(self._table.select(query, now, owner), end, "has expired and is still there")

    def forget_begun(self) -> None:
        """Delete the chunks of files that were deleted while a server that has ended made them."""

        def forget(row: Row) -> None:
            self._forget_chunks(row)
            self.end(row["owner"], row["id"])

        left = self._table.select("SELECT * FROM begun WHERE (owner, id) NOT IN (SELECT owner, id FROM files)")
        each(left, forget, "is deleted, and what was begun of it is still there")

    def close(self) -> None:
        """Close the catalogue."""
        self._table.catalogue.close()

    def _forget_chunks(self, row: Row) -> None:
        self._forget(row["owner"], row["tenant"], _chunks_of(row))

    def _delete(self, where: str, *values: object) -> bool:
        with self._table.catalogue.change() as rows:
            deleted = rows.execute(f"DELETE FROM files WHERE {where} RETURNING owner, id", values).fetchall()
            try:
                for owner, id in deleted:
                    delete_durably(self._path(owner, id))
            except OSError as error:
                raise StoreError(f"the file cannot be deleted: {error}") from error
        return bool(deleted)

    def _recover(self) -> None:
        """Delete bytes that a server left without an entry when it ended. Others may be adding files right now."""
        damaged = self._folder.with_name(f"{FILE}.damaged")
        if damaged.exists():
            _LOG.warning("files without an entry stay as long as %s is there: restore it, or delete it", damaged)
            return
        with self._table.catalogue.change():
            known = {(row["owner"], row["id"]) for row in self._table.select("SELECT owner, id FROM files")}
            for path in self._folder.glob("*/*"):
                try:
                    arriving = path.name.startswith(".") and time.time() - path.stat().st_mtime < _ARRIVING_SECONDS
                    if (path.parent.name, path.name) not in known and not arriving:
                        delete_durably(path)
                except OSError as error:
                    _LOG.warning("%s was left by a server that ended, and cannot be deleted: %s", path, error)

    def _path(self, owner: str, id: str) -> Path:
        return self._folder / owner / id


def _entry(row: Row) -> FileEntry:
    return FileEntry(**{name: row[name] for name in FileEntry.__slots__} | {"chunks": _chunks_of(row)})


def _chunks_of(row: Row) -> tuple[str, ...]:
    """Return the ids of a file's chunks as a row has them; `StoreError` where it is damaged."""
    try:
        chunks = json.loads(row["chunks"])
    except (ValueError, RecursionError) as error:
        raise StoreError(f"what is known of {row['id']} is damaged: {error}") from error
    if not isinstance(chunks, list) or not all(isinstance(chunk, str) for chunk in chunks):
        raise StoreError(f"what is known of {row['id']} is damaged: it has no list of chunks")
    return tuple(chunks)

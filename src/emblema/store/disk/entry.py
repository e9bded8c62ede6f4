"""What the disk tier knows of a piece without opening it: its row in the catalogue, and the terms in its header."""

import math
import sqlite3
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from xxhash import xxh3_64_intdigest

from emblema.errors import LoadError, StoreError
from emblema.store.catalogue import DamagedCatalogueError
from emblema.store.record import LONGEST, SHARED, Array, RecordHeader, RecordKind, RecordReader, Terms, check_id

TERMS = "terms"
"""The key of a header's meta under which the tier keeps a piece's terms, so that they outlast the catalogue."""
STATEMENTS = (
    """CREATE TABLE pieces (
    id TEXT PRIMARY KEY NOT NULL, owner TEXT NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, chunks TEXT NOT NULL,
    bytes INTEGER NOT NULL, stamp INTEGER NOT NULL, created REAL NOT NULL, accessed REAL NOT NULL,
    priority INTEGER NOT NULL, pinned INTEGER NOT NULL, seconds REAL, idle REAL, expires REAL, checksum BLOB NOT NULL,
    ends REAL GENERATED ALWAYS AS (min(coalesce(expires, 9e999), coalesce(accessed + idle, 9e999))) VIRTUAL)""",
    "CREATE INDEX pieces_evicted ON pieces (pinned, priority, accessed, bytes, owner)",
    "CREATE INDEX pieces_listed ON pieces (owner, kind, bytes)",
    "CREATE INDEX pieces_ending ON pieces (ends) WHERE expires IS NOT NULL OR idle IS NOT NULL",
    """CREATE TABLE sources (
    chunk TEXT NOT NULL, piece TEXT NOT NULL REFERENCES pieces ON DELETE CASCADE, PRIMARY KEY (chunk, piece)
    ) WITHOUT ROWID""",
    "CREATE INDEX sources_piece ON sources (piece)",
)
_PAGE = 512
"""Rows that are read at once."""


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """A piece on disk.

    Attributes:
        id: 64 hexadecimal digits.
        owner: digest of the tenant, or `shared`.
        kind: chunk or patch.
        model: fingerprint of the model that made it.
        bytes: of its file.
        created: Unix time in seconds, as its header has it.
        accessed: Unix time in seconds when it was last used.
        terms: how long it is kept.
        chunks: ids of the chunks a patch was made from.
        expires: Unix time in seconds when its `seconds` are over; None never.
        stamp: time of modification of its file in nanoseconds, which with `bytes` tells it from another of its name.
    """

    id: str
    owner: str
    kind: RecordKind
    model: str
    bytes: int
    created: float
    accessed: float
    terms: Terms
    chunks: tuple[str, ...]
    expires: float | None = None
    stamp: int = 0

    @property
    def ends(self) -> float:
        """Return the Unix time when it expires unless it is used before; infinite for never."""
        idle = self.terms.idle_seconds
        return min(
            math.inf if self.expires is None else self.expires, math.inf if idle is None else self.accessed + idle
        )

    def is_of(self, header: RecordHeader) -> bool:
        """Return whether a file's header has the same owner, kind and chunks."""
        return (self.owner, self.kind, self.chunks) == (header.owner, header.kind, header.chunks)


Row = tuple[Any, ...]
"""A row of `pieces`: what `_COLUMNS` names, a checksum of it at the end, as sqlite has none."""


def _row_of(entry: DiskEntry) -> Row:
    terms = entry.terms
    ends = [None if moment is None else float(moment) for moment in (terms.seconds, terms.idle_seconds, entry.expires)]
    row = (
        entry.id, entry.owner, entry.kind, entry.model, " ".join(entry.chunks), entry.bytes, entry.stamp,
        float(entry.created), float(entry.accessed), terms.priority, int(terms.pinned), *ends,
    )  # fmt: skip
    return (*row, _checksum(row))


def _checksum(row: Row) -> bytes:
    return struct.pack("<Q", xxh3_64_intdigest(repr(row).encode("utf-8", "surrogatepass")))


def _entry_of_row(row: Row) -> DiskEntry | None:
    """Return the entry of a row; None where it is not what was written."""
    if row[-1] != _checksum(row[:-1]):
        return None
    id, owner, kind, model, chunks, size, stamp, created, accessed, priority, pinned, seconds, idle, expires, _ = row
    terms = Terms(priority, bool(pinned), seconds, idle)
    return DiskEntry(
        id, owner, kind, model, size, created, accessed, terms, tuple(chunks.split()), expires, stamp
    )  # fmt: skip


class DiskReader:
    """A piece of the disk tier, open; a file that does not verify is reported before the error goes on.

    It stays readable when its piece is evicted, deleted or written again meanwhile.

    Args:
        reader: of the file.
        damaged: called with every LoadError.
    """

    def __init__(self, reader: RecordReader, damaged: Callable[[LoadError], None]) -> None:
        self.header = without_terms(reader.header)
        self._reader = reader
        self._damaged = damaged

    def read(self, name: str) -> Array:
        """Return one tensor, verified.

        Raises:
            LoadError: it is cut short or its checksum differs; the file is in quarantine then.
        """
        try:
            return self._reader.read(name)
        except LoadError as error:
            self._damaged(error)
            raise

    def close(self) -> None:
        self._reader.close()


_COLUMNS = (
    "id, owner, kind, model, chunks, bytes, stamp, created, accessed, priority, pinned, seconds, idle, expires, "
    "checksum"
)


def find_rows(rows: sqlite3.Connection, where: str, *given: object) -> Iterator[tuple[Any, DiskEntry | None]]:
    """Yield ids and entries of the rows for which a condition holds; None for a row that is not what was written."""
    for row in rows.execute(f"SELECT {_COLUMNS} FROM pieces WHERE {where}", given):
        yield row[0], _entry_of_row(row)


def find_entries(rows: sqlite3.Connection, where: str, *given: object) -> list[DiskEntry]:
    """Return the entries for which a condition holds.

    Raises:
        DamagedCatalogueError: the row of one is not what was written.
    """
    found: list[DiskEntry] = []
    for _, entry in find_rows(rows, where, *given):
        if entry is None:
            raise DamagedCatalogueError("a row's checksum differs")
        found.append(entry)
    return found


def find_entry(rows: sqlite3.Connection, id: str) -> DiskEntry | None:
    """Return the entry of an id; errors as `find_entries`."""
    return next(iter(find_entries(rows, "id = ?", id)), None)


def find_many(rows: sqlite3.Connection, ids: Sequence[str]) -> list[DiskEntry]:
    """Return the entries of those of some ids that are here; errors as `find_entries`."""
    found: list[DiskEntry] = []
    for start in range(0, len(ids), _PAGE):
        given = ids[start : start + _PAGE]
        found += find_entries(rows, f"id IN ({', '.join('?' * len(given))})", *given)
    return found


def find_page(rows: sqlite3.Connection, after: str, owner: str | None, kind: str | None) -> list[DiskEntry]:
    """Return the next entries by id, those after an id ("" for the first); none at the end; errors as above."""
    condition, given = _owned(owner, kind)
    return find_entries(rows, f"id > ? AND {condition} ORDER BY id LIMIT {_PAGE}", after, *given)


def put_entry(rows: sqlite3.Connection, entry: DiskEntry) -> None:
    """Write an entry in place of the one of its id, and which chunks it was made from."""
    remove_rows(rows, [entry.id])
    row = _row_of(entry)
    rows.execute(f"INSERT INTO pieces ({_COLUMNS}) VALUES ({', '.join('?' * len(row))})", row)
    put_sources(rows, [entry])


def put_sources(rows: sqlite3.Connection, entries: Collection[DiskEntry]) -> None:
    """Write which chunks some pieces were made from."""
    sources = [(chunk, entry.id) for entry in entries for chunk in entry.chunks]
    rows.executemany("INSERT OR IGNORE INTO sources VALUES (?, ?)", sources)


def remove_rows(rows: sqlite3.Connection, ids: Collection[str]) -> None:
    """Remove the rows of some ids, which may be damaged."""
    rows.executemany("DELETE FROM pieces WHERE id IS ?", [(id,) for id in ids])


def change_entry(rows: sqlite3.Connection, id: str, accessed: float = 0.0, pinned: bool | None = None) -> bool:
    """Set the last use of a piece, unless it was used later, and its pin; return whether it is here."""
    _, found = next(find_rows(rows, "id = ?", id), (id, None))
    if found is None:
        return False
    terms = found.terms if pinned is None else replace(found.terms, pinned=pinned)
    changed = replace(found, accessed=max(found.accessed, accessed), terms=terms)
    change = "UPDATE pieces SET accessed = ?, pinned = ?, checksum = ? WHERE id = ?"
    rows.execute(change, (changed.accessed, int(terms.pinned), _row_of(changed)[-1], id))
    return True


def totals(rows: sqlite3.Connection, owner: str | None = None, kind: str | None = None) -> tuple[int, int]:
    """Return how many pieces there are, and their bytes."""
    condition, given = _owned(owner, kind)
    count, size = rows.execute(f"SELECT count(*), total(bytes) FROM pieces WHERE {condition}", given).fetchone()
    return count, int(size)


def patches_of(rows: sqlite3.Connection, chunk: str) -> list[str]:
    """Return the ids of the patches made from a chunk."""
    return [piece for (piece,) in rows.execute("SELECT piece FROM sources WHERE chunk = ?", (chunk,))]


def victims(rows: sqlite3.Connection, bytes: int, spared: Collection[str], owner: str | None = None) -> dict[str, int]:
    """Return ids, with their bytes, to evict for `bytes` bytes: low priorities and the least recently used first.

    Pinned and spared pieces are not among them; fewer bytes where there is no more to evict.
    """
    chosen: dict[str, int] = {}
    if bytes <= 0:
        return chosen
    condition, given = _owned(owner, None)
    query = f"SELECT id, bytes FROM pieces WHERE pinned = 0 AND {condition} ORDER BY priority, accessed"
    for id, size in rows.execute(query, given):
        if id not in spared:
            chosen[id] = size
            bytes -= size
            if bytes <= 0:
                break
    return chosen


def ended(rows: sqlite3.Connection, now: float) -> list[str]:
    """Return ids of what has expired."""
    query = "SELECT id FROM pieces WHERE ends <= ? AND (expires IS NOT NULL OR idle IS NOT NULL)"
    return [id for (id,) in rows.execute(query, (now,))]


def _owned(owner: str | None, kind: str | None) -> tuple[str, list[str]]:
    given = {name: value for name, value in (("owner", owner), ("kind", kind)) if value is not None}
    return " AND ".join(["1", *(f"{name} = ?" for name in given)]), list(given.values())


def check_header(header: RecordHeader) -> None:
    """Raise StoreError where a header's id, owner or chunks could not be kept."""
    for id in (header.id, *header.chunks, *([] if header.owner == SHARED else [header.owner])):
        check_id(id)


def with_terms(header: RecordHeader, terms: Terms, expires: float | None, now: float) -> RecordHeader:
    """Return the header as it is written, with the terms in its meta; all but the pin, which may change."""
    kept = {"priority": terms.priority, "idle_seconds": terms.idle_seconds, "seconds": terms.seconds}
    return replace(header, meta={**header.meta, TERMS: {**kept, "expires": expires, "written": now}})


def without_terms(header: RecordHeader) -> RecordHeader:
    """Return the header as it was given to the tier."""
    return replace(header, meta={key: value for key, value in header.meta.items() if key != TERMS})


def entry_of(header: RecordHeader, *, bytes: int, accessed: float, pinned: bool, stamp: int = 0) -> DiskEntry:
    """Return the entry of a file from its header.

    Raises:
        ValueError: the terms in it are malformed.
    """
    terms = replace(terms_of(header, Terms()), pinned=pinned)
    expires = _terms_of(header).get("expires")
    return DiskEntry(
        header.id, header.owner, header.kind, header.model, bytes, header.created, accessed, terms, header.chunks,
        expires, stamp,
    )  # fmt: skip


def terms_of(header: RecordHeader, usual: Terms) -> Terms:
    """Return the terms that a record was written with, or the usual ones where it has none.

    Raises:
        ValueError: they are malformed.
    """
    kept = _terms_of(header)
    if not kept:
        return usual
    try:
        return Terms(kept.get("priority", 0), False, kept.get("seconds"), kept.get("idle_seconds"))
    except StoreError as error:
        raise ValueError(str(error)) from error


def _terms_of(header: RecordHeader) -> Mapping[str, Any]:
    kept = header.meta.get(TERMS, {})
    moments = [kept.get("expires"), kept.get("written")] if isinstance(kept, Mapping) else [math.nan]
    if not all(moment is None or (type(moment) in (int, float) and abs(moment) <= 2 * LONGEST) for moment in moments):
        raise ValueError("the terms in its header are malformed")
    return kept  # type: ignore[no-any-return]

"""The index's tables, and an entry as a row of them."""

import sqlite3
import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from emblema.store.disk.entry import Entry
from emblema.store.record import SHARED, RecordKind, Terms

VERSION = 2
APPLICATION = 0x656D626C
"""The marks of a file that holds these tables."""

TABLES = """
CREATE TABLE pieces (
    id BLOB PRIMARY KEY, owner BLOB NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, bytes INTEGER NOT NULL,
    created REAL NOT NULL, accessed REAL NOT NULL, priority INTEGER NOT NULL, pinned INTEGER NOT NULL, seconds REAL,
    idle REAL, expires REAL, chunks BLOB NOT NULL, inode INTEGER NOT NULL, checksum BLOB NOT NULL,
    ends REAL GENERATED ALWAYS AS (min(coalesce(expires, 9e999), coalesce(accessed + idle, 9e999))) VIRTUAL
) WITHOUT ROWID;
CREATE INDEX pieces_evicted ON pieces (pinned, priority, accessed, bytes);
CREATE INDEX pieces_owned ON pieces (owner, pinned, priority, accessed, bytes);
CREATE INDEX pieces_listed ON pieces (owner, kind);
CREATE INDEX pieces_ending ON pieces (ends) WHERE expires IS NOT NULL OR idle IS NOT NULL;
CREATE TABLE parts (chunk BLOB, patch BLOB, PRIMARY KEY (chunk, patch)) WITHOUT ROWID;
CREATE INDEX parts_patch ON parts (patch);
CREATE TABLE totals (
    owner BLOB, kind TEXT, pieces INTEGER NOT NULL, bytes INTEGER NOT NULL, checksum BLOB NOT NULL,
    PRIMARY KEY (owner, kind)
) WITHOUT ROWID;
CREATE TABLE moments (name TEXT PRIMARY KEY, seconds REAL NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID;
CREATE TRIGGER pieces_added AFTER INSERT ON pieces BEGIN
    INSERT INTO totals VALUES (NEW.owner, NEW.kind, 1, NEW.bytes, summed(NEW.owner, NEW.kind, 1, NEW.bytes))
    ON CONFLICT DO UPDATE SET pieces = pieces + 1, bytes = bytes + NEW.bytes,
        checksum = summed(owner, kind, pieces + 1, bytes + NEW.bytes);
END;
CREATE TRIGGER pieces_removed AFTER DELETE ON pieces BEGIN
    UPDATE totals SET pieces = pieces - 1, bytes = bytes - OLD.bytes,
        checksum = summed(owner, kind, pieces - 1, bytes - OLD.bytes)
    WHERE owner = OLD.owner AND kind = OLD.kind;
    DELETE FROM parts WHERE patch = OLD.id;
END;
"""

_LARGEST_INODE = 2**63 - 1
_Blob = bytes


class Row(NamedTuple):
    """A row of `pieces`, as sqlite keeps it; one that was read is only to be trusted where it is whole."""

    id: _Blob
    owner: _Blob
    kind: RecordKind
    model: str
    bytes: int
    created: float
    accessed: float
    priority: int
    pinned: int
    seconds: float | None
    idle: float | None
    expires: float | None
    chunks: _Blob
    inode: int
    checksum: _Blob = b""

    def parts(self) -> list[tuple[_Blob, _Blob]]:
        """The rows of `parts`: each chunk that a patch was made from, with the patch."""
        return [(self.chunks[start : start + 32], self.id) for start in range(0, len(self.chunks), 32)]

    def is_whole(self) -> bool:
        """Whether it is as it was written."""
        return self.checksum == self.summed()

    def summed(self) -> _Blob:
        """The checksum, of everything but when it was accessed, which changes with every use and stands in the file."""
        return checksum((self[:_ACCESSED], self[_ACCESSED + 1 : -1]))

    def is_of(self, inode: int) -> bool:
        """Whether it was written for the file of this inode."""
        return self.inode == inode & _LARGEST_INODE


COLUMNS = ", ".join(Row._fields)
_ACCESSED = Row._fields.index("accessed")


class DamagedIndexError(sqlite3.DatabaseError):
    """A row of the index is not what was written."""


def owner_bytes(owner: str) -> bytes:
    return owner.encode() if owner == SHARED else bytes.fromhex(owner)


def row_of(entry: Entry, inode: int) -> Row:
    """An entry as a row, its checksum last: sqlite keeps none of its own."""
    terms = entry.terms
    row = Row(
        bytes.fromhex(entry.id),
        owner_bytes(entry.owner),
        entry.kind,
        entry.model,
        entry.bytes,
        entry.created,
        entry.accessed,
        terms.priority,
        int(terms.pinned),
        None if terms.seconds is None else float(terms.seconds),
        None if terms.idle_seconds is None else float(terms.idle_seconds),
        None if entry.expires is None else float(entry.expires),
        b"".join(map(bytes.fromhex, entry.chunks)),
        inode & _LARGEST_INODE,
    )
    return row._replace(checksum=row.summed())


def entry_of_row(row: Row) -> Entry:
    """The entry of a row.

    Raises:
        DamagedIndexError: its checksum differs.
    """
    if not row.is_whole():
        raise DamagedIndexError("a row's checksum differs")
    return Entry(
        id=row.id.hex(),
        owner=SHARED if len(row.owner) != 32 else row.owner.hex(),
        kind=row.kind,
        model=row.model,
        bytes=row.bytes,
        created=row.created,
        accessed=row.accessed,
        terms=Terms(row.priority, bool(row.pinned), row.seconds, row.idle),
        chunks=tuple(chunk.hex() for chunk, _ in row.parts()),
        expires=row.expires,
    )


def checksum(value: object) -> bytes:
    """Of numbers, texts, bytes and tuples of them."""
    return struct.pack("<Q", xxh3_64_intdigest(repr(value).encode()))


def summed(*values: object) -> bytes:
    """The checksum of several values: what the tables' triggers call `summed`."""
    return checksum(values)


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the index itself is bad, rather than that it is busy or cannot be written."""
    if isinstance(error, DamagedIndexError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return not isinstance(error, sqlite3.ProgrammingError)
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
    return code & 0xFF in damage or code == sqlite3.SQLITE_IOERR_SHORT_READ

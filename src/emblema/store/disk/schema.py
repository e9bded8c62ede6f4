"""The index's tables, and an entry as a row of them."""

import sqlite3
import struct
from typing import Any

from xxhash import xxh3_64_intdigest

from emblema.store.disk.entry import Entry
from emblema.store.record import SHARED, Terms

VERSION = 1
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
    owner BLOB, kind TEXT, pieces INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (owner, kind)
) WITHOUT ROWID;
CREATE TABLE moments (name TEXT PRIMARY KEY, seconds REAL NOT NULL, checksum BLOB NOT NULL) WITHOUT ROWID;
CREATE TRIGGER pieces_added AFTER INSERT ON pieces BEGIN
    INSERT INTO totals VALUES (NEW.owner, NEW.kind, 1, NEW.bytes)
    ON CONFLICT DO UPDATE SET pieces = pieces + 1, bytes = bytes + NEW.bytes;
END;
CREATE TRIGGER pieces_removed AFTER DELETE ON pieces BEGIN
    UPDATE totals SET pieces = pieces - 1, bytes = bytes - OLD.bytes WHERE owner = OLD.owner AND kind = OLD.kind;
    DELETE FROM parts WHERE patch = OLD.id;
END;
"""

COLUMNS = (
    "id, owner, kind, model, bytes, created, accessed, priority, pinned, seconds, idle, expires, chunks, "
    "inode, checksum"
)
_ACCESSED = 6
_LARGEST_INODE = 2**63 - 1

Row = tuple[Any, ...]


class DamagedIndexError(sqlite3.DatabaseError):
    """A row of the index is not what was written."""


def owner_bytes(owner: str) -> bytes:
    return owner.encode() if owner == SHARED else bytes.fromhex(owner)


def row_of(entry: Entry, inode: int) -> Row:
    """An entry as a row, its checksum last: sqlite keeps none of its own."""
    terms = entry.terms
    row = (
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
    return (*row, _checksum(row))


def entry_of(row: Row) -> Entry:
    """The entry of a row.

    Raises:
        DamagedIndexError: its checksum differs.
    """
    if not is_whole(row):
        raise DamagedIndexError("a row's checksum differs")
    id, owner, kind, model, size, created, accessed, priority, pinned, seconds, idle, expires, chunks = row[:13]
    owner_text = SHARED if len(owner) != 32 else owner.hex()
    terms = Terms(priority, bool(pinned), seconds, idle)
    parts = tuple(chunks[start : start + 32].hex() for start in range(0, len(chunks), 32)) if chunks else ()
    return Entry(id.hex(), owner_text, kind, model, size, created, accessed, terms, parts, expires)


def is_whole(row: Row) -> bool:
    """Whether a row is as it was written."""
    return bool(row[-1] == _checksum(row[:-1]))


def same_inode(row: Row, inode: int) -> bool:
    return bool(row[-2] == inode & _LARGEST_INODE)


def checksum(value: object) -> bytes:
    """Of numbers, texts, bytes and tuples of them."""
    return struct.pack("<Q", xxh3_64_intdigest(repr(value).encode()))


def _checksum(row: Row) -> bytes:
    """Of everything but when it was accessed, which changes with every use and stands in the file too."""
    return checksum((row[:_ACCESSED], row[_ACCESSED + 1 :]))


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the index itself is bad, rather than that it is busy or cannot be written."""
    if isinstance(error, DamagedIndexError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return not isinstance(error, sqlite3.ProgrammingError)
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
    return code & 0xFF in damage or code == sqlite3.SQLITE_IOERR_SHORT_READ

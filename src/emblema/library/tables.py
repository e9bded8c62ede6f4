"""The catalogue's tables, and rows of them."""

import sqlite3
from collections.abc import Iterable

import xxhash

from emblema.library.entry import Listing

# A row is there for versions since <= version < until; a NULL until is open. A version lost to damage is told by rows.
TABLES = """
CREATE TABLE IF NOT EXISTS items (
    number INTEGER PRIMARY KEY, scope TEXT NOT NULL, library TEXT NOT NULL, name TEXT NOT NULL,
    since INTEGER NOT NULL, until INTEGER, expires REAL, body TEXT NOT NULL, digest TEXT NOT NULL);
CREATE UNIQUE INDEX IF NOT EXISTS items_open ON items (scope, library, name) WHERE until IS NULL;
CREATE INDEX IF NOT EXISTS items_ended ON items (scope, library, until) WHERE until IS NOT NULL;
CREATE INDEX IF NOT EXISTS items_expire ON items (expires) WHERE expires IS NOT NULL;
CREATE TABLE IF NOT EXISTS parts (scope TEXT NOT NULL, part TEXT NOT NULL, item INTEGER NOT NULL,
    kind TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (scope, part, item)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parts_item ON parts (item);
CREATE TABLE IF NOT EXISTS versions (scope TEXT, library TEXT, version INTEGER, PRIMARY KEY (scope, library));
CREATE TABLE IF NOT EXISTS holds (scope TEXT, library TEXT, version INTEGER, process TEXT, holder TEXT,
    PRIMARY KEY (scope, library, version, process, holder));
CREATE TABLE IF NOT EXISTS doomed (scope TEXT NOT NULL, part TEXT NOT NULL, kind TEXT NOT NULL, library TEXT NOT NULL,
    name TEXT NOT NULL, PRIMARY KEY (scope, part)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settings (scope TEXT, name TEXT, body TEXT, PRIMARY KEY (scope, name));
DELETE FROM versions WHERE typeof(version) != 'integer' OR version NOT BETWEEN 0 AND 1000000000000;
INSERT INTO versions SELECT scope, library, max(max(since, coalesce(until, 0))) FROM items
    WHERE max(since, coalesce(until, 0)) BETWEEN 0 AND 1000000000000 GROUP BY scope, library
    ON CONFLICT DO UPDATE SET version = excluded.version WHERE excluded.version > version;
"""


def version_of(rows: sqlite3.Connection, scope: str, library: str) -> int:
    """The library's version, 0 before anything was put into it."""
    found = rows.execute("SELECT version FROM versions WHERE scope = ? AND library = ?", (scope, library)).fetchone()
    return 0 if found is None else int(found[0])


def doomed(rows: sqlite3.Connection, scope: str) -> tuple[list[str], list[str]]:
    """The chunks and the sources of a scope that are still to be deleted."""
    return by_kind(rows.execute("SELECT kind, part FROM doomed WHERE scope = ?", (scope,)))


def by_kind(found: Iterable[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Chunks, and sources."""
    parts = list(found)
    return [part for kind, part in parts if kind == "chunk"], [part for kind, part in parts if kind == "source"]


def insert_entry(
    rows: sqlite3.Connection, scope: str, library: str, entry: Listing, since: int, until: int | None
) -> None:
    """Add an entry's row and its parts', which are to be deleted no more."""
    body = entry.json()
    digest = row_digest(scope, library, entry.name, since, until, entry.expires, body)
    cursor = rows.execute(
        "INSERT INTO items (scope, library, name, since, until, expires, body, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (scope, library, entry.name, since, until, entry.expires, body, digest),
    )
    parts = [(scope, chunk, cursor.lastrowid, "chunk", 0) for chunk in dict.fromkeys(entry.chunks)]
    if entry.source is not None and entry.source.digest:
        parts.append((scope, entry.source.digest, cursor.lastrowid, "source", entry.source.bytes))
    rows.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?, ?)", parts)
    rows.executemany("DELETE FROM doomed WHERE scope = ? AND part = ?", [part[:2] for part in parts])


def row_digest(*fields: object) -> str:
    """A checksum of a row; what differs in any field or type differs here."""
    return xxhash.xxh3_128_hexdigest(repr(fields).encode("utf-8", "surrogatepass"))

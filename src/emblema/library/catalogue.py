"""The libraries' catalogue: names, versions and who still reads them, in one sqlite file or in memory."""

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import xxhash

from emblema.errors import StoreError
from emblema.library.entry import Entry
from emblema.library.process import is_running, this_process
from emblema.library.sqlite import connect, set_aside

# A row is there for versions since <= version < until; a NULL until is open. A version lost to damage is told by rows.
_TABLES = """
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
CREATE TABLE IF NOT EXISTS settings (scope TEXT, name TEXT, body TEXT, PRIMARY KEY (scope, name));
DELETE FROM versions WHERE typeof(version) != 'integer' OR version NOT BETWEEN 0 AND 1000000000000;
INSERT INTO versions SELECT scope, library, max(max(since, coalesce(until, 0))) FROM items
    WHERE max(since, coalesce(until, 0)) BETWEEN 0 AND 1000000000000 GROUP BY scope, library
    ON CONFLICT DO UPDATE SET version = excluded.version WHERE excluded.version > version;
"""


class Catalogue:
    """What every library holds, by scope (owner, model, dtype) and library; shared by threads and processes.

    A damaged file is set aside and what can still be read of it is taken over; a damaged row is left out. Both are
    counted in `damaged`.

    Args:
        path: the sqlite file; None keeps everything in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._damaged_files = 0
        self._damaged_rows: set[tuple[object, ...]] = set()
        self._lock = threading.RLock()
        self._connection = self._open()

    @property
    def damaged(self) -> int:
        """Files set aside and rows left out."""
        return self._damaged_files + len(self._damaged_rows)

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return connect(":memory:", _TABLES)
        try:
            return connect(self.path, _TABLES)
        except (OSError, sqlite3.OperationalError) as error:
            raise StoreError(f"the libraries' catalogue {self.path} cannot be opened: {error}") from error
        except sqlite3.DatabaseError:
            old = set_aside(self.path)
            self._damaged_files += 1
            fresh = connect(self.path, _TABLES)
            for scope, library, name, since, until, expires, body, digest in old:
                entry = self._read(body, digest, scope, library, name, since, until, expires)
                if entry is not None:
                    _insert(fresh, scope, library, entry, since, until)
                    version = max(since, until or 0)
                    fresh.execute(
                        "INSERT INTO versions VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET version = max(version, ?)",
                        (scope, library, version, version),
                    )
            return fresh

    def _read(self, body: str, digest: str, *fields: object) -> Entry | None:
        """The entry of a row; None, counted, where the row is not as it was written."""
        try:
            if digest == _digest(*fields, body):
                return Entry.read(body)
        except ValueError:
            pass
        with self._lock:
            self._damaged_rows.add(fields)
        return None

    @contextmanager
    def _rows(self, write: bool = False, durable: bool = True) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                self._connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.rollback()
                if not isinstance(error, sqlite3.Error):
                    raise
                damaged = isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)
                if damaged and not isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                    self._connection.close()
                    self._connection = self._open()
                raise StoreError(f"the libraries' catalogue {self.path or 'in memory'} fails: {error}") from error

    def version(self, scope: str, library: str) -> int:
        """The library's version, 0 before anything was put into it."""
        with self._rows() as rows:
            return _version(rows, scope, library)

    def entries(self, scope: str, library: str, version: int | None = None) -> dict[str, Entry]:
        """The library's entries by name, as of a version (None: now), in the order they came in."""
        with self._rows() as rows:
            at = _version(rows, scope, library) if version is None else version
            found = rows.execute(
                "SELECT name, since, until, expires, body, digest FROM items "
                "WHERE scope = ? AND library = ? AND since <= ? AND (until IS NULL OR until > ?) ORDER BY number",
                (scope, library, at, at),
            ).fetchall()
        read = {
            name: self._read(body, digest, scope, library, name, since, until, expires)
            for name, since, until, expires, body, digest in found
        }
        return {name: entry for name, entry in read.items() if entry is not None}

    def entry(self, scope: str, library: str, name: str) -> Entry | None:
        """The library's entry of a name, now."""
        with self._rows() as rows:
            found = rows.execute(
                "SELECT since, until, expires, body, digest FROM items "
                "WHERE scope = ? AND library = ? AND name = ? AND until IS NULL",
                (scope, library, name),
            ).fetchone()
        if found is None:
            return None
        since, until, expires, body, digest = found
        return self._read(body, digest, scope, library, name, since, until, expires)

    def change(
        self, scope: str, library: str, put: Mapping[str, Entry], remove: Iterable[str] = (), fresh: bool = False
    ) -> int:
        """Put and remove entries as the library's next version, all at once; the new version.

        Args:
            scope, library: which library.
            put: entries by name, in place of those with the same names.
            remove: names to take out.
            fresh: none of the names that are put may be there.

        Raises:
            StoreError: a name is there already, under `fresh`; nothing was changed.
        """
        with self._rows(write=True) as rows:
            version = _version(rows, scope, library) + 1
            for name in (*put, *remove):
                old = rows.execute(
                    "SELECT number, since, expires, body FROM items "
                    "WHERE scope = ? AND library = ? AND name = ? AND until IS NULL",
                    (scope, library, name),
                ).fetchone()
                if old is None:
                    continue
                if fresh and name in put:
                    raise StoreError(f"{name!r} is in the library already: delete it first, or choose another name")
                number, since, expires, body = old
                digest = _digest(scope, library, name, since, version, expires, body)
                rows.execute("UPDATE items SET until = ?, digest = ? WHERE number = ?", (version, digest, number))
            for entry in put.values():
                _insert(rows, scope, library, entry, version, None)
            rows.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", (scope, library, version))
            return version

    def expired(self, scope: str, library: str, now: float) -> list[str]:
        """Names of the entries whose time is over."""
        with self._rows() as rows:
            found = rows.execute(
                "SELECT name FROM items WHERE scope = ? AND library = ? AND until IS NULL AND expires <= ?",
                (scope, library, now),
            )
            return [name for (name,) in found]

    def hold(self, scope: str, library: str, holder: str) -> int:
        """Keep the library's present version from being collected, for this process's `holder`; the version.

        Not synced to disk: a hold does not outlive its process.
        """
        with self._rows(write=True, durable=False) as rows:
            version = _version(rows, scope, library)
            row = (scope, library, version, this_process(), holder)
            rows.execute("INSERT OR IGNORE INTO holds VALUES (?, ?, ?, ?, ?)", row)
            return version

    def release(self, scope: str, library: str, version: int, holder: str) -> None:
        """End what `hold` began."""
        with self._rows(write=True, durable=False) as rows:
            rows.execute(
                "DELETE FROM holds WHERE scope = ? AND library = ? AND version = ? AND process = ? AND holder = ?",
                (scope, library, version, this_process(), holder),
            )

    def collect(self, scope: str, library: str) -> tuple[list[str], list[str]]:
        """Forget entries that no version in use holds; the chunks and the sources that nothing names any more.

        Holds of processes that have ended do not count.
        """
        where = "WHERE scope = ? AND library = ?"
        with self._rows() as rows:
            ended = rows.execute(f"SELECT 1 FROM items {where} AND until IS NOT NULL LIMIT 1", (scope, library))
            if ended.fetchone() is None:
                return [], []
        with self._rows(write=True) as rows:
            held = rows.execute(f"SELECT DISTINCT process FROM holds {where}", (scope, library)).fetchall()
            for (process,) in held:
                if not is_running(process):
                    rows.execute(f"DELETE FROM holds {where} AND process = ?", (scope, library, process))
            (oldest,) = rows.execute(f"SELECT min(version) FROM holds {where}", (scope, library)).fetchone()
            oldest = _version(rows, scope, library) if oldest is None else oldest
            gone = rows.execute(f"SELECT number FROM items {where} AND until <= ?", (scope, library, oldest)).fetchall()
            free: set[tuple[str, str]] = set()
            for (number,) in gone:
                free.update(rows.execute("SELECT kind, part FROM parts WHERE item = ?", (number,)))
                rows.execute("DELETE FROM parts WHERE item = ?", (number,))
                rows.execute("DELETE FROM items WHERE number = ?", (number,))
            named = "SELECT 1 FROM parts WHERE scope = ? AND part = ?"
            unnamed = [one for one in sorted(free) if rows.execute(named, (scope, one[1])).fetchone() is None]
            chunks = [part for kind, part in unnamed if kind == "chunk"]
            return chunks, [part for kind, part in unnamed if kind == "source"]

    def named(self, scope: str, chunks: Iterable[str]) -> set[str]:
        """Those of some chunks that an entry of the scope names."""
        one = "SELECT 1 FROM parts WHERE scope = ? AND part = ?"
        with self._rows() as rows:
            return {chunk for chunk in chunks if rows.execute(one, (scope, chunk)).fetchone() is not None}

    def sources(self, scope: str) -> dict[str, int]:
        """Digests of the sources that a scope's entries name, with their bytes."""
        with self._rows() as rows:
            found = rows.execute("SELECT DISTINCT part, bytes FROM parts WHERE scope = ? AND kind = 'source'", (scope,))
            return {str(digest): int(size) for digest, size in found}

    def setting(self, scope: str, name: str) -> str | None:
        """A text kept under a name."""
        with self._rows() as rows:
            found = rows.execute("SELECT body FROM settings WHERE scope = ? AND name = ?", (scope, name)).fetchone()
            return None if found is None else str(found[0])

    def set(self, scope: str, name: str, body: str) -> None:
        """Keep a text under a name."""
        with self._rows(write=True) as rows:
            rows.execute("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", (scope, name, body))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()


def _version(rows: sqlite3.Connection, scope: str, library: str) -> int:
    found = rows.execute("SELECT version FROM versions WHERE scope = ? AND library = ?", (scope, library)).fetchone()
    return 0 if found is None else int(found[0])


def _insert(rows: sqlite3.Connection, scope: str, library: str, entry: Entry, since: int, until: int | None) -> None:
    body = entry.json()
    digest = _digest(scope, library, entry.name, since, until, entry.expires, body)
    cursor = rows.execute(
        "INSERT INTO items (scope, library, name, since, until, expires, body, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (scope, library, entry.name, since, until, entry.expires, body, digest),
    )
    parts = [(scope, chunk, cursor.lastrowid, "chunk", 0) for chunk in dict.fromkeys(entry.chunks)]
    if entry.source is not None and entry.source.digest:
        parts.append((scope, entry.source.digest, cursor.lastrowid, "source", entry.source.bytes))
    rows.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?, ?)", parts)


def _digest(*fields: object) -> str:
    """A checksum of a row; what differs in any field or type differs here."""
    return xxhash.xxh3_128_hexdigest(repr(fields).encode("utf-8", "surrogatepass"))

"""What libraries hold: names, versions and who still reads them, in a catalogue."""

import logging
import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import xxhash

from emblema.errors import StoreError
from emblema.library.items import Listing
from emblema.store.catalogue import FILE, Catalogue, DamagedCatalogueError, Tables

_LOG = logging.getLogger(__name__)


class Listings:
    """What every library holds, by scope (owner, model, dtype) and library; shared by threads and processes.

    A row that is not as it was written is left out.

    Args:
        folder: of the libraries; None keeps everything in memory.

    Attributes:
        catalogue: of the folder; vectors are in it too.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._damaged_rows = 0
        self._lock = threading.Lock()
        # Scope, library, version and holder of holds that could not be written.
        self._unwritten_holds: set[tuple[str, str, int, str]] = set()
        # Scope, library and name of entries that were deleted with their media while no row could be written.
        self._unwritten_ends: set[tuple[str, str, str]] = set()
        tables = Tables("library", _STATEMENTS, self._opened, old=("library.sqlite",))
        self.catalogue = Catalogue(None if folder is None else folder / FILE, tables)

    @property
    def damaged(self) -> int:
        """Files set aside and rows left out."""
        return self.catalogue.made_again + self._damaged_rows

    @property
    def read_only(self) -> bool:
        """Whether it can only be read, as its folder cannot be written."""
        return self.catalogue.read_only is not None

    def check_writable(self) -> None:
        """Raises StoreError where it can only be read."""
        self.catalogue.check_writable()

    def _opened(self, rows: sqlite3.Connection, fresh: bool) -> None:
        """Leave out rows that are not as they were written; a version that was lost is told by the others."""
        for number, *fields, body, digest in rows.execute(f"SELECT number, {_FIELDS}, digest FROM items").fetchall():
            entry = _read(digest, *fields, body)
            if entry is None:
                self._damaged_rows += 1
                rows.execute("DELETE FROM items WHERE number = ?", (number,))
            elif fresh:
                _insert_parts(rows, str(fields[0]), entry, number)
        rows.execute(
            "DELETE FROM versions WHERE typeof(version) != 'integer' OR version NOT BETWEEN 0 AND 1000000000000"
        )
        rows.execute(_VERSIONS_OF_ROWS)

    def version(self, scope: str, library: str) -> int:
        """Return the library's version, 0 before anything was put into it."""
        return self.catalogue.read(lambda rows: version_of(rows, scope, library))

    def libraries(self, scope: str) -> tuple[str, ...]:
        """Return the libraries that hold anything now."""
        query = "SELECT DISTINCT library FROM items WHERE scope = ? AND until IS NULL ORDER BY library"
        return tuple(library for (library,) in self._all(query, scope))

    def entries(self, scope: str, library: str, version: int | None = None) -> dict[str, Listing]:
        """Return the library's entries by name, as of a version (None: now), in the order they came in."""
        at = "(SELECT version FROM versions WHERE scope = ?1 AND library = ?2)" if version is None else "?3"
        found = self._entries(
            f"scope = ?1 AND library = ?2 AND since <= {at} AND (until IS NULL OR until > {at}) ORDER BY number",
            scope, library, *([] if version is None else [version]),
        )  # fmt: skip
        hidden = self._ended(scope, library) if version is None else set()
        return {entry.name: entry for entry in found if entry.name not in hidden}

    def entry(self, scope: str, library: str, name: str) -> Listing | None:
        """Return the library's entry of a name, now."""
        if name in self._ended(scope, library):
            return None
        where = "scope = ? AND library = ? AND name = ? AND until IS NULL"
        return next(iter(self._entries(where, scope, library, name)), None)

    def _entries(self, where: str, *given: object) -> list[Listing]:
        """Return the entries for which a condition holds; what is damaged is put in order first."""

        def ask(rows: sqlite3.Connection) -> list[Listing]:
            found = [
                _read(digest, *fields)
                for *fields, digest in rows.execute(f"SELECT {_FIELDS}, digest FROM items WHERE {where}", given)
            ]
            if None in found:
                raise DamagedCatalogueError("an item's checksum differs")
            return [entry for entry in found if entry is not None]

        return self.catalogue.read(ask)

    def _all(self, query: str, *given: object) -> list[Any]:
        return self.catalogue.read(lambda rows: rows.execute(query, given).fetchall())

    def change(
        self, scope: str, library: str, put: Mapping[str, Listing], remove: Iterable[str] = (), fresh: bool = False
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
        late = self._ended(scope, library)
        with self.catalogue.change() as rows:
            version = version_of(rows, scope, library) + 1
            for name in dict.fromkeys((*put, *remove, *late)):
                old = rows.execute(
                    "SELECT number, since, expires, body FROM items "
                    "WHERE scope = ? AND library = ? AND name = ? AND until IS NULL",
                    (scope, library, name),
                ).fetchone()
                if old is None:
                    continue
                if fresh and name in put and name not in late:
                    raise StoreError(f"{name!r} is in the library already: delete it first, or choose another name")
                number, since, expires, body = old
                digest = row_digest(scope, library, name, since, version, expires, body)
                rows.execute("UPDATE items SET until = ?, digest = ? WHERE number = ?", (version, digest, number))
            for entry in put.values():
                insert_entry(rows, scope, library, entry, version, None)
            rows.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", (scope, library, version))
        with self._lock:
            self._unwritten_ends -= {(scope, library, name) for name in late}
        return version

    def end_later(self, scope: str, library: str, names: Iterable[str]) -> None:
        """Hide entries whose media were deleted while no row could be written; the next change deletes their rows.

        A process that ends before that leaves their names without entries.
        """
        with self._lock:
            self._unwritten_ends |= {(scope, library, name) for name in names}

    def _ended(self, scope: str, library: str) -> set[str]:
        with self._lock:
            return {name for its, key, name in self._unwritten_ends if (its, key) == (scope, library)}

    def expired(self, scope: str, library: str, now: float) -> list[str]:
        """Names of the entries whose time is over."""
        query = "SELECT name FROM items WHERE scope = ? AND library = ? AND until IS NULL AND expires <= ?"
        return [name for (name,) in self._all(query, scope, library, now)]

    def hold(self, scope: str, library: str, holder: str) -> int:
        """Keep the library's present version from being collected, for this process's `holder`; the version.

        Not synced to disk: a hold does not outlive its process. Where it cannot be written, as on a full disk or in a
        read-only folder, it counts in this process alone.
        """
        process = this_process()
        try:
            with self.catalogue.change(durable=False) as rows:
                version = version_of(rows, scope, library)
                row = (scope, library, version, process, holder)
                rows.execute("INSERT OR IGNORE INTO holds VALUES (?, ?, ?, ?, ?)", row)
                return version
        except StoreError as error:
            _LOG.debug("a hold stays in memory: %s", error)
        with self._lock:
            version = self.version(scope, library)
            self._unwritten_holds.add((scope, library, version, holder))
        return version

    def release(self, scope: str, library: str, version: int, holder: str) -> None:
        """End what `hold` began."""
        hold = (scope, library, version, holder)
        with self._lock:
            if hold in self._unwritten_holds:
                self._unwritten_holds.remove(hold)
                return
        with self.catalogue.change(durable=False) as rows:
            rows.execute(
                "DELETE FROM holds WHERE scope = ? AND library = ? AND version = ? AND holder = ? AND process = ?",
                (*hold, this_process()),
            )

    def collect(self, scope: str, library: str) -> tuple[list[str], list[str]]:
        """Forget entries that no version in use holds; the chunks and the sources that are to be deleted now.

        They are what nothing names any more: by this call, or by an earlier one whose deletion was not `freed`. Holds
        of processes that have ended do not count.
        """
        where = "WHERE scope = ? AND library = ?"
        if not self._all(f"SELECT 1 FROM items {where} AND until IS NOT NULL LIMIT 1", scope, library):
            return self.catalogue.read(lambda rows: doomed(rows, scope))
        with self.catalogue.change() as rows:
            held = rows.execute(f"SELECT DISTINCT process FROM holds {where}", (scope, library)).fetchall()
            for (process,) in held:
                if not is_running(process):
                    rows.execute(f"DELETE FROM holds {where} AND process = ?", (scope, library, process))
            (oldest,) = rows.execute(f"SELECT min(version) FROM holds {where}", (scope, library)).fetchone()
            here = [held[2] for held in tuple(self._unwritten_holds) if held[:2] == (scope, library)]
            oldest = min([version_of(rows, scope, library), *here, *([] if oldest is None else [oldest])])
            query = f"SELECT number, name FROM items {where} AND until <= ?"
            for number, name in rows.execute(query, (scope, library, oldest)).fetchall():
                rows.execute(
                    "INSERT OR REPLACE INTO doomed SELECT scope, part, kind, ?, ? FROM parts WHERE item = ?",
                    (library, name, number),
                )
                rows.execute("DELETE FROM items WHERE number = ?", (number,))
            rows.execute(
                "DELETE FROM doomed WHERE scope = ? AND EXISTS "
                "(SELECT 1 FROM parts WHERE parts.scope = doomed.scope AND parts.part = doomed.part)",
                (scope,),
            )
            return doomed(rows, scope)

    def freed(self, scope: str, parts: Iterable[str]) -> None:
        """Chunks and sources that `collect` gave are deleted, everywhere; their vectors are, now."""
        gone = [(scope, part) for part in parts]
        if gone:
            with self.catalogue.change() as rows:
                rows.executemany("DELETE FROM doomed WHERE scope = ? AND part = ?", gone)
                rows.executemany("DELETE FROM vectors WHERE scope = ? AND chunk = ?", gone)

    def lingers(self, scope: str, library: str, name: str) -> bool:
        """Return whether something of an entry that was taken out has still to be deleted."""
        query = (
            "SELECT 1 FROM doomed WHERE scope = ?1 AND library = ?2 AND name = ?3 UNION ALL "
            "SELECT 1 FROM items WHERE scope = ?1 AND library = ?2 AND name = ?3 AND until IS NOT NULL"
        )
        return bool(self._all(query, scope, library, name))

    def only_in(self, scope: str, library: str, name: str) -> tuple[list[str], list[str]]:
        """Return the chunks and the sources that an entry names and no other."""
        query = (
            "SELECT kind, part FROM parts JOIN items ON number = item AND items.scope = ?1 AND library = ?2 "
            "AND name = ?3 AND until IS NULL WHERE NOT EXISTS "
            "(SELECT 1 FROM parts others WHERE others.scope = ?1 AND others.part = parts.part AND item != number)"
        )
        return by_kind(self._all(query, scope, library, name))

    def named(self, scope: str, chunks: Iterable[str]) -> set[str]:
        """Return those of some chunks that an entry of the scope names."""
        one = "SELECT 1 FROM parts WHERE scope = ? AND part = ?"
        return {chunk for chunk in chunks if self._all(one, scope, chunk)}

    def sources(self, scope: str) -> dict[str, int]:
        """Digests of the sources that a scope's entries name, with their bytes."""
        query = "SELECT DISTINCT part, bytes FROM parts WHERE scope = ? AND kind = 'source'"
        return {str(digest): int(size) for digest, size in self._all(query, scope)}

    def setting(self, scope: str, name: str) -> str | None:
        """Return a text kept under a name."""
        found = self._all("SELECT body FROM settings WHERE scope = ? AND name = ?", scope, name)
        return str(found[0][0]) if found else None

    def set(self, scope: str, name: str, body: str) -> None:
        """Keep a text under a name."""
        with self.catalogue.change() as rows:
            rows.execute("INSERT OR REPLACE INTO settings VALUES (?, ?, ?)", (scope, name, body))

    def close(self) -> None:
        """Close the file."""
        for scope, library in {ended[:2] for ended in tuple(self._unwritten_ends)}:
            try:
                self.change(scope, library, {})
            except StoreError as error:
                _LOG.warning("names of deleted entries are left over: %s", error)
        self.catalogue.close()


# A row is there for versions since <= version < until; a NULL until is open.
_FIELDS = "scope, library, name, since, until, expires, body"
_STATEMENTS = (
    """CREATE TABLE items (
    number INTEGER PRIMARY KEY, scope TEXT NOT NULL, library TEXT NOT NULL, name TEXT NOT NULL,
    since INTEGER NOT NULL, until INTEGER, expires REAL, body TEXT NOT NULL, digest TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX items_open ON items (scope, library, name) WHERE until IS NULL",
    "CREATE INDEX items_ended ON items (scope, library, until) WHERE until IS NOT NULL",
    "CREATE INDEX items_expire ON items (expires) WHERE expires IS NOT NULL",
    """CREATE TABLE parts (
    scope TEXT NOT NULL, part TEXT NOT NULL, item INTEGER NOT NULL REFERENCES items ON DELETE CASCADE,
    kind TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (scope, part, item)) WITHOUT ROWID""",
    "CREATE INDEX parts_item ON parts (item)",
    "CREATE TABLE versions (scope TEXT, library TEXT, version INTEGER, PRIMARY KEY (scope, library))",
    """CREATE TABLE holds (scope TEXT, library TEXT, version INTEGER, process TEXT, holder TEXT,
    PRIMARY KEY (scope, library, version, process, holder))""",
    """CREATE TABLE doomed (
    scope TEXT NOT NULL, part TEXT NOT NULL, kind TEXT NOT NULL, library TEXT NOT NULL, name TEXT NOT NULL,
    PRIMARY KEY (scope, part)) WITHOUT ROWID""",
    "CREATE TABLE settings (scope TEXT, name TEXT, body TEXT, PRIMARY KEY (scope, name))",
    """CREATE TABLE vectors (
    scope TEXT NOT NULL, embedder TEXT NOT NULL, chunk TEXT NOT NULL, width INTEGER NOT NULL, vectors BLOB NOT NULL,
    checksum TEXT NOT NULL, PRIMARY KEY (scope, embedder, chunk))""",
)
_VERSIONS_OF_ROWS = """
INSERT INTO versions SELECT scope, library, max(max(since, coalesce(until, 0))) FROM items
    WHERE max(since, coalesce(until, 0)) BETWEEN 0 AND 1000000000000 GROUP BY scope, library
    ON CONFLICT DO UPDATE SET version = excluded.version WHERE excluded.version > version
"""


def version_of(rows: sqlite3.Connection, scope: str, library: str) -> int:
    """Return the library's version, 0 before anything was put into it."""
    found = rows.execute("SELECT version FROM versions WHERE scope = ? AND library = ?", (scope, library)).fetchone()
    return 0 if found is None else int(found[0])


def doomed(rows: sqlite3.Connection, scope: str) -> tuple[list[str], list[str]]:
    """Return the chunks and the sources of a scope that are still to be deleted."""
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
    parts = _insert_parts(rows, scope, entry, cursor.lastrowid)
    rows.executemany("DELETE FROM doomed WHERE scope = ? AND part = ?", [part[:2] for part in parts])


def _insert_parts(rows: sqlite3.Connection, scope: str, entry: Listing, item: int | None) -> list[tuple[object, ...]]:
    """Add the rows of an entry's chunks and source, and return them."""
    parts: list[tuple[object, ...]] = [(scope, chunk, item, "chunk", 0) for chunk in dict.fromkeys(entry.chunks)]
    if entry.source is not None and entry.source.digest:
        parts.append((scope, entry.source.digest, item, "source", entry.source.bytes))
    rows.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?, ?)", parts)
    return parts


def _read(digest: str, *fields: Any) -> Listing | None:
    """Return the entry of a row, its body last; None where the row is not as it was written."""
    if digest != row_digest(*fields):
        return None
    try:
        return Listing.read(fields[-1])
    except ValueError:
        return None


def row_digest(*fields: object) -> str:
    """Return a checksum of a row; what differs in any field or type differs here."""
    return xxhash.xxh3_128_hexdigest(repr(fields).encode("utf-8", "surrogatepass"))


def this_process() -> str:
    """Return a text that names this process and no later one with the same number."""
    return f"{os.getpid()} {_started(os.getpid())}"


def is_running(process: str) -> bool:
    """Return whether the process of such a text still runs on this machine."""
    number, _, started = process.partition(" ")
    if not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return _started(int(number)) == started


def _started(number: int) -> str:
    """Clock ticks from the machine's start to the process's, where the system tells; else an empty text."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""

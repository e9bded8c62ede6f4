"""What libraries hold: names, versions and who still reads them, in a catalogue."""

import logging
import os
import sqlite3
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from emblema.errors import StoreError
from emblema.library.items import Listing
from emblema.store.catalogue import FILE, Catalogue, DamagedCatalogueError, Tables

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionHold:
    """A version of a library that is not to be collected."""

    scope: str
    library: str
    version: int
    holder: str


@dataclass(frozen=True, slots=True)
class EndedItems:
    """Items that no version in use holds.

    Attributes:
        numbers: of their rows.
        chunks, sources: what they name and no other item does.
    """

    numbers: tuple[int, ...] = ()
    chunks: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


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
        tables = Tables("library", _STATEMENTS, self._opened, old=("library.sqlite",))
        self.catalogue = Catalogue(None if folder is None else folder / FILE, tables)

    @property
    def damaged(self) -> int:
        """Files set aside and rows left out."""
        return self.catalogue.made_again + self._damaged_rows

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
        return {entry.name: entry for entry in found}

    def entry(self, scope: str, library: str, name: str) -> Listing | None:
        """Return the library's entry of a name, now."""
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
        with self.catalogue.change() as rows:
            version = version_of(rows, scope, library) + 1
            for name in dict.fromkeys((*put, *remove)):
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
                digest = row_digest(scope, library, name, since, version, expires, body)
                rows.execute("UPDATE items SET until = ?, digest = ? WHERE number = ?", (version, digest, number))
            for entry in put.values():
                _insert_entry(rows, scope, library, entry, version)
            rows.execute("INSERT OR REPLACE INTO versions VALUES (?, ?, ?)", (scope, library, version))
        return version

    def expired(self, scope: str, library: str, now: float) -> list[str]:
        """Names of the entries whose time is over."""
        query = "SELECT name FROM items WHERE scope = ? AND library = ? AND until IS NULL AND expires <= ?"
        return [name for (name,) in self._all(query, scope, library, now)]

    def hold(self, scope: str, library: str) -> VersionHold:
        """Keep the library's present version from being collected, until `release` or the end of this process.

        Not synced to disk: a hold does not outlive its process. Where it cannot be written, as on a full disk or in a
        read-only folder, the version is read all the same.
        """
        holder = uuid.uuid4().hex
        try:
            with self.catalogue.change(durable=False) as rows:
                version = version_of(rows, scope, library)
                row = (scope, library, version, this_process(), holder)
                rows.execute("INSERT INTO holds VALUES (?, ?, ?, ?, ?)", row)
        except StoreError as error:
            _LOG.debug("a version is not held: %s", error)
            version = self.version(scope, library)
        return VersionHold(scope, library, version, holder)

    def release(self, held: VersionHold) -> None:
        """End what `hold` began."""
        if self.catalogue.read_only is None:
            with self.catalogue.change(durable=False) as rows:
                rows.execute("DELETE FROM holds WHERE holder = ?", (held.holder,))

    def ended(self, scope: str, library: str) -> EndedItems:
        """Return the items that no version in use holds; holds of processes that have ended do not count."""
        where = "WHERE scope = ? AND library = ?"
        if not self._all(f"SELECT 1 FROM items {where} AND until IS NOT NULL LIMIT 1", scope, library):
            return EndedItems()
        with self.catalogue.change(durable=False) as rows:
            for (process,) in rows.execute(f"SELECT DISTINCT process FROM holds {where}", (scope, library)).fetchall():
                if not is_running(process):
                    rows.execute("DELETE FROM holds WHERE process = ?", (process,))
            (held,) = rows.execute(f"SELECT min(version) FROM holds {where}", (scope, library)).fetchone()
            oldest = version_of(rows, scope, library) if held is None else held
            found = rows.execute(f"SELECT number FROM items {where} AND until <= ?", (scope, library, oldest))
            return _named_alone(rows, scope, [number for (number,) in found.fetchall()])

    def forget(self, scope: str, ended: EndedItems, deleted: Collection[str]) -> None:
        """Forget ended items whose chunks and sources are deleted everywhere; the others are given by `ended` again."""
        left = {*ended.chunks, *ended.sources}.difference(deleted)
        with self.catalogue.change() as rows:
            rows.executemany("DELETE FROM vectors WHERE scope = ? AND chunk = ?", [(scope, part) for part in deleted])
            for number in ended.numbers:
                parts = {part for part, _ in _parts_of(rows, number)}
                gone = [(scope, part, number) for part in parts.intersection(deleted)]
                rows.executemany("DELETE FROM parts WHERE scope = ? AND part = ? AND item = ?", gone)
                if left.isdisjoint(parts):
                    rows.execute("DELETE FROM items WHERE number = ?", (number,))

    def is_ending(self, scope: str, library: str, name: str) -> bool:
        """Return whether something of an entry that was taken out has still to be deleted."""
        query = "SELECT 1 FROM items WHERE scope = ? AND library = ? AND name = ? AND until IS NOT NULL"
        return bool(self._all(query, scope, library, name))

    def named_alone(self, scope: str, library: str, name: str) -> EndedItems:
        """Return an entry as if it had ended: what it names and no other."""
        query = "SELECT number FROM items WHERE scope = ? AND library = ? AND name = ? AND until IS NULL"
        numbers = [number for (number,) in self._all(query, scope, library, name)]
        return self.catalogue.read(lambda rows: _named_alone(rows, scope, numbers))

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
    "DROP TABLE doomed",
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


def _parts_of(rows: sqlite3.Connection, number: int) -> list[tuple[str, str]]:
    """Return the chunks and sources of an item's row, each with its kind."""
    return rows.execute("SELECT part, kind FROM parts WHERE item = ?", (number,)).fetchall()


def _named_alone(rows: sqlite3.Connection, scope: str, numbers: Sequence[int]) -> EndedItems:
    """Return items by number, with what no other item of the scope names."""
    alone, own = dict[str, str](), set(numbers)
    for number in numbers:
        for part, kind in _parts_of(rows, number):
            items = rows.execute("SELECT item FROM parts WHERE scope = ? AND part = ?", (scope, part))
            if own.issuperset(item for (item,) in items):
                alone[part] = kind
    chunks, sources = (tuple(part for part, kind in alone.items() if kind == one) for one in ("chunk", "source"))
    return EndedItems(tuple(numbers), chunks, sources)


def _insert_entry(rows: sqlite3.Connection, scope: str, library: str, entry: Listing, since: int) -> None:
    """Add an entry's row and its parts'."""
    body = entry.json()
    digest = row_digest(scope, library, entry.name, since, None, entry.expires, body)
    cursor = rows.execute(
        "INSERT INTO items (scope, library, name, since, expires, body, digest) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (scope, library, entry.name, since, entry.expires, body, digest),
    )
    _insert_parts(rows, scope, entry, cursor.lastrowid)


def _insert_parts(rows: sqlite3.Connection, scope: str, entry: Listing, item: int | None) -> None:
    """Add the rows of an entry's chunks and source."""
    parts: list[tuple[object, ...]] = [(scope, chunk, item, "chunk", 0) for chunk in dict.fromkeys(entry.chunks)]
    if entry.source is not None and entry.source.digest:
        parts.append((scope, entry.source.digest, item, "source", entry.source.bytes))
    rows.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?, ?, ?, ?)", parts)


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

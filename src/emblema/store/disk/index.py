"""The index of a disk tier: one sqlite file in WAL mode, shared by every process that uses the folder."""

import sqlite3
import stat
import struct
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.folder import clear
from emblema.store.record import SHARED, RecordKind, Terms

_VERSION = 2
_APPLICATION = 0x656D626C
"""The marks of a file that holds these tables."""
_PAGE = 512
"""Rows that are read at once."""
_CACHE = 64 * 2**20
"""Bytes of pages that a connection keeps at most: the upper levels of a million entries' trees."""
_WAIT = 60.0
"""Seconds to wait for another process's change."""

_TABLES = """
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


class DamagedIndexError(sqlite3.DatabaseError):
    """A row of the index is not what was written."""


class IndexRow(NamedTuple):
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
        """Return the rows of `parts`: each chunk that a patch was made from, with the patch."""
        return [(self.chunks[start : start + 32], self.id) for start in range(0, len(self.chunks), 32)]

    def is_whole(self) -> bool:
        """Return whether it is as it was written."""
        return self.checksum == self.own_checksum()

    def own_checksum(self) -> _Blob:
        """Return the checksum of all but the time of access, which changes with every use and is in the file."""
        return checksum((self[:_ACCESSED], self[_ACCESSED + 1 : -1]))

    def is_of(self, inode: int) -> bool:
        """Return whether it was written for the file of this inode."""
        return self.inode == inode & _LARGEST_INODE


_ACCESSED = IndexRow._fields.index("accessed")
_COLUMNS = ", ".join(IndexRow._fields)
_SELECT = f"SELECT {_COLUMNS} FROM pieces WHERE"
_INSERT = f"INSERT INTO pieces ({_COLUMNS}) VALUES ({', '.join('?' for _ in IndexRow._fields)})"


def owner_bytes(owner: str) -> bytes:
    return owner.encode() if owner == SHARED else bytes.fromhex(owner)


def row_of(entry: DiskEntry, inode: int) -> IndexRow:
    """Return an entry as a row, its checksum last: sqlite keeps none of its own."""
    terms = entry.terms
    row = IndexRow(
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
    return row._replace(checksum=row.own_checksum())


def entry_of_row(row: IndexRow) -> DiskEntry:
    """Return the entry of a row.

    Raises:
        DamagedIndexError: its checksum differs.
    """
    if not row.is_whole():
        raise DamagedIndexError("a row's checksum differs")
    return DiskEntry(
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
    """Return the checksum of a number, a text, bytes or a tuple of them."""
    return struct.pack("<Q", xxh3_64_intdigest(repr(value).encode()))


def summed(*values: object) -> bytes:
    """Return the checksum of several values: what the tables' triggers call `summed`."""
    return checksum(values)


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means that the index itself is bad, rather than that it is busy or cannot be written."""
    if isinstance(error, DamagedIndexError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return not isinstance(error, sqlite3.ProgrammingError)
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
    return code & 0xFF in damage or code == sqlite3.SQLITE_IOERR_SHORT_READ


class Connection(sqlite3.Connection):
    """A connection whose errors are sqlite's own also where a damaged schema's names are no text."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*statement)
        except UnicodeDecodeError as error:
            raise DamagedIndexError(f"its schema is no text: {error}") from error


class Index:
    """Entries by id. Reading never waits for a change under way; changes are made within `transaction`.

    Every method raises `sqlite3.Error`; `is_damage` tells which of them mean that the index must be made again.

    Args:
        path: of its file, made where it is not there; None for one in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.fresh = False
        self._writing = threading.RLock()
        self._reading = self._writing if path is None else threading.RLock()
        self._changer: int | None = None
        with ExitStack() as opened:
            self._writer = self._connect(opened)
            self._prepare()
            self._reader = self._writer if path is None else self._connect(opened)
            if path is not None:
                self._reader.execute("PRAGMA query_only = 1")
            self.inode = None if path is None else path.stat().st_ino
            opened.pop_all()

    def _connect(self, opened: ExitStack) -> sqlite3.Connection:
        """Return a connection that `opened` closes."""
        name = ":memory:" if self.path is None else f"{self.path.as_uri()}?mode=rwc"
        connection = sqlite3.connect(
            name, timeout=_WAIT, isolation_level=None, check_same_thread=False, factory=Connection, uri=True
        )
        opened.callback(connection.close)
        connection.create_function("summed", 4, summed, deterministic=True)
        connection.execute(f"PRAGMA cache_size = -{_CACHE // 1024}")
        return connection

    def _prepare(self) -> None:
        if self.path is not None:
            self._writer.execute("PRAGMA journal_mode = WAL")
            self.path.chmod(0o600)
        # The files are the truth: what a power cut takes from the end of the log is found again by a scan.
        self._writer.execute("PRAGMA synchronous = NORMAL")
        self._writer.execute("PRAGMA cell_size_check = 1")
        (tables,) = self._writer.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables == 0:
            marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_VERSION};"
            self._writer.executescript(f"BEGIN IMMEDIATE; {_TABLES} {marks} COMMIT;")
            self.fresh = True
        marks_found = [
            self._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        ]
        if marks_found != [_APPLICATION, _VERSION]:
            raise DamagedIndexError(f"its marks are {marks_found}")

    def check(self) -> None:
        """Raise DamagedIndexError where the file's structure does not hold together."""
        with self._reading:
            (found,) = self._reader.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise DamagedIndexError(str(found))

    def close(self) -> None:
        with self._writing, self._reading:
            for connection in {self._reader, self._writer}:
                # A file that went bad cannot be checkpointed; it is made again from the pieces.
                with suppress(sqlite3.Error):
                    connection.close()

    # Reading

    @contextmanager
    def _view(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to read with; the thread that changes the index sees its own changes."""
        if self._changer == threading.get_ident():
            yield self._writer
        else:
            with self._reading:
                yield self._reader

    def get(self, id: str) -> DiskEntry | None:
        with self._view() as connection:
            row = connection.execute(f"{_SELECT} id = ?", (bytes.fromhex(id),)).fetchone()
        return None if row is None else entry_of_row(IndexRow._make(row))

    def get_many(self, ids: Sequence[str]) -> list[DiskEntry]:
        """Return the entries of those of some ids that are here."""
        found: list[DiskEntry] = []
        for start in range(0, len(ids), _PAGE):
            given = [bytes.fromhex(id) for id in ids[start : start + _PAGE]]
            with self._view() as connection:
                rows = connection.execute(f"{_SELECT} id IN ({', '.join('?' * len(given))})", given).fetchall()
            found += [entry_of_row(IndexRow._make(row)) for row in rows]
        return found

    def version(self) -> int:
        """Return a number that is another after every change, by any process."""
        with self._view() as connection:
            (version,) = connection.execute("PRAGMA data_version").fetchone()
            return int(version) if self.path is not None else connection.total_changes

    def has_patches(self, chunk: str) -> bool:
        """Return whether any patch was made from a chunk."""
        with self._view() as connection:
            query = "SELECT 1 FROM parts WHERE chunk = ? LIMIT 1"
            return connection.execute(query, (bytes.fromhex(chunk),)).fetchone() is not None

    def page(self, after: str, owner: str | None = None, kind: str | None = None) -> list[DiskEntry]:
        """Return the next entries by id, those after an id ("" for the first); none at the end."""
        where, given = _where(owner, kind)
        query = f"{_SELECT} id > ?{where} ORDER BY id LIMIT {_PAGE}"
        with self._view() as connection:
            rows = connection.execute(query, (bytes.fromhex(after), *given)).fetchall()
        return [entry_of_row(IndexRow._make(row)) for row in rows]

    def totals(self, owner: str | None = None, kind: str | None = None) -> tuple[int, int]:
        """Return how many pieces there are, and their bytes."""
        where, given = _where(owner, kind)
        whole = "coalesce(min(checksum IS summed(owner, kind, pieces, bytes)), 1)"
        query = f"SELECT coalesce(sum(pieces), 0), coalesce(sum(bytes), 0), {whole} FROM totals WHERE 1{where}"
        with self._view() as connection:
            pieces, bytes, right = connection.execute(query, given).fetchone()
        if not right:
            raise DamagedIndexError("the checksum of a total differs")
        return pieces, bytes

    def patches_of(self, chunk: str) -> list[str]:
        with self._view() as connection:
            rows = connection.execute("SELECT patch FROM parts WHERE chunk = ?", (bytes.fromhex(chunk),)).fetchall()
        return [patch.hex() for (patch,) in rows]

    # Changing; within a transaction

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Do everything within or, after an exception, nothing; no other process changes the index meanwhile."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            self._changer = threading.get_ident()
            try:
                yield
                self._writer.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._writer.execute("ROLLBACK")
                raise
            finally:
                self._changer = None

    def put(self, entry: DiskEntry, inode: int) -> None:
        """Keep an entry and which file holds it, in place of the one of the same id."""
        self.put_row(row_of(entry, inode))

    def put_row(self, row: IndexRow) -> None:
        self.remove_row(row.id)
        self._writer.execute(_INSERT, row)
        self._writer.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", row.parts())

    def get_row(self, id: str) -> IndexRow | None:
        """Return the row of an id as this transaction has it, unchecked."""
        row = self._writer.execute(f"{_SELECT} id = ?", (bytes.fromhex(id),)).fetchone()
        return None if row is None else IndexRow._make(row)

    def remove(self, id: str) -> None:
        self.remove_row(bytes.fromhex(id))

    def set_accessed(self, moments: Mapping[str, float]) -> None:
        """Later moments only: a use seen earlier never takes a piece back."""
        self._writer.executemany(
            "UPDATE pieces SET accessed = ?2 WHERE id = ?1 AND accessed < ?2",
            [(bytes.fromhex(id), moment) for id, moment in moments.items()],
        )

    def victims(self, bytes: int, spared: Collection[str], owner: str | None = None) -> dict[str, int]:
        """Return ids, with their bytes, to evict for `bytes` bytes: low priorities and the least recently used first.

        Pinned and spared pieces are not among them; fewer bytes where there is no more to evict.
        """
        chosen: dict[str, int] = {}
        if bytes <= 0:
            return chosen
        where, given = _where(owner, None)
        query = f"SELECT id, bytes FROM pieces WHERE pinned = 0{where} ORDER BY priority, accessed"
        cursor = self._writer.execute(query, given)
        while rows := cursor.fetchmany(_PAGE):
            for key, size in rows:
                if (id := key.hex()) not in spared:
                    chosen[id] = size
                    bytes -= size
                    if bytes <= 0:
                        return chosen
        return chosen

    def ended(self, now: float) -> list[str]:
        """Return ids of what has expired."""
        query = "SELECT id FROM pieces WHERE ends <= ? AND (expires IS NOT NULL OR idle IS NOT NULL)"
        return [id.hex() for (id,) in self._writer.execute(query, (now,))]

    def shards(self) -> frozenset[int]:
        """Return numbers of shards, of which all others have no rows."""
        found, query = {0}, "SELECT min(id) FROM pieces WHERE id >= ?"
        while (number := max(found) + 1) < 256:
            ((least,),) = self._writer.execute(query, (bytes([number]),)).fetchall()
            if least is None:
                break
            found.add(least[0])
        return frozenset(found)

    def shard(self, number: int) -> list[IndexRow]:
        """Return the rows of ids that start with this byte, unchecked; with 0 also those whose ids are no bytes."""
        # Bytes are after numbers and texts in sqlite's order.
        conditions, given = [], []
        if number > 0:
            conditions.append("id >= ?")
            given.append(bytes([number]))
        if number < 255:
            conditions.append("id < ?")
            given.append(bytes([number + 1]))
        return [IndexRow._make(row) for row in self._writer.execute(f"{_SELECT} {' AND '.join(conditions)}", given)]

    def remove_row(self, id: bytes) -> None:
        """Remove a row whose contents are not to be trusted, its id included."""
        self._writer.execute("DELETE FROM pieces WHERE id = ?", (id,))

    def set_totals(self, totals: Mapping[tuple[bytes, str], tuple[int, int]]) -> None:
        """Set what a scan counted, by owner and kind."""
        self._writer.execute("DELETE FROM totals")
        rows = [(*key, *counts, summed(*key, *counts)) for key, counts in totals.items()]
        self._writer.executemany("INSERT INTO totals VALUES (?, ?, ?, ?, ?)", rows)

    def parts(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield every chunk of every patch."""
        yield from self._writer.execute("SELECT chunk, patch FROM parts")

    def set_parts(self, parts: Iterable[tuple[bytes, bytes]]) -> None:
        self._writer.execute("DELETE FROM parts")
        self._writer.executemany("INSERT OR IGNORE INTO parts VALUES (?, ?)", parts)

    def latest(self) -> float:
        """Return the latest steady time that any process wrote."""
        row = self._writer.execute("SELECT seconds, checksum FROM moments WHERE name = 'latest'").fetchone()
        if row is None:
            return 0.0
        seconds, written = row
        if written != checksum(seconds):
            raise DamagedIndexError("the latest moment's checksum differs")
        return float(seconds)

    def set_latest(self, moment: float) -> None:
        self._writer.execute("INSERT OR REPLACE INTO moments VALUES ('latest', ?, ?)", (moment, checksum(moment)))

    def checkpoint(self) -> None:
        """Bring the log into the file; outside a transaction."""
        with self._writing:
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def remove_index(path: Path) -> None:
    """Delete an index's files, the log first: a log must never meet another index. It may not change meanwhile."""
    for each in _files(path):
        clear(each)


def is_plain(path: Path) -> bool:
    """Return whether none of an index's files is a link, a folder or a pipe, on which sqlite would wait."""
    for each in _files(path):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(each.lstat().st_mode):
                return False
    return True


def _files(path: Path) -> list[Path]:
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal", "")]


def _where(owner: str | None, kind: str | None) -> tuple[str, list[bytes | str]]:
    conditions: list[str] = []
    given: list[bytes | str] = []
    if owner is not None:
        conditions.append(" AND owner = ?")
        given.append(owner_bytes(owner))
    if kind is not None:
        conditions.append(" AND kind = ?")
        given.append(kind)
    return "".join(conditions), given

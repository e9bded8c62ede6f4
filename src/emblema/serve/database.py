"""A small sqlite file of a server, which several processes may share."""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from emblema.errors import StoreError
from emblema.serve.faults import ServeError, missing
from emblema.store.files import make_folder


class Database:
    """Transactions on one file, which is made with its folder and its tables; what they wrote is on disk at their end.

    Raises:
        StoreError: the file cannot be opened, or is no database.
    """

    def __init__(self, path: Path, tables: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            make_folder(path.parent)
            with self._failing(), closing(self._connect()) as connection:
                connection.executescript(tables)
            path.chmod(0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that writes: all of it is done or, after an exception, nothing.

        Raises:
            StoreError: the file fails.
            ServeError: another process holds it for longer than is waited for.
        """
        with self._lock, self._failing(), closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that only reads: it sees one state, and waits for no writer; errors as `transaction`."""
        with self._failing(), closing(self._connect()) as connection:
            connection.execute("BEGIN DEFERRED")
            yield connection

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                held = f"{self.path.name} is held by another process: try again"
                raise ServeError(503, held, "store_busy") from error
            raise StoreError(f"{self.path} fails: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=10.0, isolation_level=None)
        connection.row_factory = sqlite3.Row
        # Unlike with FULL, the deletion of the journal is durable too: otherwise a power cut may undo a transaction.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection


class OwnedTable(Database):
    """A table of what tenants keep. A row has an owner, an id and perhaps an end, and only its owner finds it.

    Args:
        path: of the file.
        kind: what a row is, as clients are told; with an `s` it is the table's name.
        columns: beside owner, id, the tenant's name, and the Unix times `created` and `expires`.
        clock: returns Unix time in seconds.
    """

    def __init__(self, path: Path, kind: str, columns: str, clock: Callable[[], float]) -> None:
        self.clock, self._kind = clock, kind
        self._select = f"SELECT * FROM {kind}s WHERE owner = ? AND ifnull(expires > ?, 1)"
        super().__init__(
            path,
            f"CREATE TABLE IF NOT EXISTS {kind}s (owner TEXT NOT NULL, id TEXT NOT NULL, tenant TEXT NOT NULL, "
            f"created REAL NOT NULL, expires REAL, {columns}, PRIMARY KEY (owner, id))",
        )
        with self.transaction() as connection:
            # An older version made the table.
            known = {row["name"] for row in connection.execute(f"PRAGMA table_info({kind}s)")}
            for column in re.split(r",\s*", columns.strip()):
                if column.split()[0] not in known:
                    connection.execute(f"ALTER TABLE {kind}s ADD COLUMN {column}")

    def find(self, connection: sqlite3.Connection, owner: str, id: str) -> sqlite3.Row | None:
        """Return a row, within a transaction; None where there is none, or its time is over."""
        found: sqlite3.Row | None = connection.execute(
            f"{self._select} AND id = ?", (owner, self.clock(), id)
        ).fetchone()
        return found

    def row(self, owner: str, id: str) -> sqlite3.Row:
        """Return a row; `ServeError` where the owner has none of this id."""
        with self.reading() as connection:
            found = self.find(connection, owner, id)
        if found is None:
            raise missing(self._kind, id)
        return found

    def rows(self, owner: str) -> list[sqlite3.Row]:
        """Return an owner's rows, the newest first."""
        with self.reading() as connection:
            return connection.execute(f"{self._select} ORDER BY created DESC, id", (owner, self.clock())).fetchall()

    def put(self, connection: sqlite3.Connection, **values: Any) -> None:
        """Write a row, within a transaction, in place of one of its owner and id."""
        names, places = ", ".join(values), ", ".join("?" * len(values))
        connection.execute(f"INSERT OR REPLACE INTO {self._kind}s ({names}) VALUES ({places})", tuple(values.values()))


def keyed_id(kind: str, context: str, owner: str, content: bytes) -> str:
    """Return an id that follows from its content, for one owner."""
    key = blake3(owner.encode(), derive_key_context=context).digest()
    return f"{kind}-{blake3(content, key=key).hexdigest()[:32]}"

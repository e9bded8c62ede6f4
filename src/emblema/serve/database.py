"""A small sqlite file of a server, which several processes may share."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from emblema.errors import StoreError
from emblema.store.files import make_folder


class Database:
    """Transactions on one file; what is written is on disk when the transaction is over.

    Args:
        path: of the file; its folder is made.
        tables: statements that make the tables.

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
        """Run a transaction: everything within is done or, after an exception, nothing.

        Raises:
            StoreError: the file is locked, full, gone or damaged.
        """
        with self._lock, self._failing(), closing(self._connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} fails: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=10.0, isolation_level=None)
        connection.row_factory = sqlite3.Row
        # Unlike with FULL, the deletion of the journal is durable too: otherwise a power cut may undo a transaction.
        connection.execute("PRAGMA synchronous = EXTRA")
        return connection

"""The deletions of processes that share a folder: a small sqlite file."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from emblema.errors import StoreError
from emblema.store.deletion_feed import Deletions
from emblema.store.files import make_folder

KEPT = 100_000
"""Deletions that are remembered."""
_TABLE = """
CREATE TABLE IF NOT EXISTS deletions (
    position INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, id TEXT NOT NULL
)
"""


class FolderFeed:
    """A `DeletionFeed` in a file that all processes on one machine open.

    Args:
        path: of the file; made with its folder where it is missing.
        kept: deletions that are remembered.

    Raises:
        StoreError: it cannot be opened.
    """

    def __init__(self, path: str | Path, kept: int = KEPT) -> None:
        self._path, self._kept = Path(path), kept
        self._lock = threading.Lock()
        try:
            make_folder(self._path.parent)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error}") from error
        with self._transaction() as connection:
            connection.execute(_TABLE)

    def publish(self, owner: str, id: str) -> None:
        with self._transaction() as connection:
            added = connection.execute("INSERT INTO deletions (owner, id) VALUES (?, ?)", (owner, id)).lastrowid
            connection.execute("DELETE FROM deletions WHERE position <= ?", ((added or 0) - self._kept,))

    def read(self, after: str | None) -> Deletions:
        with self._transaction() as connection:
            oldest, newest = connection.execute("SELECT min(position), max(position) FROM deletions").fetchone()
            newest = newest or 0
            if after is None or not after.isdecimal():
                return Deletions((), str(newest), gap=after is not None)
            given = int(after)
            query = "SELECT owner, id FROM deletions WHERE position > ? ORDER BY position"
            names = tuple((owner, id) for owner, id in connection.execute(query, (given,)))
            # A file that was deleted and made anew begins again.
            return Deletions(names, str(newest), gap=given > newest or given + 1 < (oldest or 0))

    def close(self) -> None:
        """Do nothing: every transaction has a connection of its own."""

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, closing(sqlite3.connect(self._path, timeout=10.0, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    yield connection
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} fails: {error}") from error

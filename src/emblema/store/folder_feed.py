"""The deletions of processes that share a folder: a small sqlite file."""

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from emblema.errors import StoreError
from emblema.store.deletion_feed import FIRST, Deletions
from emblema.store.files import make_folder

KEPT = 1_000_000
"""Deletions that are remembered."""
_TABLE = """
CREATE TABLE IF NOT EXISTS deletions (
    position INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, id TEXT NOT NULL
)
"""
_TOKENS = "ALTER TABLE deletions ADD COLUMN token TEXT NOT NULL DEFAULT ''"
_ADD = "INSERT INTO deletions (owner, id, token) VALUES (?, ?, ?)"


class FolderFeed:
    """A `DeletionFeed` in a file that all processes on one machine open.

    A position names an entry by its number and a random token, so that no other feed has it: neither one that was made
    in its place, nor an older copy that was put there.

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
        self._prepare()

    def publish(self, owner: str, id: str) -> None:
        self._prepare()
        with self._transaction() as connection:
            added = connection.execute(_ADD, (owner, id, secrets.token_hex(8))).lastrowid
            connection.execute("DELETE FROM deletions WHERE position <= ?", ((added or 0) - self._kept,))

    def read(self, after: str | None) -> Deletions:
        self._prepare()
        number, _, token = (after or "").partition("-")
        with self._transaction(writes=False) as connection:
            last = "SELECT position || '-' || token FROM deletions ORDER BY position DESC LIMIT 1"
            newest = connection.execute(last).fetchone()[0]
            if after is None:
                return Deletions((), newest)
            known = connection.execute("SELECT token FROM deletions WHERE position = ?", (number,)).fetchone()
            if known != (token,):
                return Deletions((), newest, gap=True)
            query = "SELECT owner, id FROM deletions WHERE position > ? ORDER BY position"
            return Deletions(tuple((owner, id) for owner, id in connection.execute(query, (number,))), newest)

    def _prepare(self) -> None:
        """Make what is missing of the file: it may be new, lost while this runs, or as an older version wrote it."""
        with self._transaction(writes=False) as connection:
            if _is_ready(connection):
                return
        with self._transaction() as connection:
            connection.execute(_TABLE)
            if not _has_tokens(connection):
                connection.execute(_TOKENS)
            if not _is_ready(connection):
                connection.execute(_ADD, (*FIRST, secrets.token_hex(8)))

    def close(self) -> None:
        """Do nothing: every transaction has a connection of its own."""

    @contextmanager
    def _transaction(self, writes: bool = True) -> Iterator[sqlite3.Connection]:
        try:
            with self._lock, closing(sqlite3.connect(self._path, timeout=10.0, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                with connection:
                    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                    yield connection
        except sqlite3.Error as error:
            raise StoreError(f"{self._path} fails: {error}") from error


def _has_tokens(connection: sqlite3.Connection) -> bool:
    return "token" in {row[1] for row in connection.execute("PRAGMA table_info(deletions)")}


def _is_ready(connection: sqlite3.Connection) -> bool:
    """Return whether a feed has its table and an entry."""
    return _has_tokens(connection) and connection.execute("SELECT 1 FROM deletions LIMIT 1").fetchone() is not None

"""A sqlite file that threads and processes share, and that is made again where it is damaged."""

import contextlib
import errno
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from emblema.errors import StoreError
from emblema.store.disk.index import is_damage
from emblema.store.files import hold_lock

_LOG = logging.getLogger(__name__)
_MALFORMED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
TakeOver = Callable[[sqlite3.Connection, list[tuple[Any, ...]]], None]


class DatabaseFile:
    """Transactions on one file, or in memory. A damaged file is set aside, and a new one takes over what can be read.

    A lock beside the file is held shared while it is used, and alone while it is opened or mended, so that no process
    replaces what another has just mended, nor writes into a file that was set aside.

    Args:
        path: of the file; None keeps everything in memory.
        name: what errors call it.
        tables: statements that make them; executed at every opening.
        take_over: given a new file and the item rows of the damaged one.

    Raises:
        StoreError: the file cannot be opened. One in a folder that cannot be written is opened to be read.

    Attributes:
        read_only: why nothing can be written; None where it can.
    """

    def __init__(self, path: Path | None, name: str, tables: str, take_over: TakeOver) -> None:
        self.path = path
        self.damaged = 0
        self.read_only: str | None = None
        self._name = f"{name} {path or 'in memory'}"
        self._tables, self._take_over = tables, take_over
        self._lock = threading.RLock()
        self._guard: int | None = None
        self._inode = 0
        self._closed = False
        self._connection = self._open()

    @contextmanager
    def transaction(self, write: bool = False, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Run a transaction: everything within is done or, after an exception, nothing.

        Raises:
            StoreError: it is closed, locked, cannot be written, or was damaged: the next transaction has it mended.
        """
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._name} is closed")
            if write:
                self.check_writable()
            try:
                with self._current() as connection:
                    try:
                        connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                        yield connection
                        connection.execute("COMMIT")
                    except BaseException:
                        with contextlib.suppress(sqlite3.Error):
                            connection.rollback()
                        raise
            except (TimeoutError, sqlite3.Error) as error:
                if isinstance(error, sqlite3.Error) and is_damage(error):
                    self._open_again(malformed=_primary(error) in _MALFORMED)
                raise StoreError(f"{self._name} fails: {error}") from error

    def check_writable(self) -> None:
        """Raises StoreError where the file can only be read."""
        if self.read_only is not None:
            raise StoreError(f"{self._name} can only be read, its folder cannot be written: {self.read_only}")

    def close(self) -> None:
        """Close the file; may be called more than once."""
        with self._lock:
            self._closed = True
            self._connection.close()
            if self._guard is not None:
                os.close(self._guard)
                self._guard = None

    @contextmanager
    def _current(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection to the file that is there; the file stays in its place meanwhile."""
        while True:
            with self._guarded(shared=True):
                if not self._was_replaced():
                    yield self._connection
                    return
            self._open_again()

    def _was_replaced(self) -> bool:
        try:
            return self.path is not None and self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def _open_again(self, malformed: bool = False) -> None:
        # Where opening fails, the next transaction tries again.
        bad = self._inode if malformed else 0
        self._inode = 0
        self._connection.close()
        self._connection = self._open(bad)

    def _open(self, bad: int = 0) -> sqlite3.Connection:
        """Open the file; `bad` is the inode of one that turned out damaged after the check at opening passed it."""
        if self.path is None:
            return _connect(":memory:", self._tables)
        try:
            with self._guarded(shared=False):
                try:
                    if bad and self.path.stat().st_ino == bad:
                        raise sqlite3.DatabaseError("a page is damaged")
                    connection = _connect(self.path, self._tables)
                except sqlite3.Error as error:
                    if not is_damage(error):
                        raise
                    rows = _set_aside(self.path)
                    self.damaged += 1
                    connection = _connect(self.path, self._tables)
                    connection.execute("BEGIN")
                    self._take_over(connection, rows)
                    connection.execute("COMMIT")
                self._inode = self.path.stat().st_ino
                return connection
        except (OSError, sqlite3.Error) as error:
            if _is_read_only(error, self.path.parent) and self.path.is_file() and not self.path.is_symlink():
                return self._open_to_read(self.path, error)
            raise StoreError(f"{self._name} cannot be opened: {error}") from error

    def _open_to_read(self, path: Path, reason: Exception) -> sqlite3.Connection:
        """Open a file in a folder that cannot be written: nobody changes it, so no lock is needed."""
        # Without a log, sqlite would look for one and could not make it.
        unlogged = "" if path.with_name(path.name + "-wal").exists() else "&immutable=1"
        address = f"{path.absolute().as_uri()}?mode=ro{unlogged}"
        try:
            connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            connection.text_factory = _text
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("SELECT 1 FROM items LIMIT 1").fetchone()
        except sqlite3.Error as error:
            raise StoreError(f"{self._name} cannot be opened, in a folder that cannot be written: {error}") from error
        self.read_only = str(reason)
        self._inode = path.stat().st_ino
        _LOG.warning("%s is only read: %s", self._name, reason)
        return connection

    @contextmanager
    def _guarded(self, shared: bool) -> Iterator[None]:
        if self.path is None or self.read_only is not None:
            yield
            return
        path = self.path.with_name(f"{self.path.name}.lock")
        if self._guard is None:
            self._guard = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with hold_lock(self._guard, path, shared=shared):
            yield


def _primary(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _is_read_only(error: Exception, folder: Path) -> bool:
    """Return whether an error says that nothing can be written here, whatever is there."""
    if isinstance(error, sqlite3.Error):
        # Where it cannot make its log, sqlite only says that it cannot open it.
        unlogged = _primary(error) == sqlite3.SQLITE_CANTOPEN and not os.access(folder, os.W_OK)
        return unlogged or _primary(error) == sqlite3.SQLITE_READONLY
    return isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


def _connect(path: Path | str, tables: str) -> sqlite3.Connection:
    """Open a connection for all threads (the caller locks); make its tables and check its pages.

    Raises:
        OSError: it cannot be made, or is a link.
        sqlite3.Error: it is damaged or holds other tables (`is_damage` tells), cannot be opened, or is locked.
    """
    if isinstance(path, Path):
        # Made here so that nobody else may ever read it; sqlite gives its companions the same rights.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    connection = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("a page is damaged")
        connection.executescript(f"BEGIN IMMEDIATE; {tables} COMMIT;")
    except BaseException:
        connection.close()
        raise
    return connection


def _set_aside(path: Path) -> list[tuple[Any, ...]]:
    """Move a damaged file out of the way, in place of one moved before; the item rows that can still be read."""
    rows: list[tuple[Any, ...]] = []
    with contextlib.suppress(sqlite3.DatabaseError), contextlib.closing(sqlite3.connect(path)) as damaged:
        damaged.execute("PRAGMA trusted_schema = OFF")
        damaged.text_factory = _text
        for row in damaged.execute("SELECT scope, library, name, since, until, expires, body, digest FROM items"):
            rows.append(row)
    _LOG.warning("%s is damaged: %d of its items can still be read; it is set aside", path, len(rows))
    os.replace(path, path.with_name(path.name + ".damaged"))
    for companion in ("-wal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    return rows


def _text(data: bytes) -> str:
    """Text as it is, also where it was damaged: its row's checksum tells."""
    return data.decode("utf-8", "replace")

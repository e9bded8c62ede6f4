"""The fidelity logs of a store's tenants, in one sqlite file that any number of processes write; never trusted."""

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from emblema.errors import StoreError
from emblema.link.policy.fidelity import FidelityLog
from emblema.store.disk.index import is_plain
from emblema.store.store import Store

log = logging.getLogger(__name__)

LARGEST = 16 * 2**20
"""Bytes of one tenant's log that is read."""
FOLDER = "policy"
FILE = "measurements.sqlite"
WAIT = 1.0
"""Seconds to wait for another process's change; what waits longer is written with the next."""
_TABLE = "CREATE TABLE IF NOT EXISTS logs (owner TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_READ = f"SELECT CASE WHEN length(data) <= {LARGEST} THEN data END FROM logs WHERE owner = ?"


class FidelityLogs:
    """A fidelity log for each tenant of a store. Engines of a process share them.

    Several processes add to the same logs: each adds its own measurements to what is in the file, in one transaction,
    and takes over what the others wrote.

    Args:
        folder: of the file; None keeps the logs no longer than the process.
        shared: whether others write the same logs though there is no folder, as in a subclass.
    """

    def __init__(self, folder: Path | None, *, shared: bool = False) -> None:
        self._shared = shared or folder is not None
        self._path = None if folder is None else folder / FILE
        # Guards what follows.
        self._lock = threading.RLock()
        self._logs: dict[str, FidelityLog] = {}
        self._connection: sqlite3.Connection | None = None
        # Which file is open: another process may set it aside and begin another.
        self._opened: tuple[int, int] | None = None
        self._process = os.getpid()
        self._versions: dict[str, int] = {}
        self._failing = False

    @classmethod
    def of_store(cls, store: Store) -> "FidelityLogs":
        """Return the logs of a store, in its folder if it has one."""
        folder = None if store.disk is None else store.disk.path / FOLDER
        return store.companion(FOLDER, lambda: cls(folder))

    def of(self, owner: str) -> FidelityLog:
        """Return a tenant's log; one that is damaged is set aside, and begins empty."""
        with self._lock:
            if owner not in self._logs:
                self._logs[owner] = FidelityLog(shared=self._shared)
                self.refresh(owner)
            return self._logs[owner]

    def refresh(self, owner: str) -> None:
        """Take over what other processes have written of a tenant since; cheap where they have not."""
        with self._lock:
            self._attempt(partial(self._refresh, owner), "read")

    def save(self, owner: str) -> None:
        """Add what was measured since to a tenant's log; a failure is only reported, as no answer depends on it."""
        with self._lock:
            self._attempt(partial(self._save, owner), "saved")

    def forget(self, owner: str) -> None:
        """Let a tenant's log go from memory, unless some of it is not written; it is read again when it is wanted."""
        with self._lock:
            held = self._logs.get(owner)
            if held is not None and not held.unsaved:
                del self._logs[owner]
                self._versions.pop(owner, None)

    def close(self) -> None:
        """Write what is not written yet, and close the file."""
        with self._lock:
            for owner, held in self._logs.items():
                if held.unsaved:
                    self.save(owner)
            self._disconnect()

    def _attempt(self, call: Callable[[sqlite3.Connection], None], what: str) -> None:
        """Make a call with the connection, if there is a file. A damaged file is set aside; other errors may pass."""
        if self._path is None:
            return
        try:
            call(self._connect(self._path))
            self._failing = False
        except (sqlite3.Error, OSError, StoreError) as error:
            (log.debug if self._failing else log.warning)("%s: not %s: %s", self._path, what, error)
            self._failing = True
            if isinstance(error, StoreError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE:
                opened = self._opened
                self._disconnect()
                if opened == _identity(self._path):
                    _set_aside(self._path)

    def _refresh(self, owner: str, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if self._versions.get(owner) != version:
            self._merge(owner, connection)
            self._versions[owner] = version

    def _save(self, owner: str, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            last, own = self._merge(owner, connection), self.of(owner)
            connection.execute("INSERT OR REPLACE INTO logs VALUES (?, ?)", (owner, json.dumps(own.to_json())))
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        own.forget(last)

    def _merge(self, owner: str, connection: sqlite3.Connection) -> int:
        own = self.of(owner)
        try:
            return own.merge(_stored(connection, owner))
        except StoreError as error:
            log.warning("%s: the measurements of %s are set aside: %s", self._path, owner[:12], error)
            return own.merge(None)

    def _connect(self, path: Path) -> sqlite3.Connection:
        if self._process != os.getpid():
            # The parent's connection is the parent's.
            self._connection, self._process, self._versions = None, os.getpid(), {}
        if self._connection is not None and self._opened != _identity(path):
            self._disconnect()
        if self._connection is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if _identity(path) is None:
                os.close(os.open(path, os.O_CREAT | os.O_NOFOLLOW, 0o600))
            self._opened = _identity(path)
            self._connection = _opened(path, "rwc")
            self._connection.execute(_TABLE)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
        self._connection, self._versions = None, {}


def read_all(folder: Path) -> dict[str, FidelityLog]:
    """Read the logs in a store's folder, by owner.

    Raises:
        StoreError: they are damaged, or cannot be read.
    """
    path = folder / FOLDER / FILE
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        # Read-only, what a killed process left half-written could not be taken back.
        with closing(_opened(path, "rw")) as connection:
            owners = [str(owner) for (owner,) in connection.execute("SELECT owner FROM logs ORDER BY owner")]
            return {owner: FidelityLog.from_json(_stored(connection, owner)) for owner in owners}
    except (sqlite3.Error, StoreError) as error:
        raise StoreError(f"{path}: the measurements cannot be read: {error}") from error


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    """Open the file.

    Raises:
        sqlite3.Error: it cannot be opened.
        StoreError: it is a link, a pipe or a folder.
    """
    if not is_plain(path):
        raise StoreError(f"{path}: this is no file of measurements")
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=WAIT, isolation_level=None, check_same_thread=False
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a path names now; None for none."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _stored(connection: sqlite3.Connection, owner: str) -> Any:
    """Return a tenant's log as plain data; None where there is none.

    Raises:
        StoreError: it is no text, or too long.
    """
    row = connection.execute(_READ, (owner,)).fetchone()
    if row is None:
        return None
    try:
        return json.loads(row[0])
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the log of {owner[:12]} is no log: {error}") from error


def _set_aside(path: Path) -> None:
    """Rename a damaged file, so that another can begin."""
    for each in (path, path.with_name(path.name + "-journal")):
        try:
            if each.exists() or each.is_symlink():
                each.rename(each.with_name(each.name + ".damaged"))
        except OSError as error:
            log.warning("%s cannot be set aside: %s", each, error)
    log.warning("%s: measurements set aside", path)

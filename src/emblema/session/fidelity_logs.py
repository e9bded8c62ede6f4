"""The fidelity logs of a store's tenants, in a catalogue that any number of processes write; never trusted."""

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from emblema.errors import StoreError
from emblema.link.policy.fidelity import FidelityLog
from emblema.store.catalogue import FILE, Catalogue, Tables
from emblema.store.files import make_folder
from emblema.store.store import Store

log = logging.getLogger(__name__)

LARGEST = 16 * 2**20
"""Bytes of one tenant's log that is read."""
FOLDER = "policy"
WAIT = 1.0
"""Seconds to wait for another process's change; what waits longer is written with the next."""
_TABLES = Tables(
    "measurements",
    ("CREATE TABLE logs (owner TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID",),
    old=("measurements.sqlite",),
)
_READ = f"SELECT CASE WHEN length(data) <= {LARGEST} THEN data END FROM logs WHERE owner = ?"


class FidelityLogs:
    """A fidelity log for each tenant of a store. Engines of a process share them.

    Several processes add to the same logs: each adds its own measurements to what is in the file, in one transaction,
    and takes over what the others wrote.

    Args:
        folder: of the file; None keeps the logs no longer than the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE
        # Guards what follows.
        self._lock = threading.RLock()
        self._logs: dict[str, FidelityLog] = {}
        self._catalogue: Catalogue | None = None
        self._versions: dict[str, tuple[int, int]] = {}
        self._failing = False

    @classmethod
    def of_store(cls, store: Store) -> "FidelityLogs":
        """Return the logs of a store, in its folder if it has one."""
        folder = None if store.disk is None else store.disk.path / FOLDER
        return store.attached(FOLDER, lambda: cls(folder))

    def of(self, owner: str) -> FidelityLog:
        """Return a tenant's log; one that is damaged is set aside, and begins empty."""
        with self._lock:
            if owner not in self._logs:
                self._logs[owner] = FidelityLog(shared=self._path is not None)
                self.refresh(owner)
            return self._logs[owner]

    def refresh(self, owner: str) -> None:
        """Take over what other processes have written of a tenant since; cheap where they have not."""
        with self._lock:
            self._attempt(partial(self._refresh, owner), "read")

    def save(self, owner: str) -> None:
        """Add what was measured since to a tenant's log; a failure is only reported, as no answer depends on it."""
        with self._lock:
            if self.of(owner).unsaved:
                self._attempt(partial(self._save, owner), "saved")

    @contextmanager
    def changing(self, owner: str) -> Iterator[FidelityLog]:
        """Give a tenant's log as other processes left it, and save what was measured meanwhile."""
        self.refresh(owner)
        yield self.of(owner)
        self.save(owner)

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
            for owner in self._logs:
                self.save(owner)
            if self._catalogue is not None:
                self._catalogue.close()

    def _attempt(self, call: Callable[[Catalogue], None], what: str) -> None:
        """Make a call with the catalogue, if there is a folder; an error is reported once, and may pass."""
        if self._path is None:
            return
        try:
            if self._catalogue is None:
                make_folder(self._path.parent)
                self._catalogue = Catalogue(self._path, _TABLES, WAIT)
            call(self._catalogue)
            self._failing = False
        except (OSError, StoreError) as error:
            (log.debug if self._failing else log.warning)("%s: not %s: %s", self._path, what, error)
            self._failing = True

    def _refresh(self, owner: str, catalogue: Catalogue) -> None:
        version = catalogue.version()
        if self._versions.get(owner) != version:
            catalogue.read(lambda rows: self._merge(owner, rows))
            self._versions[owner] = version

    def _save(self, owner: str, catalogue: Catalogue) -> None:
        with catalogue.change() as rows:
            last, own = self._merge(owner, rows), self.of(owner)
            rows.execute("INSERT OR REPLACE INTO logs VALUES (?, ?)", (owner, json.dumps(own.to_json())))
        own.forget(last)

    def _merge(self, owner: str, rows: sqlite3.Connection) -> int:
        own = self.of(owner)
        try:
            return own.merge(_stored(owner, rows))
        except StoreError as error:
            log.warning("%s: the measurements of %s are set aside: %s", self._path, owner[:12], error)
            return own.merge(None)


def read_all(folder: Path) -> dict[str, FidelityLog]:
    """Read the logs in a store's folder, by owner.

    Raises:
        StoreError: they are damaged, or cannot be read.
    """
    path = folder / FOLDER / FILE
    if not any(path.with_name(name).exists() for name in (FILE, *_TABLES.old)):
        return {}
    with closing(Catalogue(path, _TABLES, WAIT)) as catalogue:
        if catalogue.made_again:
            raise StoreError(
                f"{path} was damaged: it is made again with what could be read of it, which may be nothing"
            )
        owners = catalogue.read(lambda rows: rows.execute("SELECT owner FROM logs ORDER BY owner").fetchall())
        return {owner: FidelityLog.from_json(catalogue.read(partial(_stored, owner))) for (owner,) in owners}


def _stored(owner: str, rows: sqlite3.Connection) -> Any:
    """Return a tenant's log as plain data; None where there is none.

    Raises:
        StoreError: it is no text, or too long.
    """
    row = rows.execute(_READ, (owner,)).fetchone()
    if row is None:
        return None
    try:
        return json.loads(row[0])
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the log of {owner[:12]} is no log: {error}") from error

"""The fidelity logs of a store's tenants, and their files: small, written whole and moved into place, never trusted."""

import json
import logging
import threading
from pathlib import Path

from emblema.errors import StoreError
from emblema.link.policy.fidelity import FidelityLog
from emblema.store.files import write_whole
from emblema.store.store import Store

log = logging.getLogger(__name__)

LARGEST = 16 * 2**20
"""Bytes of a file that is read."""
FOLDER = "policy"


class FidelityLogs:
    """A fidelity log for each tenant of a store. Engines of a process share them; of several processes the last wins.

    Args:
        folder: of the files; None keeps the logs no longer than the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._logs: dict[str, FidelityLog] = {}

    @classmethod
    def of_store(cls, store: Store) -> "FidelityLogs":
        """Return the logs of a store, in its folder if it has one."""
        folder = None if store.disk is None else store.disk.path / FOLDER
        return store.companion(FOLDER, lambda: cls(folder))

    def of(self, owner: str) -> FidelityLog:
        """Return a tenant's log; a damaged file is set aside, and the log begins empty."""
        with self._lock:
            if owner not in self._logs:
                self._logs[owner] = FidelityLog() if self._folder is None else _opened(self._folder / f"{owner}.json")
            return self._logs[owner]

    def save(self, owner: str) -> None:
        """Write a tenant's log to its file; a failure is only reported, as no answer depends on it."""
        own = self.of(owner)
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._folder / f"{owner}.json", [json.dumps(own.to_json()).encode()])
        except OSError as error:
            log.warning("the measurements of %s were not saved: %s", owner[:12], error)

    def close(self) -> None:
        """Write all logs that are not empty."""
        with self._lock:
            owners = [owner for owner, held in self._logs.items() if held.reports() or held.plateaus()]
        for owner in owners:
            self.save(owner)


def read(path: Path) -> FidelityLog:
    """Read a log's file.

    Raises:
        StoreError: it is damaged, too large, or no ordinary file.
    """
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
            raise StoreError(f"{path}: this is no file of measurements")
        data = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: it cannot be read: {error}") from error
    try:
        return FidelityLog.from_json(data)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def read_all(folder: Path) -> dict[str, FidelityLog]:
    """Read the logs in a store's folder, by owner.

    Raises:
        StoreError: one is damaged.
    """
    return {path.stem: read(path) for path in sorted((folder / FOLDER).glob("*.json"))}


def _opened(path: Path) -> FidelityLog:
    if not path.exists() and not path.is_symlink():
        return FidelityLog()
    try:
        return read(path)
    except StoreError as error:
        log.warning("measurements set aside: %s", error)
        try:
            path.rename(path.with_suffix(".damaged"))
        except OSError as failure:
            log.warning("%s cannot be set aside: %s", path, failure)
        return FidelityLog()

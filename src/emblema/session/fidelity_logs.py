"""The ledgers of a store's tenants, and their files: small, written whole and moved into place, never trusted."""

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
    """One ledger for each tenant of a store. Engines of one process share them; of several, the last to write wins.

    Args:
        folder: where they are kept; None keeps them no longer than the process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._held: dict[str, FidelityLog] = {}

    @classmethod
    def of_store(cls, store: Store) -> "FidelityLogs":
        """Those of a store, in its folder if it has one."""
        folder = None if store.disk is None else store.disk.path / FOLDER
        return store.companion(FOLDER, lambda: cls(folder))

    def of(self, owner: str) -> FidelityLog:
        """A tenant's ledger; a file that is damaged counts as none and is set aside."""
        with self._lock:
            if owner not in self._held:
                self._held[owner] = FidelityLog() if self._folder is None else _opened(self._folder / f"{owner}.json")
            return self._held[owner]

    def save(self, owner: str) -> None:
        """Write a tenant's ledger; what cannot be written is logged, as an answer does not depend on it."""
        ledger = self.of(owner)
        if self._folder is None:
            return
        try:
            write(self._folder / f"{owner}.json", ledger)
        except OSError as error:
            log.warning("the measurements of %s were not saved: %s", owner[:12], error)

    def close(self) -> None:
        """Write all that hold anything."""
        with self._lock:
            owners = [owner for owner, ledger in self._held.items() if ledger.reports() or ledger.plateaus()]
        for owner in owners:
            self.save(owner)


def read(path: Path) -> FidelityLog:
    """A ledger's file.

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
    """The ledgers in a store's folder, by owner.

    Raises:
        StoreError: one is damaged.
    """
    return {path.stem: read(path) for path in sorted((folder / FOLDER).glob("*.json"))}


def write(path: Path, ledger: FidelityLog) -> None:
    """Write a ledger whole, in place of an earlier one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [json.dumps(ledger.to_json()).encode()])


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

"""The folder of a disk tier with its index: reading and changing both, and repairing the index."""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from emblema.errors import StoreError
from emblema.store.clock import SteadyClock
from emblema.store.disk.folder import INDEX, PIECES, Folder
from emblema.store.disk.index import Index, is_damage, is_plain, remove_index
from emblema.store.disk.reports import ScanReport
from emblema.store.disk.scan import Scan

_LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class FolderAwayError(StoreError):
    """The folder or its index cannot be reached now: it vanished, or another process keeps it locked."""


class IndexedFolder:
    """A folder and its index, one change at a time. A damaged or lost index is rebuilt from the files.

    Args:
        path: of the folder.
        clock: of the tier.
        quarantine_bytes: how much quarantine may hold; a scan puts damaged files there.

    Raises:
        StoreError: as for `Folder`.
    """

    def __init__(self, path: str, clock: SteadyClock, quarantine_bytes: int) -> None:
        self.folder = Folder(path)
        self.rebuilt = 0
        # Absolute: the process may change its own folder.
        self._path = str(self.folder.path)
        self._clock = clock
        self._quarantine_bytes = quarantine_bytes
        self._lock = threading.RLock()
        self._depth = 0
        self._closed = False
        try:
            self._index, self.report = self._attach()
        except BaseException:
            self.folder.close()
            raise

    @contextmanager
    def idle(self) -> Iterator[bool]:
        """Yield whether no other thread is changing the folder; if so, none can until the block ends."""
        mine = self._lock.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()

    def read(self, ask: Callable[[Index], _Answer]) -> _Answer:
        """Read from the index, which is rebuilt first if it turns out to be damaged.

        Raises:
            FolderAwayError: the folder vanished, or the index cannot be read.
        """
        for last in (False, True):
            index = self._current()
            try:
                return ask(index)
            except sqlite3.Error as error:
                # Another thread may have closed it to rebuild it; it has the lock until another index is there.
                with self._lock:
                    replaced = self._index is not index
                if last or not replaced:
                    self._repair(index, error, last)
        raise AssertionError("unreachable")

    @contextmanager
    def change(self) -> Iterator[Index]:
        """Change the files and the index together: no other process or thread changes them meanwhile.

        An exception rolls the index back; if files were changed before it (`folder.unfinished`), the next change first
        compares the index with the files.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self._lock:
            if self._depth:
                yield self._index
                return
            try:
                with self._transaction() as index:
                    self._depth += 1
                    try:
                        yield index
                    finally:
                        self._depth -= 1
            except OSError as error:
                raise StoreError(f"{self._path} cannot be changed: {error.strerror or error}") from error

    @contextmanager
    def files_alone(self) -> Iterator[Folder]:
        """Change files where the index cannot be changed, as on a full disk: it is compared with them before the next
        change, and when the folder is opened.

        Raises:
            TimeoutError: another process keeps the folder locked.
        """
        with self._lock, self.folder.locked():
            try:
                self.folder.unfinished = True
            except OSError as error:
                # A piece that is listed without a file is then noticed when it is read.
                _LOG.warning("%s: %s", self._path, error)
            yield self.folder

    @contextmanager
    def _transaction(self) -> Iterator[Index]:
        failed: sqlite3.Error | None = None
        with self._locked() as index:
            try:
                with index.transaction():
                    if self.folder.unfinished:
                        self._scan(index).run()
                    self._clock.reach(index.latest())
                    yield index
                    index.set_latest(self._clock.now())
                self.folder.unfinished = False
            except sqlite3.Error as error:
                failed = error
        if failed is not None:
            self._repair(index, failed, last=False)
            raise FolderAwayError(f"{self._path}: its index was not to be changed: {failed}") from failed

    @contextmanager
    def _locked(self) -> Iterator[Index]:
        """Yield the index, with the folder's lock held."""
        while True:
            index, folder = self._current(), self.folder
            if folder.read_only is not None:
                raise StoreError(f"{folder.read_only}: nothing can be changed in it")
            try:
                with folder.locked():
                    # The process that had the lock before may have rebuilt the index.
                    if _inode(index.path) == index.inode:
                        yield index
                        return
            except TimeoutError as error:
                raise FolderAwayError(str(error)) from error

    def scan(self, progress: Callable[[int, int], None] | None = None) -> ScanReport:
        """Compare the index with all files now; `progress` as for `Scan.run`."""
        with self.change() as index:
            return self._scan(index).run(progress)

    def remove(self, index: Index, ids: Collection[str], *, durable: bool = True) -> None:
        """Delete pieces and their files in this order, within a change.

        After a power cut, files whose deletion was not durable may be back; the scan at the next start finds them. A
        durable deletion, of no pieces too, makes durable what was deleted before it.
        """
        if ids:
            self.folder.unfinished = True
        if ids or durable:
            self.folder.remove(ids, durable)
        for id in ids:
            index.remove(id)

    def checkpoint(self) -> None:
        """Write the index's log into its file."""
        try:
            self._current().checkpoint()
        except sqlite3.Error as error:
            _LOG.info("%s: the index's log could not be written into it: %s", self._path, error)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._index.close()
            self.folder.close()

    def _current(self) -> Index:
        index = self._index
        if self._closed:
            raise FolderAwayError(f"{self._path}: the store is closed")
        if index.path is None:
            return index
        inode = _inode(index.path)
        if inode == index.inode:
            return index
        if inode is None and not (self.folder.path / PIECES).is_dir():
            raise FolderAwayError(f"{self._path} has vanished: bring it back, or open the store again")
        return self._attach_again(index)

    def _repair(self, index: Index, error: sqlite3.Error, last: bool) -> None:
        """Rebuild the index after an error if it is damaged; raise FolderAwayError if it is not."""
        if last or not is_damage(error) or index.path is None:
            raise FolderAwayError(f"{self._path}: its index does not answer: {error}") from error
        _LOG.warning("%s: the index is damaged (%s) and is made again from the files", self._path, error)
        self._attach_again(index, damaged=True)

    def _attach_again(self, seen: Index, damaged: bool = False) -> Index:
        with self._lock:
            if self._index is seen:
                seen.close()
                self.folder.close()
                self.folder = Folder(self._path)
                self._index, self.report = self._attach(seen.inode if damaged else None)
            return self._index

    def _attach(self, damaged_inode: int | None = None) -> tuple[Index, ScanReport]:
        """Open the index, or rebuild it if it is damaged; `damaged_inode` is that of an index known to be damaged."""
        folder = self.folder
        if folder.read_only is None:
            with folder.locked():
                try:
                    return self._open(damaged_inode)
                except (sqlite3.Error, OSError) as error:
                    folder.read_only = f"{self._path} cannot be written: {error}"
                    folder.notes.append(folder.read_only)
        _LOG.warning("%s; what is there is read", folder.read_only)
        index = Index(None)
        try:
            with index.transaction():
                return index, self._scan(index).run()
        except OSError as error:
            raise StoreError(f"{self._path} cannot be read: {error.strerror or error}") from error

    def _open(self, damaged_inode: int | None) -> tuple[Index, ScanReport]:
        folder = self.folder
        path = folder.path / INDEX
        try:
            if not is_plain(path):
                raise sqlite3.DatabaseError("it is not a plain file")
            if damaged_inode is not None and _inode(path) == damaged_inode:
                raise sqlite3.DatabaseError("it is damaged")
            index, report = self._scanned(path)
            if index.fresh and report.restored:
                self.rebuilt += 1
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            # A file that may be written, and says of itself that it may not, is damaged in its first bytes.
            locked_by_itself = code == sqlite3.SQLITE_READONLY and os.access(path, os.W_OK)
            if not (is_damage(error) or locked_by_itself or code == sqlite3.SQLITE_CANTOPEN):
                raise
            self.rebuilt += 1
            folder.notes.append(f"made the index again ({error})")
            remove_index(path)
            index, report = self._scanned(path)
        try:
            folder.unfinished = False
        except OSError:
            index.close()
            raise
        return index, report

    def _scanned(self, path: Path) -> tuple[Index, ScanReport]:
        """Open the index, check it and compare it with the files; it is closed where that fails."""
        index = Index(path)
        try:
            if not index.fresh:
                index.check()
            with index.transaction():
                return index, self._scan(index).run()
        except BaseException:
            index.close()
            raise

    def _scan(self, index: Index) -> Scan:
        return Scan(self.folder, index, self._clock, self._quarantine_bytes)


def _inode(path: Path | None) -> int | None:
    try:
        return None if path is None else os.stat(path).st_ino
    except OSError:
        return None

"""The disk tier: pieces that outlast the process, within a budget of bytes."""

import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.latest import LatestDict
from emblema.store import format
from emblema.store.catalogue import FILE, Catalogue, CatalogueError, Tables
from emblema.store.disk import folder as files
from emblema.store.disk.entry import (
    STATEMENTS,
    DiskEntry,
    DiskReader,
    change_entry,
    check_header,
    ended,
    entry_of,
    find_entry,
    find_many,
    find_page,
    patches_of,
    put_entry,
    remove_rows,
    totals,
    victims,
    with_terms,
)
from emblema.store.disk.scan import Progress, Scan, ScanReport
from emblema.store.format import is_passing
from emblema.store.record import (
    SHARED,
    Absence,
    Departure,
    Record,
    RecordHeader,
    RecordKind,
    RecordReader,
    Terms,
    check_id,
)

_LOG = logging.getLogger(__name__)
_LARGEST_DEFAULT = 64 * 2**30
_DEPARTED = 2**14
"""Evicted and expired pieces that are remembered as such."""
_MODELS_OF = 256
"""Chunks whose models are looked at."""


class DiskTier:
    """Keeps records in a folder, one file each, through any crash. Threads and processes may share it.

    A piece is durable when `write` returns and gone for good when `delete` returns. To make room it evicts pieces of
    the lowest priority first, of these the least recently used; pinned pieces and pieces in use never. The budget
    counts pieces and files being written, not the catalogue (about 700 bytes a piece).

    Args:
        folder: made where it is not there; one that cannot be written is read.
        capacity_bytes: budget; by default half of the bytes that are free or used by this store, at most 64 GiB.
        clock: seconds since 1970.
        in_use: ids that may not be evicted now; must not call the tier.

    Raises:
        StoreError: the folder is a file, cannot be made, or was written by a later version.

    Attributes:
        path: of the folder, absolute.
        report: what was found when the catalogue was opened.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        capacity_bytes: int | None = None,
        *,
        clock: Callable[[], float] = time.time,
        in_use: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._clock, self._in_use = clock, in_use
        # Guards the uses.
        self._lock = threading.Lock()
        # Uses that the catalogue does not have yet: moments by id.
        self._touched: dict[str, float] = {}
        # Pieces that the catalogue has and that are not served: damaged, or deleted, while no row could be written.
        self._unserved: set[str] = set()
        self._departed: LatestDict[str, Departure] = LatestDict(_DEPARTED)
        self.path = Path(os.path.realpath(folder))
        self.report = ScanReport(0)
        notes = files.prepare(self.path)
        for note in notes:
            _LOG.warning("%s: %s", self.path, note)
        self.catalogue = Catalogue(self.path / FILE, Tables("pieces", STATEMENTS, self._opened))
        try:
            if self.catalogue.read_only is not None:
                self.report = ScanReport(self.count())
            else:
                files.forget_old(self.path)
            self.report = replace(self.report, notes=(*notes, *self.catalogue.notes))
            self.capacity_bytes = self._fit(capacity_bytes)
        except BaseException:
            self.catalogue.close()
            raise

    def _opened(self, rows: sqlite3.Connection, fresh: bool) -> None:
        """Compare a catalogue that was opened with the files; a new one is filled from them."""
        pins = files.old_pins(self.path) if fresh else ()
        self.report = Scan(self.path, rows, self._clock(), pins).run()
        (_LOG.warning if self.report.skipped or self.report.lost else _LOG.info)("%s: %s", self.path, self.report)
        self._unserved.clear()

    def _fit(self, capacity_bytes: int | None) -> int:
        """Return the tier's capacity after what is beyond it was evicted."""
        if capacity_bytes is None:
            free = shutil.disk_usage(self.path).free
            capacity_bytes = min(_LARGEST_DEFAULT, (free + self.bytes) // 2)
        if self.catalogue.read_only is None:
            with self.change() as rows:
                self._remove(rows, victims(rows, totals(rows)[1] - capacity_bytes, ()), "evicted")
        return capacity_bytes

    def use(self, in_use: Callable[[], Collection[str]]) -> None:
        """Set the function that returns the ids that may not be evicted; it must not call the tier."""
        self._in_use = in_use

    def piece_path(self, id: str) -> Path:
        """Return the file of a piece, whether it is there or not.

        Raises:
            StoreError: the id is none.
        """
        return files.piece_path(self.path, id)

    # Looking up

    def open(self, id: str, owner: str) -> RecordReader | None:
        """Return the record of an id, if it is here, its owner's and not expired.

        Raises:
            LoadError: it is here and damaged (in quarantine now), or the folder does not answer.
        """
        check_id(id)
        try:
            found = self._find(id)
        except CatalogueError as error:
            raise LoadError(id, str(error)) from error
        if found is None or found.owner != owner:
            return None
        path = self.piece_path(id)
        try:
            status = path.lstat()
            reader = format.open_file(path, id)
        except FileNotFoundError:
            self._lost(id)
            return None
        except OSError as error:
            raise LoadError(id, str(error)) from error
        except LoadError as error:
            self._damaged(id, status.st_ino, error)
            raise
        if not found.is_of(reader.header):
            reader.close()
            with suppress(StoreError):
                self.scan()
            raise LoadError(id, "its file has another owner, kind or chunks than the catalogue says")
        self.touch([id])
        return DiskReader(reader, partial(self._damaged, id, status.st_ino))

    def entry(self, id: str) -> DiskEntry | None:
        """Return the entry of a piece that has not expired; None also while the folder does not answer."""
        check_id(id)
        try:
            return self._find(id)
        except CatalogueError:
            return None

    def absence(self, id: str, owner: str, look: bool) -> Absence:
        """Return what is known of an owner's piece that is not served, with `look` by the catalogue, if it answers."""
        asked = "SELECT DISTINCT model FROM (SELECT model FROM pieces WHERE owner = ? AND kind = 'chunk' LIMIT ?)"

        def ask(rows: sqlite3.Connection) -> Absence:
            found, models = find_entry(rows, check_id(id)), rows.execute(asked, (owner, _MODELS_OF)).fetchall()
            over = found is not None and found.owner == owner and found.ends <= self._clock()
            return Absence("expired" if over else noted, tuple(str(model) for (model,) in models))

        with self._lock:
            noted = self._departed.get(id)
        try:
            return self.catalogue.read(ask) if look else Absence(noted)
        except CatalogueError:
            return Absence(noted)

    def entries_of(self, ids: Sequence[str]) -> list[DiskEntry]:
        """Return the entries of those of some ids that are here and have not expired; one question to the catalogue.

        Raises:
            CatalogueError: the folder does not answer.
        """
        return self._served(self.catalogue.read(lambda rows: find_many(rows, [check_id(id) for id in ids])))

    @property
    def version(self) -> tuple[int, int]:
        """Return what is another value after every change of the folder, by any process.

        Raises:
            CatalogueError: the folder does not answer.
        """
        return self.catalogue.version()

    def has_patches(self, chunks: Iterable[str]) -> frozenset[str]:
        """Return those of some chunks that any patch was made from.

        Raises:
            CatalogueError: the folder does not answer.
        """
        asked, one = [check_id(chunk) for chunk in chunks], "SELECT 1 FROM sources WHERE chunk = ? LIMIT 1"
        return self.catalogue.read(lambda rows: frozenset(id for id in asked if rows.execute(one, (id,)).fetchone()))

    def _find(self, id: str) -> DiskEntry | None:
        found = self.catalogue.read(lambda rows: find_entry(rows, id))
        if found is None:
            return None
        # A use that is not in the catalogue yet counts.
        found = replace(found, accessed=max(found.accessed, self._touched.get(id, 0.0)))
        return next(iter(self._served([found])), None)

    def _served(self, found: Iterable[DiskEntry]) -> list[DiskEntry]:
        now = self._clock()
        return [entry for entry in found if entry.ends > now and entry.id not in self._unserved]

    def entries(self, owner: str | None = None, kind: RecordKind | None = None) -> Iterator[DiskEntry]:
        """Yield the pieces of an owner and kind that have not expired, by id; changes meanwhile may be seen or not."""
        last = ""
        while page := self.catalogue.read(lambda rows, last=last: find_page(rows, last, owner, kind)):  # type: ignore[misc]
            yield from self._served(page)
            last = page[-1].id

    def patches_of(self, chunk: str) -> list[str]:
        """Return the ids of the patches made from a chunk, whether it is here or not."""
        return self.catalogue.read(lambda rows: patches_of(rows, check_id(chunk)))

    @property
    def bytes(self) -> int:
        """Return the bytes of all pieces' files."""
        return self.catalogue.read(totals)[1]

    def bytes_of(self, owner: str) -> int:
        """Return the bytes of an owner's pieces' files."""
        return self.catalogue.read(lambda rows: totals(rows, owner))[1]

    def count(self, owner: str | None = None, kind: RecordKind | None = None) -> int:
        """Return how many pieces there are."""
        return self.catalogue.read(lambda rows: totals(rows, owner, kind))[0]

    # Uses

    def touch(self, ids: Iterable[str]) -> None:
        """Note that pieces were used now. `record_uses`, or the next change, records it."""
        now = self._clock()
        with self._lock:
            self._touched.update(dict.fromkeys(ids, now))

    def record_uses(self) -> None:
        """Record the uses so far; one that cannot be recorded is dropped: its piece may be evicted earlier."""
        if self._touched and self.catalogue.read_only is None:
            with suppress(StoreError), self.change() as rows:
                self._record(rows)

    def _record(self, rows: sqlite3.Connection) -> None:
        with self._lock:
            touched, self._touched = self._touched, {}
        for id, moment in touched.items():
            change_entry(rows, id, accessed=moment)

    # Writing and deleting

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """Change the catalogue and files together; an exception takes back what was changed of the catalogue.

        Raises:
            StoreError: the folder cannot be written.
        """
        try:
            with self.catalogue.change() as rows:
                yield rows
        except OSError as error:
            raise StoreError(f"{self.path} cannot be changed: {error.strerror or error}") from error

    def write(self, record: Record, terms: Terms) -> None:
        """Write a record, which replaces the one of the same id and owner; it is durable when this returns.

        Raises:
            CapacityError: it is larger than the budget.
            StoreError: it could not be written; nothing of it is left.
        """
        check_header(record.header)
        try:
            self.catalogue.retried(lambda: self._write(record, terms))
        except CapacityError:
            raise
        except (StoreError, OSError) as error:
            raise StoreError(f"{record.header.id[:12]} could not be written to disk: {error}") from error

    def _write(self, record: Record, terms: Terms) -> None:
        header, now = record.header, self._clock()
        # A moment in the future counts as now.
        expires = None if terms.seconds is None else min(header.created, now) + terms.seconds
        record = replace(record, header=with_terms(header, terms, expires, now))
        data = list(format.buffers(record))
        size = sum(memoryview(part).nbytes for part in data)
        if size > self.capacity_bytes:
            raise CapacityError(
                f"{header.id[:12]} has {size} bytes, more than the disk tier's {self.capacity_bytes}: raise its budget"
            )
        with self.change() as rows:
            # A change of its own: what is evicted is recorded even where the file cannot be written.
            self._record(rows)
            again = self._admit(rows, header, size)
        try:
            with self.change() as rows:
                again = self._admit(rows, header, size)
                with files.written(self.path, header.id, data) as place:
                    status = place()
                    if status.st_size != size:
                        raise StoreError(f"its file was to have {size} bytes and has {status.st_size}")
                    stamp = status.st_mtime_ns
                    put_entry(rows, entry_of(record.header, bytes=size, accessed=now, pinned=terms.pinned, stamp=stamp))
        except StoreError:
            if not again:
                self._delete_unlisted(header.id)
            raise
        with self._lock:
            self._touched.pop(header.id, None)
            self._unserved.discard(header.id)

    def _admit(self, rows: sqlite3.Connection, header: RecordHeader, size: int) -> bool:
        """Make room for a record's file; return whether there is one that it replaces.

        Raises:
            StoreError: another owner's piece has its id, or there is no room.
        """
        found = find_entry(rows, header.id)
        # The shared library's ids are known to all, so a tenant's piece must not block one.
        if found is not None and header.owner not in (found.owner, SHARED):
            raise StoreError(f"{found.id[:12]} belongs to another owner: delete it there first")
        self._make_room(rows, size - (0 if found is None else found.bytes), header.id)
        return found is not None

    def _delete_unlisted(self, id: str) -> None:
        """Delete a file without a row: a change that failed after the file was in its place counts as not made."""
        with suppress(StoreError), self.change() as rows:
            if find_entry(rows, id) is None:
                files.delete_pieces(self.path, [id])

    def _make_room(self, rows: sqlite3.Connection, bytes: int, keep: str) -> None:
        """Evict all but `keep` until `bytes` more fit the budget, within a change.

        Raises:
            StoreError: they do not fit; nothing was evicted.
        """
        held = totals(rows)[1]
        chosen = victims(rows, held + bytes - self.capacity_bytes, {*self._in_use(), keep})
        if held + bytes - sum(chosen.values()) > self.capacity_bytes:
            raise StoreError(
                f"{self.path}: no room for {bytes} bytes: {held} of {self.capacity_bytes} are held by pieces that are "
                "pinned or in use; unpin some, or give the disk tier a larger budget"
            )
        self._remove(rows, chosen, "evicted")

    def _remove(self, rows: sqlite3.Connection, ids: Collection[str], how: Departure) -> None:
        """Delete pieces' files, durably, and their rows."""
        files.delete_pieces(self.path, ids)
        remove_rows(rows, ids)
        with self._lock:
            for id in ids:
                self._departed[id] = how

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record of this owner, and for a chunk every patch made from it; return whether anything was here.

        Raises:
            StoreError: the folder cannot be written.
        """
        check_id(id)
        try:
            return self.catalogue.retried(lambda: self._delete(id, owner))
        except OSError as error:
            raise StoreError(f"{id[:12]} could not be deleted from disk: {error}") from error

    def _delete(self, id: str, owner: str) -> bool:
        gone: list[str] = []
        try:
            with self.change() as rows:
                patches, chunks = self._deleted_with(rows, id, owner)
                # No power cut may leave a patch of a chunk that is gone.
                files.delete_pieces(self.path, patches)
                files.delete_pieces(self.path, chunks)
                gone = [*patches, *chunks]
                remove_rows(rows, gone)
        except CatalogueError as error:
            if not gone:
                raise
            # As on a full disk: without a file, a row is none, and the next scan removes it.
            self._unserved.update(gone)
            _LOG.warning("%s: %d files were deleted; their rows follow later: %s", self.path, len(gone), error)
        return bool(gone)

    def _deleted_with(self, rows: sqlite3.Connection, id: str, owner: str) -> tuple[list[str], list[str]]:
        """Return what is deleted when an owner deletes an id: its patches, and itself where it is here."""
        found = find_entry(rows, id)
        if found is not None and found.owner != owner:
            return [], []
        patches = patches_of(rows, id)
        if found is None and owner != SHARED:
            # The chunk is not here, so its owner is not known: only the tenant's own patches go.
            patches = [entry.id for entry in find_many(rows, patches) if entry.owner == owner]
        return patches, [] if found is None else [id]

    # Upkeep

    def set_pin(self, id: str, pinned: bool) -> bool:
        """Pin or unpin a piece; return whether it is here.

        Raises:
            StoreError: the folder cannot be written.
        """
        check_id(id)
        with self.change() as rows:
            return change_entry(rows, id, pinned=pinned)

    def evict(self, owner: str, bytes: int) -> int:
        """Evict at least so many bytes of an owner's pieces, as far as possible; return the bytes evicted.

        Raises:
            StoreError: the folder cannot be written.
        """
        if bytes <= 0:
            return 0
        with self.change() as rows:
            self._record(rows)
            chosen = victims(rows, bytes, set(self._in_use()), owner)
            self._remove(rows, chosen, "evicted")
            return sum(chosen.values())

    def expire(self) -> int:
        """Delete expired pieces that are not in use, and every patch made from them; return how many were deleted.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.change() as rows:
            self._record(rows)
            in_use = set(self._in_use())
            over = [id for id in ended(rows, self._clock()) if id not in in_use]
            patches = list(dict.fromkeys(patch for id in over for patch in patches_of(rows, id)))
            chunks = [id for id in over if id not in patches]
            self._remove(rows, patches, "expired")
            self._remove(rows, chunks, "expired")
        return len(patches) + len(chunks)

    def quarantine(self, id: str, reason: str, inode: int | None = None) -> bool:
        """Set a damaged piece aside; return whether it was here. In a read-only folder it is only not served.

        Args:
            id: of the piece.
            reason: for the log.
            inode: of the damaged file, so that one written since stays; None for any file.
        """
        check_id(id)
        try:
            with self.change() as rows:
                moved = files.set_aside(self.path, id, inode)
                if moved:
                    remove_rows(rows, [id])
        except StoreError as error:
            self._unserved.add(id)
            reason, moved = f"{reason}; it stays where it is: {error}", True
        if moved:
            _LOG.warning("%s is out of service: %s", self.piece_path(id), reason)
        return moved

    def _damaged(self, id: str, inode: int, error: LoadError) -> None:
        if not is_passing(error):
            self.quarantine(id, error.reason, inode)

    # Comparing the catalogue with the files

    def scan(self, progress: Progress | None = None) -> ScanReport:
        """Compare the catalogue with all files now; `progress` is called with the folders of pieces done, and all.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.change() as rows:
            report = Scan(self.path, rows, self._clock()).run(progress)
        self._unserved.clear()
        return report

    def _lost(self, id: str) -> None:
        """Remove the row of a piece without a file; errors are ignored."""
        with suppress(StoreError), self.change() as rows:
            if find_entry(rows, id) is not None and not self.piece_path(id).exists():
                remove_rows(rows, [id])
                _LOG.warning("%s is gone", self.piece_path(id))

    def close(self) -> None:
        """Record the last uses and close the folder; may be called more than once."""
        self.record_uses()
        self.catalogue.close()

"""The disk tier: pieces that outlast the process, within a budget of bytes."""

import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.store import format
from emblema.store.clock import SteadyClock
from emblema.store.disk.entry import DiskEntry, DiskReader, check_header, entry_of, with_terms
from emblema.store.disk.folder import Folder, Temporary
from emblema.store.disk.index import Index
from emblema.store.disk.indexed_folder import FolderAwayError, IndexedFolder
from emblema.store.disk.reports import CollectReport, DiskStatistics, ScanReport, VerifyReport
from emblema.store.format import is_passing
from emblema.store.record import SHARED, Record, RecordKind, RecordReader, Terms, check_id

_LOG = logging.getLogger(__name__)
_LARGEST_DEFAULT = 64 * 2**30
_LARGEST_QUARANTINE = 256 * 2**20
_TOUCHES = 512
"""Uses that are recorded together, at most."""
_TOUCH_SECONDS = 2.0
"""Seconds after which uses are recorded."""
_Answer = TypeVar("_Answer")


class DiskTier:
    """Keeps records in a folder, one file each, through any crash. Threads and processes may share it.

    A piece is durable when `write` returns and gone for good when `delete` returns. To make room it evicts pieces of
    the lowest priority first, of these the least recently used; pinned pieces and pieces in use never. The budget
    counts pieces, files being written and quarantine, not the index (about 500 bytes a piece).

    Args:
        folder: made where it is not there; one that cannot be written is read.
        capacity_bytes: budget; by default half of the bytes that are free or used by this store, at most 64 GiB.
        clock: seconds since 1970; may jump back.
        in_use: ids that may not be evicted now; must not call the tier.

    Raises:
        StoreError: the folder is a file, cannot be made, or was written by a later version.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        capacity_bytes: int | None = None,
        *,
        clock: Callable[[], float] = time.time,
        in_use: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        self._clock = SteadyClock(clock)
        self._in_use = in_use
        # Guards the counts and the uses.
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        # Uses that the index does not have yet: moments by id.
        self._touched: dict[str, float] = {}
        self._flushed = time.monotonic()
        self._remembered = 0.0
        # Damaged pieces that could not be taken out of the folder: not served again.
        self._distrusted: set[str] = set()
        limit = _LARGEST_QUARANTINE if capacity_bytes is None else min(_LARGEST_QUARANTINE, capacity_bytes // 8)
        self._quarantine_bytes = limit
        self.files = IndexedFolder(os.fspath(folder), self._clock, limit)
        self.report: ScanReport = self.files.report
        """What the scan found when the tier was opened."""
        try:
            self.capacity_bytes = self._fit(capacity_bytes)
        except BaseException:
            self.files.close()
            raise
        (_LOG.warning if self.report.skipped or self.report.lost else _LOG.info)("%s: %s", folder, self.report)

    def _fit(self, capacity_bytes: int | None) -> int:
        """Return the tier's capacity after what is beyond it was evicted."""
        if capacity_bytes is None:
            free = shutil.disk_usage(self.path).free
            capacity_bytes = min(_LARGEST_DEFAULT, (free + self.bytes) // 2)
        if self._folder.read_only is None:
            with self.files.change() as index:
                self._evict(index, index.victims(index.totals()[1] - capacity_bytes, ()))
        return capacity_bytes

    @property
    def path(self) -> Path:
        """Return the folder, absolute."""
        return self._folder.path

    @property
    def _folder(self) -> Folder:
        """Return the open folder; it is opened again if it was away."""
        return self.files.folder

    def use(self, in_use: Callable[[], Collection[str]]) -> None:
        """Set the function that returns the ids that may not be evicted; it must not call the tier."""
        self._in_use = in_use

    def piece_path(self, id: str) -> Path:
        """Return the file of a piece, whether it is there or not.

        Raises:
            StoreError: the id is none.
        """
        return self._folder.piece(id)

    # Looking up

    def open(self, id: str, owner: str) -> RecordReader | None:
        """Return the record of an id, if it is here, its owner's and not expired.

        Raises:
            LoadError: it is here and damaged (in quarantine now), or the folder does not answer.
        """
        check_id(id)
        try:
            found = self._find(id)
        except FolderAwayError as error:
            self._count("failed_reads")
            raise LoadError(id, str(error)) from error
        if found is None or found.owner != owner:
            return None
        path = self._folder.piece(id)
        try:
            inode = path.lstat().st_ino
            reader = format.open_file(path, id)
        except FileNotFoundError:
            self._lost(id)
            return None
        except OSError as error:
            self._count("failed_reads")
            raise LoadError(id, str(error)) from error
        except LoadError as error:
            self._damaged(id, inode, error)
            raise
        if not found.is_of(reader.header):
            reader.close()
            self._count("lost")
            with suppress(StoreError, OSError):
                self.files.scan()
            raise LoadError(id, "its file has another owner, kind or chunks than the index")
        self._count("hits")
        self.touch([id])
        return DiskReader(reader, partial(self._damaged, id, inode))

    def entry(self, id: str) -> DiskEntry | None:
        """Return the entry of a piece that has not expired; None also while the folder does not answer."""
        check_id(id)
        try:
            return self._find(id)
        except FolderAwayError:
            self._count("failed_reads")
            return None

    def entries_of(self, ids: Sequence[str]) -> list[DiskEntry]:
        """Return the entries of those of some ids that are here and have not expired; one question to the index.

        Raises:
            FolderAwayError: the folder does not answer.
        """
        now = self._clock.now()
        found = self.files.read(lambda index: index.get_many([check_id(id) for id in ids]))
        return [entry for entry in found if entry.ends > now and entry.id not in self._distrusted]

    @property
    def version(self) -> tuple[int, int]:
        """Return what is another value after every change of the folder, by any process.

        Raises:
            FolderAwayError: the folder does not answer.
        """
        return self.files.read(lambda index: (id(index), index.version()))

    def has_patches(self, chunks: Iterable[str]) -> frozenset[str]:
        """Return those of some chunks that any patch was made from.

        Raises:
            FolderAwayError: the folder does not answer.
        """
        asked = [check_id(chunk) for chunk in chunks]
        return self.files.read(lambda index: frozenset(chunk for chunk in asked if index.has_patches(chunk)))

    def _find(self, id: str) -> DiskEntry | None:
        found = self.files.read(lambda index: index.get(id))
        if found is None or id in self._distrusted:
            return None
        # A use that is not in the index yet counts.
        used = self._touched.get(id)
        if used is not None and used > found.accessed:
            found = replace(found, accessed=used)
        now = self._clock.now()
        if found.ends > now:
            return found
        if now - self._remembered > 1.0:
            # Record the time, so that the piece stays expired if the clock jumps back and the process ends.
            with self.files.idle() as idle:
                if idle:
                    self.record_uses(always=True)
        return None

    def entries(self, owner: str | None = None, kind: RecordKind | None = None) -> Iterator[DiskEntry]:
        """Yield the pieces of an owner and kind that have not expired, by id; changes meanwhile may be seen or not."""
        if owner is not None and kind is None:
            yield from self.entries(owner, "chunk")
            yield from self.entries(owner, "patch")
            return
        last, now = "", self._clock.now()
        while page := self.files.read(lambda index, last=last: index.page(last, owner, kind)):  # type: ignore[misc]
            yield from (entry for entry in page if entry.ends > now and entry.id not in self._distrusted)
            last = page[-1].id

    def patches_of(self, chunk: str) -> list[str]:
        """Return the ids of the patches made from a chunk, whether it is here or not."""
        check_id(chunk)
        return self.files.read(lambda index: index.patches_of(chunk))

    @property
    def bytes(self) -> int:
        """Return the bytes of all pieces' files."""
        return self.files.read(lambda index: index.totals()[1])

    def bytes_of(self, owner: str) -> int:
        """Return the bytes of an owner's pieces' files."""
        return self.files.read(lambda index: index.totals(owner)[1])

    def count(self, owner: str | None = None, kind: RecordKind | None = None) -> int:
        """Return how many pieces there are."""
        return self.files.read(lambda index: index.totals(owner, kind)[0])

    @property
    def statistics(self) -> DiskStatistics:
        with self._lock:
            return DiskStatistics(rebuilt=self.files.rebuilt, **self._counts)

    # Uses

    def touch(self, ids: Iterable[str]) -> None:
        """Note that pieces were used now. Uses are recorded in batches: a crash loses the last seconds' at most."""
        now = self._clock.now()
        with self._lock:
            self._touched.update(dict.fromkeys(ids, now))
            due = len(self._touched) >= _TOUCHES or time.monotonic() - self._flushed >= _TOUCH_SECONDS
        if due:
            # Reading does not wait for a writer.
            with self.files.idle() as idle:
                if idle:
                    self.record_uses()

    def record_uses(self, always: bool = False) -> None:
        """Record the uses so far and the time; without uses, record the time only if `always`."""
        with self._lock:
            self._flushed = time.monotonic()
        if not (self._touched or always) or self._folder.read_only is not None:
            return
        self._remembered = self._clock.now()
        # A use that cannot be recorded is dropped: its piece may be evicted earlier.
        with suppress(StoreError, OSError), self.files.change() as index:
            self._record(index)

    def _record(self, index: Index) -> None:
        """Record the uses so far, in the index and in the files' times; within a change."""
        with self._lock:
            touched, self._touched = self._touched, {}
            self._flushed = time.monotonic()
        index.set_accessed(touched)
        for id, moment in touched.items():
            self._folder.set_accessed(id, moment)

    # Writing and deleting

    def write(self, record: Record, terms: Terms) -> None:
        """Write a record, which replaces the one of the same id and owner; it is durable when this returns.

        Raises:
            CapacityError: it is larger than the budget.
            StoreError: it could not be written; nothing of it is left.
        """
        check_header(record.header)
        try:
            self._retried(lambda: self._write(record, terms))
        except CapacityError:
            self._count("failed_writes")
            raise
        except (StoreError, OSError) as error:
            self._count("failed_writes")
            raise StoreError(f"{record.header.id[:12]} could not be written to disk: {error}") from error

    def _write(self, record: Record, terms: Terms) -> None:
        header = record.header
        now = self._clock.now()
        expires = None if terms.seconds is None else self._clock.steady(header.created) + terms.seconds
        record = replace(record, header=with_terms(header, terms, expires, now))
        size = format.size(record)
        if size > self.capacity_bytes:
            raise CapacityError(
                f"{header.id[:12]} has {size} bytes, more than the disk tier's {self.capacity_bytes}: raise its budget"
            )
        with self._reserve(record, size) as temporary:
            if format.write(record, temporary.file) != size:
                raise StoreError(f"its file was to have {size} bytes and has others")
            temporary.finish(now)
            entry = entry_of(record.header, bytes=size, accessed=now, pinned=terms.pinned)
            again = False
            try:
                with self.files.change() as index:
                    folder, earlier = self._folder, index.get(header.id)
                    _check_owner(earlier, header.owner)
                    again = earlier is not None
                    folder.unfinished = True
                    index.put(entry, temporary.inode)
                    folder.place(temporary, header.id)
                    folder.pin(header.id, terms.pinned)
            except (StoreError, OSError):
                # The file may be in its place but not in the index: it counts as not written. In an earlier file's
                # place it stays, as that one was acknowledged.
                if not again:
                    self._folder.withdraw(header.id, temporary.inode)
                raise
        with self._lock:
            self._touched.pop(header.id, None)
            self._distrusted.discard(header.id)

    def _reserve(self, record: Record, size: int) -> Temporary:
        """Return an empty file of this size within the budget."""
        id = record.header.id
        temporary: Temporary | None = None
        try:
            with self.files.change() as index:
                self._record(index)
                found = index.get(id)
                _check_owner(found, record.header.owner)
                self._make_room(index, size - (found.bytes if found is not None else 0), id)
                temporary = self._folder.temporary(size)
        except BaseException:
            if temporary is not None:
                temporary.discard()
            raise
        return temporary

    def _make_room(self, index: Index, bytes: int, keep: str) -> None:
        """Evict all but `keep` until `bytes` more fit the budget, within a change.

        Files being written and the quarantine count too; the quarantine is emptied where evicting is not enough.

        Raises:
            StoreError: they do not fit; nothing was evicted.
        """
        held = index.totals()[1] + self._folder.under_way()
        victims = index.victims(held + bytes - self.capacity_bytes, {*self._in_use(), keep})
        freed = sum(victims.values())
        if held + bytes - freed > self.capacity_bytes:
            freed += self._folder.shrink_quarantine(0)[1]
        if held + bytes - freed > self.capacity_bytes:
            raise StoreError(
                f"{self.path}: no room for {bytes} bytes: {held} of {self.capacity_bytes} are held by pieces that are "
                "pinned, in use or being written; unpin some, or give the disk tier a larger budget"
            )
        self._evict(index, victims)

    def _evict(self, index: Index, victims: dict[str, int]) -> None:
        self.files.remove(index, victims.keys(), durable=False)
        self._count("evicted", len(victims))

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record of this owner, and for a chunk every patch made from it; return whether anything was here.

        Raises:
            StoreError: the folder cannot be written.
        """
        check_id(id)
        try:
            try:
                removed = self._retried(lambda: self._delete(id, owner))
            except FolderAwayError as error:
                removed = self._delete_files(id, owner, error)
        except OSError as error:
            raise StoreError(f"{id[:12]} could not be deleted from disk: {error}") from error
        self._count("deleted", removed)
        return removed > 0

    def _delete(self, id: str, owner: str) -> int:
        with self.files.change() as index:
            patches, chunks = _deleted_with(id, owner, index)
            # No power cut may leave a patch of a chunk that is gone, not even one that was evicted before.
            self.files.remove(index, patches)
            if chunks:
                self.files.remove(index, chunks)
            return len(patches) + len(chunks)

    def _delete_files(self, id: str, owner: str, error: FolderAwayError) -> int:
        """Delete the files where the index cannot be changed; the index follows later."""
        patches, chunks = self.files.read(partial(_deleted_with, id, owner))
        going = [*patches, *chunks]
        with self.files.files_alone() as folder:
            folder.remove(patches)
            folder.remove(chunks)
            self._distrusted.update(going)
        _LOG.warning("%s: %d files were deleted; the index follows later: %s", self.path, len(going), error)
        return len(going)

    def _retried(self, change: Callable[[], _Answer]) -> _Answer:
        """Make a change, and make it again if the index was rebuilt for it."""
        rebuilt = self.files.rebuilt
        try:
            return change()
        except FolderAwayError:
            if self.files.rebuilt == rebuilt:
                raise
            return change()

    # Upkeep

    def set_pin(self, id: str, pinned: bool) -> bool:
        """Pin or unpin a piece; return whether it is here.

        Raises:
            StoreError: the folder cannot be written.
        """
        check_id(id)
        with self.files.change() as index:
            found, row = index.get(id), index.get_row(id)
            if found is None or row is None:
                return False
            self._folder.unfinished = True
            self._folder.pin(id, pinned)
            index.put(replace(found, terms=replace(found.terms, pinned=pinned)), row.inode)
        return True

    def evict(self, owner: str, bytes: int) -> int:
        """Evict at least so many bytes of an owner's pieces, as far as possible; return the bytes evicted.

        Raises:
            StoreError: the folder cannot be written.
        """
        if bytes <= 0:
            return 0
        with self.files.change() as index:
            self._record(index)
            victims = index.victims(bytes, set(self._in_use()), owner)
            self._evict(index, victims)
            return sum(victims.values())

    def expire(self) -> int:
        """Delete expired pieces that are not in use, and every patch made from them; return how many were deleted.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.files.change() as index:
            self._record(index)
            in_use = set(self._in_use())
            ended = [id for id in index.ended(self._clock.now()) if id not in in_use]
            patches = dict.fromkeys(patch for id in ended for patch in index.patches_of(id))
            going = [*patches, *(id for id in ended if id not in patches)]
            if going:
                self.files.remove(index, patches.keys())
                self.files.remove(index, going[len(patches) :])
        self._count("expired", len(going))
        return len(going)

    def quarantine(self, id: str, reason: str, inode: int | None = None) -> bool:
        """Quarantine a damaged piece; return whether it was here. In a read-only folder it is only not served.

        Args:
            id: of the piece.
            reason: for the log.
            inode: of the damaged file, so that one written since stays; None for any file.
        """
        check_id(id)
        try:
            with self.files.change() as index:
                self._folder.unfinished = True
                moved = self._folder.quarantine(id, inode, self._quarantine_bytes)
                if moved:
                    index.remove(id)
                    self._folder.pin(id, False)
        except (StoreError, OSError) as error:
            self._distrusted.add(id)
            reason, moved = f"{reason}; it stays where it is: {error}", True
        if moved:
            self._count("quarantined")
            _LOG.warning("%s is out of service: %s", self._folder.piece(id), reason)
        return moved

    def _damaged(self, id: str, inode: int, error: LoadError) -> None:
        if is_passing(error):
            self._count("failed_reads")
        else:
            self.quarantine(id, error.reason, inode)

    def _lost(self, id: str) -> None:
        """Remove a piece without a file from the index."""
        with suppress(StoreError, OSError), self.files.change() as index:
            if index.get(id) is not None and not self._folder.piece(id).exists():
                index.remove(id)
                self._count("lost")

    def verify(self, progress: Callable[[int, int], None] | None = None, repair: bool = True) -> VerifyReport:
        """Read every piece to its end.

        Args:
            progress: called with the bytes read so far and the bytes of all.
            repair: compare the index with the files first, and quarantine damaged files.

        Raises:
            StoreError: the folder does not answer.
        """
        scan = self.files.scan() if repair and self._folder.read_only is None else None
        total = self.bytes
        checked = passed = read = 0
        damaged: list[tuple[str, str]] = []
        for entry in self.entries():
            path = self._folder.piece(entry.id)
            try:
                inode = path.lstat().st_ino
                with format.open_file(path, entry.id) as reader:
                    format.verify(reader)
                    if not entry.is_of(reader.header):
                        raise LoadError(entry.id, "its file has another owner, kind or chunks than the index")
                passed += entry.bytes
            except FileNotFoundError:
                # Deleted or evicted since it was listed, unless the index still has it.
                if self.entry(entry.id) is not None:
                    damaged.append((entry.id, "its file is gone"))
                continue
            except OSError as error:
                damaged.append((entry.id, str(error)))
            except LoadError as error:
                damaged.append((entry.id, error.reason))
                if repair and not is_passing(error):
                    self.quarantine(entry.id, error.reason, inode)
            checked += 1
            read += entry.bytes
            if progress is not None:
                progress(read, total)
        return VerifyReport(checked, tuple(damaged), passed, scan)

    def gc(self, progress: Callable[[int, int], None] | None = None) -> CollectReport:
        """Delete expired pieces, files that crashed writers left, and the quarantine; compare the index with the files.

        Args:
            progress: called with the number of folders compared so far, and of all folders.

        Raises:
            StoreError: the folder cannot be written.
        """
        before = self.bytes
        expired = self.expire()
        freed = before - self.bytes
        with self.files.change():
            quarantined, bytes = self._folder.shrink_quarantine(0)
        scan = self.files.scan(progress)
        self.files.checkpoint()
        return CollectReport(expired, quarantined, freed + bytes, scan)

    def close(self) -> None:
        """Record the last uses and close the folder; may be called more than once."""
        self.record_uses(always=True)
        self.files.close()

    def _count(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count


def _check_owner(found: DiskEntry | None, owner: str) -> None:
    # The shared library's ids are known to all, so a tenant's piece must not block one.
    if found is not None and found.owner != owner and owner != SHARED:
        raise StoreError(f"{found.id[:12]} belongs to another owner: delete it there first")


def _deleted_with(id: str, owner: str, index: Index) -> tuple[list[str], list[str]]:
    """Return what is deleted when an owner deletes an id: its patches, and itself where it is here."""
    found = index.get(id)
    if found is not None and found.owner != owner:
        return [], []
    patches = index.patches_of(id)
    if found is None and owner != SHARED:
        # The chunk is not here, so its owner is not known: only the tenant's own patches go.
        patches = [patch for patch in patches if (p := index.get(patch)) is not None and p.owner == owner]
    return patches, [] if found is None else [id]

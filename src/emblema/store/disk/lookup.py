"""What is on disk: looking it up, listing it, and recording when it was used."""

import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from emblema.errors import StoreError
from emblema.store.clock import SteadyClock
from emblema.store.disk import room
from emblema.store.disk.attachment import Attachment, FolderAwayError
from emblema.store.disk.entry import Entry
from emblema.store.disk.index import Index
from emblema.store.disk.reports import DiskStatistics, ScanReport
from emblema.store.record import RecordKind, check_id

_LOG = logging.getLogger(__name__)
_LARGEST_DEFAULT = 64 * 2**30
_LARGEST_QUARANTINE = 256 * 2**20
_TOUCHES = 512
_TOUCH_SECONDS = 2.0
_Answer = TypeVar("_Answer")


class Lookup:
    """The entries of a disk tier. See `DiskTier`."""

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
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._touched: dict[str, float] = {}
        self._flushed = time.monotonic()
        self._remembered = 0.0
        # Damaged pieces that could not be taken out of the folder: not served again.
        self._distrusted: set[str] = set()
        limit = _LARGEST_QUARANTINE if capacity_bytes is None else min(_LARGEST_QUARANTINE, capacity_bytes // 8)
        self.attachment = Attachment(os.fspath(folder), self._clock, limit)
        self._quarantine_bytes = limit
        self.report: ScanReport = self.attachment.report
        """What the scan found when the tier was opened."""
        if capacity_bytes is None:
            free = shutil.disk_usage(self.attachment.folder.path).free
            capacity_bytes = min(_LARGEST_DEFAULT, (free + self.bytes) // 2)
        self.capacity_bytes = capacity_bytes
        if self.attachment.folder.read_only is None:
            with self.attachment.change() as index:
                over = index.totals()[1] - capacity_bytes
                self._count_evicted(room.drop(self.attachment.folder, index, room.choose(index, over, ())[0]))
        (_LOG.warning if self.report.skipped or self.report.lost else _LOG.info)("%s: %s", folder, self.report)

    @property
    def name(self) -> str:
        return "disk"

    def use(self, in_use: Callable[[], Collection[str]]) -> None:
        """Ask this from now on which ids may not be evicted; it must not call the tier."""
        self._in_use = in_use

    @property
    def path(self) -> Path:
        """The folder, absolute."""
        return self.attachment.folder.path

    def piece_path(self, id: str) -> Path:
        """The file of a piece, whether it is there or not.

        Raises:
            StoreError: the id is none.
        """
        return self.attachment.folder.piece(id)

    def entry(self, id: str) -> Entry | None:
        """What is known of a piece that is here and has not expired; None too while the folder does not answer."""
        check_id(id)
        try:
            return self._find(id)
        except FolderAwayError:
            self._count("failed_reads")
            return None

    def _find(self, id: str) -> Entry | None:
        found = self.attachment.read(lambda index: index.get(id))
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
            # So that it stays expired if the clock jumps back and the process ends.
            with self.attachment.idle() as idle:
                if idle:
                    self._flush_now(always=True)
        return None

    def entries(self, owner: str | None = None, kind: RecordKind | None = None) -> Iterator[Entry]:
        """All pieces of an owner and kind that have not expired, by id; what changes meanwhile may be seen or not."""
        if owner is not None and kind is None:
            yield from self.entries(owner, "chunk")
            yield from self.entries(owner, "patch")
            return
        last, now = "", self._clock.now()
        while page := self.attachment.read(partial(_page, last, owner, kind)):
            yield from (entry for entry in page if entry.ends > now and entry.id not in self._distrusted)
            last = page[-1].id

    def patches_of(self, chunk: str) -> list[str]:
        """Ids of the patches made from a chunk, whether it is here or not."""
        check_id(chunk)
        return self.attachment.read(lambda index: index.patches_of(chunk))

    @property
    def bytes(self) -> int:
        """Bytes of all pieces' files."""
        return self.attachment.read(lambda index: index.totals()[1])

    def bytes_of(self, owner: str) -> int:
        """Bytes of an owner's pieces' files."""
        return self.attachment.read(lambda index: index.totals(owner)[1])

    def count(self, owner: str | None = None, kind: RecordKind | None = None) -> int:
        """How many pieces there are."""
        return self.attachment.read(lambda index: index.totals(owner, kind)[0])

    @property
    def statistics(self) -> DiskStatistics:
        try:
            pieces, held = self.attachment.read(lambda index: index.totals())
        except FolderAwayError:
            pieces = held = 0
        with self._lock:
            counts = dict(self._counts)
        return DiskStatistics(pieces, held, self.capacity_bytes, rebuilt=self.attachment.rebuilt, **counts)

    def touch(self, ids: Iterable[str]) -> None:
        """Pieces were used now. Recorded in batches: a crash may lose the last seconds' uses, nothing else."""
        now = self._clock.now()
        with self._lock:
            self._touched.update(dict.fromkeys(ids, now))
            due = len(self._touched) >= _TOUCHES or time.monotonic() - self._flushed >= _TOUCH_SECONDS
        if due:
            # Reading does not wait for a writer.
            with self.attachment.idle() as idle:
                if idle:
                    self._flush_now()

    def _flush(self, index: Index) -> None:
        """Record the uses so far, in the index and in the files' times; within a change."""
        with self._lock:
            touched, self._touched = self._touched, {}
            self._flushed = time.monotonic()
        index.set_accessed(touched)
        for id, moment in touched.items():
            self.attachment.folder.set_accessed(id, moment)

    def _flush_now(self, always: bool = False) -> None:
        """Record the uses so far, and the time; by itself where there are none only if `always`."""
        with self._lock:
            self._flushed = time.monotonic()
            pending = len(self._touched)
        if not (pending or always) or self.attachment.folder.read_only is not None:
            return
        self._remembered = self._clock.now()
        try:
            with self.attachment.change() as index:
                self._flush(index)
        except (StoreError, OSError):
            self._count("dropped_touches", pending)

    def _retried(self, change: Callable[[], _Answer]) -> _Answer:
        """Make a change, once more if the index had to be made again for it."""
        rebuilt = self.attachment.rebuilt
        try:
            return change()
        except FolderAwayError:
            if self.attachment.rebuilt == rebuilt:
                raise
            return change()

    def _count(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def _count_evicted(self, evicted: tuple[int, int]) -> int:
        self._count("evicted", evicted[0])
        return evicted[1]


def _page(after: str, owner: str | None, kind: str | None, index: Index) -> list[Entry]:
    return index.page(after, owner, kind)

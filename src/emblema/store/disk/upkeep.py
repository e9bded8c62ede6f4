"""Keeping a disk tier in order: what goes, what stays, and reading everything."""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from emblema.errors import LoadError, StoreError
from emblema.store import format
from emblema.store.disk import room
from emblema.store.disk.index import Index
from emblema.store.disk.lookup import Lookup
from emblema.store.disk.reports import CollectReport, VerifyReport
from emblema.store.format import is_passing
from emblema.store.record import check_id

_LOG = logging.getLogger(__name__)


class Upkeep(Lookup):
    """Pins, eviction, expiry, quarantine and checks of a disk tier. See `DiskTier`."""

    def set_pin(self, id: str, pinned: bool) -> bool:
        """Pin or unpin a piece; whether it is here.

        Raises:
            StoreError: the folder cannot be written.
        """
        check_id(id)
        with self.attachment.change() as index:
            found, row = index.get(id), index.get_row(id)
            if found is None or row is None:
                return False
            self.attachment.folder.unfinished = True
            self.attachment.folder.pin(id, pinned)
            index.put(replace(found, terms=replace(found.terms, pinned=pinned)), row.inode)
        return True

    def evict(self, owner: str, bytes: int) -> int:
        """Evict at least so many bytes of an owner's pieces, as far as there are any that may go; bytes evicted.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.attachment.change() as index:
            self._flush(index)
            victims, _ = room.choose(index, bytes, set(self._in_use()), owner=owner)
            return self._count_evicted(room.drop(self.attachment.folder, index, victims))

    def expire(self) -> int:
        """Delete what has expired and is not in use, and for a chunk every patch made from it; how many pieces went.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.attachment.change() as index:
            self._flush(index)
            in_use = set(self._in_use())
            ended = [id for id in index.ended(self._clock.now()) if id not in in_use]
            going = [*(patch for id in ended for patch in index.patches_of(id)), *ended]
            removed = self._remove(index, list(dict.fromkeys(going)))
        self._count("expired", removed)
        return removed

    def quarantine(self, id: str, reason: str, inode: int | None = None) -> bool:
        """Take a damaged piece out of service; whether it was here. In a read-only folder it is just not served.

        Args:
            id: of the piece.
            reason: for the log.
            inode: of the damaged file; a file written since stays. None takes whichever is there.
        """
        check_id(id)
        try:
            with self.attachment.change() as index:
                self.attachment.folder.unfinished = True
                moved = self.attachment.folder.quarantine(id, inode, self._quarantine_bytes)
                if moved:
                    index.remove(id)
                    self.attachment.folder.pin(id, False)
        except (StoreError, OSError) as error:
            self._distrusted.add(id)
            reason, moved = f"{reason}; it stays where it is: {error}", True
        if moved:
            self._count("quarantined")
            _LOG.warning("%s is out of service: %s", self.attachment.folder.piece(id), reason)
        return moved

    def _damaged(self, id: str, inode: int, error: LoadError) -> None:
        if is_passing(error):
            self._count("failed_reads")
        else:
            self.quarantine(id, error.reason, inode)

    def _lost(self, id: str) -> None:
        """The index has a piece and there is no file of it."""
        with suppress(StoreError, OSError), self.attachment.change() as index:
            if index.get(id) is not None and not self.attachment.folder.piece(id).exists():
                index.remove(id)
                self._count("lost")

    def verify(self, progress: Callable[[int, int], None] | None = None, repair: bool = True) -> VerifyReport:
        """Read every piece to its end.

        Args:
            progress: called with the bytes read so far and the bytes of all.
            repair: compare the index with the files first, and put what is damaged in quarantine.

        Raises:
            StoreError: the folder does not answer.
        """
        scan = self.attachment.scan() if repair and self.attachment.folder.read_only is None else None
        total = self.bytes
        checked = passed = read = 0
        damaged: list[tuple[str, str]] = []
        for entry in self.entries():
            path = self.attachment.folder.piece(entry.id)
            try:
                inode = path.lstat().st_ino
                with format.open_file(path, entry.id) as reader:
                    format.verify(reader)
                    header = reader.header
                if (header.owner, header.kind, header.chunks) != (entry.owner, entry.kind, entry.chunks):
                    raise LoadError(entry.id, "its file does not say what the index does")
                passed += entry.bytes
            except FileNotFoundError:
                # Deleted or evicted since it was listed, unless the index still has it.
                if self.entry(entry.id) is not None:
                    damaged.append((entry.id, "its file is gone"))
                continue
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
        """Delete what has expired, what dead writers left and what is in quarantine, and make the index agree.

        Args:
            progress: called with how many of how many folders have been compared with the index.

        Raises:
            StoreError: the folder cannot be written.
        """
        attachment = self.attachment
        before = self.bytes
        expired = self.expire()
        freed = before - self.bytes
        with attachment.change():
            quarantined, bytes = attachment.folder.shrink_quarantine(0)
        scan = attachment.scan(progress)
        attachment.checkpoint()
        return CollectReport(expired, quarantined, freed + bytes, scan)

    def _remove(self, index: Index, ids: Collection[str]) -> int:
        if ids:
            self.attachment.folder.unfinished = True
            self.attachment.folder.remove(ids)
            for id in ids:
                index.remove(id)
        return len(ids)

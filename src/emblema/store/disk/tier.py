"""The disk tier: pieces that outlast the process, within a budget of bytes."""

import logging
from contextlib import suppress
from dataclasses import replace
from functools import partial

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.store import format
from emblema.store.disk import room
from emblema.store.disk.attachment import FolderAwayError
from emblema.store.disk.entry import Entry, check_header, entry_of, with_terms
from emblema.store.disk.index import Index
from emblema.store.disk.reader import DiskReader
from emblema.store.disk.temporary import Temporary
from emblema.store.disk.upkeep import Upkeep
from emblema.store.record import SHARED, Record, RecordReader, Terms, check_id

_LOG = logging.getLogger(__name__)


class DiskTier(Upkeep):
    """Keeps records in a folder, one file each, through any crash. Threads and processes may share it.

    A piece is durable when `write` returns and gone for good when `delete` returns. Room is made by evicting the lowest
    priority first and then what was used longest ago, never what is pinned or in use. Its budget counts pieces, files
    being written and quarantine, not the index (about 500 bytes a piece).

    Args:
        folder: made where it is not there; one that cannot be written is read.
        capacity_bytes: budget; by default half of what is free or taken by this store already, at most 64 GiB.
        clock: seconds since 1970; may jump back.
        in_use: ids that may not be evicted now; must not call the tier.

    Raises:
        StoreError: the folder is a file, cannot be made, or was written by a later version.
    """

    def open(self, id: str, owner: str) -> RecordReader | None:
        """The record of an id, if it is here, its owner's and not expired.

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
            self._count("misses")
            return None
        path = self.attachment.folder.piece(id)
        try:
            inode = path.lstat().st_ino
            reader = format.open_file(path, id)
        except FileNotFoundError:
            self._lost(id)
            self._count("misses")
            return None
        except OSError as error:
            self._count("failed_reads")
            raise LoadError(id, str(error)) from error
        except LoadError as error:
            self._damaged(id, inode, error)
            raise
        header = reader.header
        if (header.owner, header.kind, header.chunks) != (found.owner, found.kind, found.chunks):
            reader.close()
            self._count("lost")
            with suppress(StoreError, OSError):
                self.attachment.scan()
            raise LoadError(id, "its file does not say what the index did")
        self._count("hits")
        self.touch([id])
        return DiskReader(reader, partial(self._damaged, id, inode))

    def write(self, record: Record, terms: Terms) -> None:
        """Keep a record, in place of the one of the same id and owner; durable when this returns.

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
            try:
                with self.attachment.change() as index:
                    folder = self.attachment.folder
                    self._check_owner(index.get(header.id), header.owner)
                    folder.unfinished = True
                    index.put(entry, temporary.inode)
                    folder.place(temporary, header.id)
                    folder.pin(header.id, terms.pinned)
            except (StoreError, OSError):
                # It may be in its place and not in the index, and counts as not written.
                self.attachment.folder.withdraw(header.id, temporary.inode)
                raise
        with self._lock:
            self._touched.pop(header.id, None)
            self._distrusted.discard(header.id)
        self._count("written")

    def _reserve(self, record: Record, size: int) -> Temporary:
        """An empty file of this size within the budget."""
        id = record.header.id
        temporary: Temporary | None = None
        try:
            with self.attachment.change() as index:
                self._flush(index)
                found = index.get(id)
                self._check_owner(found, record.header.owner)
                more = size - (found.bytes if found is not None else 0)
                folder, in_use = self.attachment.folder, set(self._in_use())
                self._count_evicted(room.make_room(folder, index, more, self.capacity_bytes, in_use, keep=id))
                temporary = folder.temporary(size)
        except BaseException:
            if temporary is not None:
                temporary.discard()
            raise
        return temporary

    def _check_owner(self, found: Entry | None, owner: str) -> None:
        # The shared library's ids are known to all: nobody keeps them from it.
        if found is not None and found.owner != owner and owner != SHARED:
            raise StoreError(f"{found.id[:12]} belongs to another owner: delete it there first")

    def delete(self, id: str, owner: str) -> bool:
        """Delete a record of this owner, and for a chunk every patch made from it; whether anything was here.

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
        with self.attachment.change() as index:
            return self._remove(index, _going(id, owner, index))

    def _delete_files(self, id: str, owner: str, error: FolderAwayError) -> int:
        """Delete where the index cannot be changed: what counts is that the files are gone."""
        going = self.attachment.read(partial(_going, id, owner))
        with self.attachment.files_alone() as folder:
            folder.remove(going)
            self._distrusted.update(going)
        _LOG.warning("%s: %d files were deleted; the index follows later: %s", self.path, len(going), error)
        return len(going)

    def close(self) -> None:
        """Record the last uses and let go of the folder; may be called more than once."""
        self._flush_now(always=True)
        self.attachment.close()


def _going(id: str, owner: str, index: Index) -> list[str]:
    """What goes when an id is deleted: its patches first."""
    found = index.get(id)
    if found is not None and found.owner != owner:
        return []
    patches = index.patches_of(id)
    if found is None and owner != SHARED:
        # The chunk is not here, so it does not say whose it is: only the tenant's own patches go.
        patches = [patch for patch in patches if (p := index.get(patch)) is not None and p.owner == owner]
    return [*patches, *([id] if found is not None else [])]

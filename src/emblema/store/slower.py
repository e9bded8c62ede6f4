"""The tiers that outlast the process, disk first, then remote: asked in that order, trusted in nothing."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from emblema.errors import EmblemaError, LoadError, StoreError
from emblema.store.counts import Counts
from emblema.store.disk.entry import with_terms
from emblema.store.format import is_passing
from emblema.store.record import Record, RecordReader, RecordTier, RemoteTier, Terms, is_id

if TYPE_CHECKING:
    from emblema.store.disk import DiskTier, Entry

log = logging.getLogger(__name__)

DISK, REMOTE = "disk", "remote"


class SlowerTiers:
    """Disk and remote, either of which may be missing. No call is made with the store's lock held.

    What fails is counted, and logged once for each tier and kind of call until that succeeds again.
    """

    def __init__(self, disk: "DiskTier | None", remote: RemoteTier | None, counts: Counts) -> None:
        self.disk = disk
        self.remote = remote
        self._counts = counts
        self._lock = threading.Lock()
        self._complained: set[tuple[str, str]] = set()

    @property
    def tiers(self) -> dict[str, RecordTier]:
        """The tiers there are, by label, the fastest first."""
        both = {DISK: self.disk, REMOTE: self.remote}
        return {label: tier for label, tier in both.items() if tier is not None}

    def __bool__(self) -> bool:
        return bool(self.tiers)

    def open(self, id: str, owners: Sequence[str]) -> Iterator[tuple[str, RecordReader]]:
        """Every tier's record of an id, as far as it is one of the owners'; the caller closes the readers."""
        for label, tier in self.tiers.items():
            for owner in owners:
                reader = self._open(label, tier, id, owner)
                if reader is not None:
                    yield label, reader

    def _open(self, label: str, tier: RecordTier, id: str, owner: str) -> RecordReader | None:
        if not is_id(id):
            return None
        try:
            reader = tier.open(id, owner)
        except (EmblemaError, OSError) as error:
            self._counts.add(owner, "load_failures")
            self.complain(label, "open", error, owner)
            return None
        self.content(label, "open")
        if reader is not None and (reader.header.id, reader.header.owner) != (id, owner):
            reader.close()
            self.distrust(label, id, owner, LoadError(id, "another piece was in its place"))
            return None
        return reader

    def entry(self, id: str, owner: str) -> "Entry | None":
        """What the disk's index says of an owner's piece; files are not touched."""
        if self.disk is None or not is_id(id):
            return None
        try:
            entry = self.disk.entry(id)
        except (EmblemaError, OSError) as error:
            self.complain(DISK, "look-up", error, owner)
            return None
        return entry if entry is not None and entry.owner == owner else None

    def holds(self, id: str, owner: str) -> bool:
        """Whether a tier has an owner's piece."""
        if self.entry(id, owner) is not None:
            return True
        reader = None if self.remote is None else self._open(REMOTE, self.remote, id, owner)
        if reader is None:
            return False
        reader.close()
        return True

    def distrust(self, label: str, id: str, owner: str, error: Exception) -> None:
        """A record could not be read or did not verify: it is set aside, and counted."""
        self._counts.add(owner, "load_failures")
        log.warning("%s: %s", label, error)
        try:
            reason = getattr(error, "reason", str(error))
            if label == DISK and self.disk is not None and not is_passing(error):
                self.disk.quarantine(id, reason)
                self._counts.add(owner, "quarantined")
            elif label == REMOTE and self.remote is not None and self.remote.quarantine(id, owner, reason):
                self._counts.add(owner, "quarantined")
        except (EmblemaError, OSError) as failure:
            self.complain(label, "quarantine", failure, owner)

    def write(self, label: str, record: Record, terms: Terms) -> None:
        """Keep a record in one tier; as RecordTier.write. A remote one carries its terms to whoever reads it."""
        if label == REMOTE:
            record = replace(record, header=with_terms(record.header, terms, None, record.header.created))
        self.tiers[label].write(record, terms)
        self.content(label, "write")

    def delete(self, id: str, owner: str) -> bool:
        """Delete from every tier; whether anything was there.

        Raises:
            StoreError: a tier could not be reached, so that the piece may still be there.
        """
        if not is_id(id):
            return False
        found, failures = False, []
        for label, tier in self.tiers.items():
            try:
                found |= tier.delete(id, owner)
            except (EmblemaError, OSError) as error:
                self.complain(label, "delete", error, owner)
                failures.append(f"{label} ({error})")
        if failures:
            raise StoreError(
                f"{id[:12]} is out of use, but could not be deleted from {' and '.join(failures)}: delete it again"
            )
        return found

    def delete_all(self, names: Sequence[tuple[str, str]]) -> bool:
        """Delete pieces by owner and id, in this order, each even where an earlier one failed.

        Raises:
            StoreError: as `delete`, the first there was.
        """
        found, failure = False, None
        for owner, id in names:
            try:
                found |= self.delete(id, owner)
            except StoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return found

    def touch(self, ids: Sequence[str]) -> None:
        """Tell the disk what was used, so that it lets the right pieces go."""
        self._upkeep("touch", lambda disk: disk.touch(ids))

    def set_pin(self, id: str, pinned: bool) -> None:
        self._upkeep("pin", lambda disk: disk.set_pin(id, pinned))

    def expire(self) -> None:
        """Let the disk delete what has had its time."""
        self._upkeep("expire", lambda disk: disk.expire())

    def keep_within(self, owner: str, quota: int) -> None:
        """Evict an owner's own files beyond its quota."""

        def evict(disk: "DiskTier") -> None:
            excess = disk.bytes_of(owner) - quota
            if excess > 0:
                disk.evict(owner, excess)

        self._upkeep("evict", evict)

    def _upkeep(self, what: str, call: "Callable[[DiskTier], object]") -> None:
        if self.disk is None:
            return
        try:
            call(self.disk)
        except (EmblemaError, OSError) as error:
            self.complain(DISK, what, error, None)
        else:
            self.content(DISK, what)

    def complain(self, label: str, what: str, error: Exception, owner: str | None) -> None:
        """Count a tier's failure; log it unless the last call of its kind failed too."""
        if label == REMOTE and owner is not None:
            self._counts.add(owner, "remote_failures")
        with self._lock:
            known = (label, what) in self._complained
            self._complained.add((label, what))
        if not known:
            log.warning("%s tier, %s: %s", label, what, error)

    def content(self, label: str, what: str) -> None:
        """A call succeeded: the next failure is news again."""
        if self._complained:
            with self._lock:
                self._complained.discard((label, what))

    def close(self) -> None:
        for tier in self.tiers.values():
            tier.close()

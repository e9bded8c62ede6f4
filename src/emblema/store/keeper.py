"""The heart of the store: what is where, and how it gets there.

One lock (`changed`) guards the table of pieces, the leases' queue and the savers' queues. It is never held during
reading or writing: callers take what they need, let go, do it, take the lock again and look whether it still holds.
Inside it only locks that never wait for it are taken: those of ArrivingRows and of the counters.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch

from emblema.errors import CapacityError, LoadError, StoreError
from emblema.kv.arriving import ArrivingRows
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store.certainty import delete, flush
from emblema.store.clock import SteadyClock
from emblema.store.compression import Compression
from emblema.store.counts import Counts
from emblema.store.finder import Finder
from emblema.store.handles import StoredRows, handle_of
from emblema.store.loader import Loader
from emblema.store.patches import Patches
from emblema.store.pieces import Memory, MemoryTier, Piece
from emblema.store.pins import check_pins
from emblema.store.record import Name, Terms
from emblema.store.saver import Saver
from emblema.store.slower import DISK, SlowerTiers
from emblema.store.traffic import Traffic

Owners = Sequence[str]
"""Who may be asked, in order: the tenant, then `shared`."""

EXPIRY_SECONDS = 60.0
"""How often pieces whose time has come are looked for."""


class Keeper:
    """Pieces of all owners in all tiers. Views call it, each for its owners.

    Args:
        budgets: bytes of device and host memory.
        slower: disk and remote.
        counts: where everything is counted.
        write: `through` writes a piece when it is put, `back` when it leaves memory.
        compression: of the rows written.
        terms: of pieces put without any.
        deadline: seconds for a load.
        quota_of: bytes that an owner may hold in memory, and again on disk.
        clock: Unix time in seconds.
        device: where loaded rows are wanted.
        ended: told the owner and id of what has expired; must not call the store.
    """

    def __init__(
        self,
        budgets: dict[MemoryTier, int | None],
        slower: SlowerTiers,
        counts: Counts,
        *,
        write: Literal["through", "back"],
        compression: Compression,
        terms: Terms,
        deadline: float,
        quota_of: Callable[[str], int | None],
        clock: Callable[[], float],
        device: torch.device,
        ended: Callable[[str, str], object],
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.memory = Memory(budgets)
        self.slower, self.counts, self.write, self.compression = slower, counts, write, compression
        self.ended = ended
        self.terms, self.deadline, self.quota_of, self.clock, self.device = (
            terms,
            deadline,
            quota_of,
            SteadyClock(clock),
            device,
        )
        # Whether device memory is other memory than the host's, so that rows have to be copied between them.
        self.separate = device.type != "cpu"
        self.wall = clock
        self.savers = {label: Saver(self, label) for label in slower.tiers}
        self.loader = Loader(self)
        self.traffic = Traffic(self)
        self.finder = Finder(self)
        self.patches = Patches(self)
        # Names whose deletion is under way, with how many.
        self.deleting: dict[Name, int] = {}
        # Handles given out and still in use: they say whose a lost chunk was.
        self.handles: WeakValueDictionary[Name, StoredRows] = WeakValueDictionary()
        # Pieces of each owner that had to go from memory before any slower tier took them, since its last flush.
        self.losses: Counter[str] = Counter()
        self.closed = False
        self.process = os.getpid()
        self._used: set[str] = set()
        self._expired = time.monotonic()

    def lookup(self, owners: Owners, id: str) -> Piece | None:
        """The piece in memory, not counted as a use; under the lock."""
        for owner in owners:
            piece = self.memory.get((owner, id))
            if piece is None:
                continue
            if piece.expired(self.clock.now()):
                self.traffic.end(piece)
            elif isinstance(piece.rows, ArrivingRows) and piece.rows.failed is not None:
                self.traffic.remove(piece)
            else:
                return piece
        return None

    def find(self, owners: Owners, id: str) -> Piece | None:
        """The piece, in memory or brought there from a slower tier without its rows; counted as a use.

        Raises:
            StoreError: the store is closed.
        """
        with self.changed:
            self.check_open()
            piece = self.lookup(owners, id)
            if piece is not None:
                self.use(piece)
                return piece
        if not self.slower:
            return None
        return self.loader.ask(id, owners[0], lambda: self.finder.fetch(owners, id))

    def use(self, piece: Piece) -> None:
        """Count a use; under the lock."""
        piece.leaving = False
        self.memory.touch(piece, self.clock.now())
        if DISK in piece.saved:
            self._used.add(piece.id)
            self.savers[DISK].start()

    def holds(self, owners: Owners, id: str) -> bool:
        """Whether a chunk is in any tier."""
        with self.changed:
            piece = self.lookup(owners, id)
            if piece is not None:
                return piece.chunk is not None
        return any(self.slower.holds(id, owner) for owner in self.open_to(owners, id))

    def knows(self, owner: str, id: str) -> bool:
        """Whether an owner's piece is in memory or in the disk's index."""
        with self.changed:
            if self.memory.get((owner, id)) is not None:
                return True
        return bool(self.open_to((owner,), id)) and self.slower.entry(id, owner) is not None

    def ids(self, owner: str) -> list[str]:
        """Ids of an owner's chunks, on disk alone and in memory."""
        disk = self.slower.disk
        stored = [] if disk is None else [entry.id for entry in disk.entries(owner=owner, kind="chunk")]
        with self.changed:
            here = [piece.id for piece in self.memory if piece.owner == owner and piece.chunk is not None]
            known = set(here)
            return [id for id in stored if id not in known and (owner, id) not in self.memory.tombstones] + here

    def set_pin(self, owner: str, id: str, pinned: bool) -> bool:
        """Pin or unpin an owner's piece wherever it is; whether it is anywhere.

        Raises:
            CapacityError: the owner's pinned pieces would exceed its quota, or memory that nothing stands behind.
        """
        if pinned:
            check_pins(self, owner, id)
        with self.changed:
            piece = self.lookup((owner,), id)
            if piece is not None:
                self.memory.change_terms(piece, replace(piece.terms, pinned=pinned))
                self.traffic.make_room()
        stored = bool(self.open_to((owner,), id)) and self.slower.entry(id, owner) is not None
        if stored:
            self.slower.set_pin(id, pinned)
        elif piece is not None:
            self._still_saved(piece)
        return stored or piece is not None

    def open_to(self, owners: Owners, id: str) -> list[str]:
        """The owners under whom an id has not been deleted."""
        with self.changed:
            return [owner for owner in owners if (owner, id) not in self.memory.tombstones]

    def deleted(self, owners: Owners, ids: Iterable[str]) -> frozenset[str]:
        """Those of some ids that were deleted under any of the owners."""
        with self.changed:
            return frozenset(id for id in ids if any((owner, id) in self.memory.tombstones for owner in owners))

    @property
    def deletions(self) -> int:
        """How many deletions and expiries were noted so far."""
        with self.changed:
            return self.memory.tombstones.added

    def handle(self, chunk: Chunk, owner: str, sizes: Sequence[int]) -> Chunk:
        """What is given out for a chunk: one object for all who have it, known of for as long as anybody does."""
        made = handle_of(owner, chunk.id, chunk.kind, chunk.model, chunk.encoded, sizes, self.rows)
        with self.changed:
            known = self.handles.get((owner, chunk.id))
            if known is not None and known.sizes == tuple(sizes):
                return replace(made, rows=known)
            if isinstance(made.rows, StoredRows):
                self.handles[owner, chunk.id] = made.rows
        return made

    def piece(self, owner: str, id: str, terms: Terms, **contents: Any) -> Piece:
        """A new piece, made now."""
        now = self.clock.now()
        return Piece(owner, id, terms, self.wall(), now, now, **contents)

    def put(self, owner: str, chunk: Chunk, terms: Terms | None) -> Piece:
        """Keep a chunk with its rows; what is here already under its id, being the same, stays.

        Raises:
            CapacityError: it alone is larger than the device budget, or its owner's quota.
            StoreError: it is a handle, and its rows are lost.
        """
        if isinstance(chunk.rows, StoredRows):
            return self._put_again(owner, chunk, terms)
        rows = tuple(chunk.rows)
        sizes = [layer.bytes for layer in rows]
        self.check_size(owner, sum(sizes) + chunk.encoded.bytes)
        if terms is not None and terms.pinned:
            check_pins(self, owner, chunk.id, sum(sizes) + chunk.encoded.bytes)
        handle = self.handle(chunk, owner, sizes)
        with self.changed:
            self.check_open()
            piece = self.lookup((owner,), chunk.id)
            fresh = piece is None or (piece.sizes != tuple(sizes) and not piece.loading)
            if piece is not None and fresh:
                self.traffic.remove(piece)
            if piece is None or fresh:
                piece = self.piece(owner, chunk.id, terms or self.terms, chunk=handle, rows=rows)
                self.memory.insert(piece)
            elif piece.rows is None:
                piece.rows = rows
                self.memory.move(piece, "device")
            if terms is not None:
                self.memory.change_terms(piece, terms)
            self.use(piece)
            if fresh and self.write == "through":
                self.traffic.save(piece)
            self.traffic.make_room(piece)
        self._still_saved(piece)
        return piece

    def _still_saved(self, piece: Piece) -> None:
        """Save again what the disk evicted, or another process deleted, since it was written."""
        if DISK in piece.saved and self.slower.entry(piece.id, piece.owner) is None:
            with self.changed:
                piece.saved.discard(DISK)
                if piece.listed:
                    self.traffic.save(piece)

    def _put_again(self, owner: str, chunk: Chunk, terms: Terms | None) -> Piece:
        piece = self.find((owner,), chunk.id)
        if piece is None and isinstance(chunk.rows, StoredRows) and chunk.rows.are_read_by(self.rows):
            raise StoreError(f"Chunk {chunk.id[:12]} was deleted or lost, and its rows with it: add its media again.")
        if piece is None:
            return self.put(owner, replace(chunk, rows=tuple(chunk.rows)), terms)
        if terms is not None:
            with self.changed:
                self.memory.change_terms(piece, terms)
        return piece

    def check_open(self) -> None:
        """Raises StoreError where the store is closed, or was opened before this process was forked."""
        if self.process != os.getpid():
            raise StoreError("the store was opened before a fork: open it again in this process")
        if self.closed:
            raise StoreError("the store is closed: open it again, on the same folder to find what it kept")

    def check_size(self, owner: str, size: int) -> None:
        budget, quota = self.memory.budgets["device"], self.quota_of(owner)
        if budget is not None and size > budget:
            raise CapacityError(f"One piece's rows need {size} bytes; the store's budget is {budget}.")
        if quota is not None and size > quota:
            raise CapacityError(f"One piece's rows need {size} bytes; its owner's quota is {quota}.")

    def delete(self, owner: str, id: str) -> bool:
        """Delete a piece everywhere; see `certainty.delete`."""
        return delete(self, owner, id)

    def rows(self, owner: str, id: str) -> KVRows:
        """A chunk's rows, here or under way.

        Raises:
            LoadError: no tier has them.
        """
        piece = self.find((owner,), id)
        with self.changed:
            piece = None if piece is None else self.traffic.relist(piece)
            if piece is None:
                raise LoadError(id, "it was deleted, has expired or was evicted")
            return self.traffic.activate(piece)

    def flush(self, owner: str | None = None) -> None:
        """Make durable what an owner put; see `certainty.flush`."""
        flush(self, owner)

    def tell_uses(self) -> None:
        """Tell the disk which of its files were used."""
        with self.changed:
            used, self._used = list(self._used), set()
        if used:
            self.slower.touch(used)

    def upkeep(self) -> None:
        """What the disk's saver does between pieces."""
        self.tell_uses()
        if time.monotonic() - self._expired >= EXPIRY_SECONDS:
            self._expired = time.monotonic()
            self.expire()

    def in_use(self) -> frozenset[str]:
        """Ids that the disk must not evict now. The disk asks with its own lock held: the store's is never held when
        the disk is called."""
        with self.changed:
            return frozenset(piece.id for piece in self.memory if piece.leases or piece.loading)

    def expire(self) -> int:
        """Delete what has had its time, in memory and on disk; how many pieces went from memory."""
        with self.changed:
            old = [piece for piece in self.memory if piece.expired(self.clock.now())]
            for piece in old:
                self.traffic.end(piece)
        self.slower.expire()
        return len(old)

    def close(self) -> None:
        """End the threads and the tiers; what was not flushed is written first."""
        with self.changed:
            self.closed = True
        for saver in self.savers.values():
            saver.close()
        self.loader.close()
        self.tell_uses()
        self.slower.close()

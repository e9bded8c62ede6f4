"""The cache of pieces: what is in memory and on slower tiers, how a piece gets there, and when it goes."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

from emblema.errors import LoadError, StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.store.arriving import ArrivingRows
from emblema.store.handles import HandleTable, StoredRows
from emblema.store.identity import artifact_id
from emblema.store.pieces import MEMORY_TIERS, CachedPiece, PieceTable
from emblema.store.record import SHARED, Absence, Name, Terms
from emblema.store.saving import PieceSaver
from emblema.store.settings import StoreSettings
from emblema.store.tiers import DISK, TierReader, TierStack
from emblema.store.transfers import RowMover
from emblema.store.workers import WorkerPool

log = logging.getLogger(__name__)

Owners = Sequence[str]
"""Whose pieces a call may see, in the order they are looked for: the tenant's, then the shared library's."""

UNSAVED_BYTES = 2**30
"""How far unsaved pieces may take device memory beyond its budget, where the budget is smaller."""


class PieceCache:
    """Chunks and their artifacts, of all owners in all tiers. Each `TenantStore` calls it for its owners.

    Life of a piece. It is put (rows in device memory), or found on a slower tier (its encoding in memory, its rows
    None). A lease or a read has its rows loaded (ArrivingRows, then a tuple). Eviction moves rows from device to host
    memory and from there out; what no slower tier has is written first. A piece is lost when no tier has it any more;
    it may be made and stored again. Deleted and expired pieces leave a tombstone, which only putting them again lifts:
    whatever is under way then (a save, a load, the forming of a patch) finds it, or its piece unlisted, and has no
    effect.

    Locking. `changed`, the table's, is the one lock, and it is reentrant. It guards the table, the tombstones, the
    handles, the leases that wait, every field of every CachedPiece, and the attributes of the cache and its saver.
    Methods whose name starts with an underscore, and `get`, `use`, `insert_chunk`, `remove`, `relist`, `load`,
    `new_piece` and `make_room`, are called with it held, unless their docstring says otherwise. While it is held
    nothing may wait but on it, and no tier may be called: tiers wait for devices, and the disk calls `in_use` with its
    own lock held. Other locks may be taken while it is held if what they guard calls nothing back: those of
    ArrivingRows, StoreCounters, PrefixRegistry and WorkerPool, and the disk's for its uses.

    Args:
        settings: of the store.
        table: the pieces in memory.
        tiers: disk and remote.
        forget_prefixes: is called with the owner and id of a deleted or expired chunk; returns whether any prefix held
            it. It must not call the store.
    """

    def __init__(
        self,
        settings: StoreSettings,
        table: PieceTable,
        tiers: TierStack,
        forget_prefixes: Callable[[str, str], bool],
    ) -> None:
        self.settings, self.tiers, self.counters = settings, tiers, tiers.counters
        self.changed, self.table = table.changed, table
        self.process, self.closed = os.getpid(), False
        self._forget_prefixes = forget_prefixes
        self.publish: Callable[[str, str], None] | None = None
        self._clock = settings.clock
        self.reader = TierReader(tiers, settings, self.rows)
        self.mover = RowMover(settings, table, self.reader, self.counters, self._finish_move)
        # Leases that wait for room, in order of arrival.
        self.waiting: deque[object] = deque()
        self.handles = HandleTable(self.rows)
        self.saver = PieceSaver(settings, table, tiers, self._finish_save, self.expire)
        self._lookups = WorkerPool("lookup")

    # Finding; questions about many pieces are in PieceLookup.

    def find(self, owners: Owners, id: str) -> CachedPiece | None:
        """Return the first owner's piece, brought from a slower tier without its rows if need be; counts as a use.

        Raises:
            StoreError: the store is closed.
        """

        def read() -> CachedPiece | None:
            return self.reader.read_chunk(id, [owner for owner in owners if not self.deleted((owner,), [id])])

        return self._find([(owner, id) for owner in owners], read)

    def find_artifact(self, owners: Owners, key: ArtifactKey) -> Patch | None:
        """Return the first owner's artifact of a key, in memory or read from a slower tier; counts as a use.

        Raises:
            StoreError: the store is closed.
        """
        names = [(owner, artifact_id(key, owner)) for owner in owners]

        def read() -> CachedPiece | None:
            alive = (name for name in names if not self.deleted(name[:1], (name[1], *key.chunks)))
            return next(filter(None, (self.reader.read_artifact(id, owner, key) for owner, id in alive)), None)

        piece = self._find(names, read)
        return None if piece is None else piece.artifact

    def _find(self, names: Sequence[Name], read: Callable[[], CachedPiece | None]) -> CachedPiece | None:
        """Return the first piece in memory, or what is read from the slower tiers; called without the lock."""
        with self.changed:
            self._check_open()
            for owner, id in names:
                piece = self.get((owner,), id)
                if piece is not None:
                    self.use(piece)
                    return piece

        def fetch() -> CachedPiece | None:
            found = read()
            return None if found is None else self._admit(found)

        if not self.tiers:
            return None
        try:
            return self._lookups.call(fetch, self.settings.load_deadline)
        except TimeoutError:
            self.counters.add(names[0][0], "late_loads")
            return None

    def holds(self, owners: Owners, id: str) -> bool:
        """Return whether a chunk is in any tier; not a use."""
        with self.changed:
            piece = self.get(owners, id)
            if piece is not None:
                return piece.chunk is not None
        return any(self.tiers.holds(id, owner) for owner in owners if not self.deleted((owner,), [id]))

    def knows(self, owner: str, id: str) -> bool:
        """Return whether an owner's piece is in memory or in the disk's index; not a use."""
        with self.changed:
            if self.table.get((owner, id)) is not None:
                return True
        return self.is_on_disk(owner, id)

    def is_on_disk(self, owner: str, id: str) -> bool:
        """Return whether the disk's index has an owner's piece that was not deleted; without the lock."""
        return not self.deleted((owner,), [id]) and self.tiers.entry(id, owner) is not None

    def deleted(self, owners: Owners, ids: Iterable[str]) -> frozenset[str]:
        """Return those of some ids that were deleted under any of the owners."""
        with self.changed:
            return frozenset(id for id in ids if any((owner, id) in self.table.tombstones for owner in owners))

    def absence(self, owner: str, id: str, look: bool) -> Absence:
        """Return what is known of an owner's piece that was not found; as `TenantStore.absence`."""
        with self.changed:
            noted = self.table.departure((owner, id))
        if self.tiers.disk is None or noted in ("deleted", "expired"):
            return Absence(noted)
        found = self.tiers.disk.absence(id, owner, look)
        return replace(found, departure=found.departure or noted)

    def rows(self, owner: str, id: str) -> KVRows:
        """Return a chunk's rows, here or being loaded.

        Raises:
            LoadError: no tier has them.
        """
        piece = self.find((owner,), id)
        with self.changed:
            piece = None if piece is None else self.relist(piece)
            if piece is None:
                raise LoadError(id, "it was deleted, has expired or was evicted")
            return self.load(piece)

    def get(self, owners: Owners, id: str) -> CachedPiece | None:
        """Return the piece in memory; does not count as a use. Expired pieces and failed loads go."""
        for owner in owners:
            piece = self.table.get((owner, id))
            if piece is None or not self.tiers.freshness.covers(piece.loaded_at):
                continue
            if piece.is_expired(self._clock()):
                self._expire(piece)
            elif isinstance(piece.rows, ArrivingRows) and piece.rows.failed is not None:
                self.remove(piece)
            else:
                return piece
        return None

    def use(self, piece: CachedPiece) -> None:
        piece.evicting = False
        self.table.touch(piece, self._clock())
        if DISK in piece.saved:
            self.saver.note_use(piece.id)

    def _admit(self, piece: CachedPiece) -> CachedPiece | None:
        """List a piece that a slower tier has; None if it was deleted meanwhile or is expired. Takes the lock."""
        with self.changed:
            known = self.table.get(piece.name)
            if known is not None:
                return known
            dead = piece.name in self.table.tombstones or any(
                (owner, chunk) in self.table.tombstones for owner in (piece.owner, SHARED) for chunk in piece.sources
            )
            if dead or piece.is_expired(self._clock()):
                return None
            if piece.chunk is not None:
                piece.chunk = self.handles.make(piece.owner, piece.chunk, piece.sizes)
            else:
                self.counters.add(piece.owner, "loads")
            self.table.insert(piece)
            self.use(piece)
            self.make_room(piece)
            return piece

    # Putting.

    def put(self, owner: str, chunk: Chunk, terms: Terms | None) -> CachedPiece:
        """Keep a chunk with its rows. A piece that is here under its id is the same and stays, with new terms if given.

        Raises:
            CapacityError: it alone is larger than the device budget or its owner's quota.
            StoreError: it is a handle whose rows are lost, a number of it is not finite, or the store is closed.
        """
        if isinstance(chunk.rows, StoredRows):
            found = self.find((owner,), chunk.id)
            if found is not None and terms is not None:
                with self.changed:
                    self.table.change_terms(found, terms)
            if found is not None:
                return found
            if chunk.rows.is_read_by(self.rows):
                raise StoreError(
                    f"Chunk {chunk.id[:12]} was deleted or lost, and its rows with it: add its media again."
                )
        chunk = replace(chunk, rows=tuple(chunk.rows))
        if not chunk.finite:
            raise StoreError(
                f"Chunk {chunk.id[:12]} holds numbers that are NaN or infinite: use a dtype or a model that makes none."
            )
        self.table.check_fits(owner, chunk.bytes + chunk.encoded.bytes)
        with self.changed:
            piece = self.insert_chunk(owner, chunk, terms)
        self.saver.save_again(piece)
        return piece

    def put_artifact(self, owners: Owners, key: ArtifactKey, artifact: Patch) -> bool:
        """Keep an artifact for the first owner.

        False where one of its chunks is not here, it is too large, or a number of it is not finite.
        """
        owner = owners[0]
        if not self.table.fits(owner, artifact.bytes) or not artifact.finite:
            return False
        if not all(self.holds(owners, chunk) for chunk in key.chunks):
            return False
        piece = self.new_piece(owner, artifact_id(key, owner), self.settings.terms)
        piece.key, piece.artifact = key, artifact
        with self.changed:
            # A deletion since they were looked for wins.
            if any(self.deleted(owners, [chunk]) and not self.get(owners, chunk) for chunk in piece.sources):
                return False
            old = self.table.get(piece.name)
            if old is not None:
                self.remove(old)
            self.table.insert(piece)
            if self.settings.write == "through":
                self.saver.save(piece)
            self.make_room(piece)
            return True

    def insert_chunk(self, owner: str, chunk: Chunk, terms: Terms | None) -> CachedPiece:
        self._check_open()
        sizes = tuple(layer.bytes for layer in chunk.rows)
        handle = self.handles.make(owner, chunk, sizes)
        piece = self.get((owner,), chunk.id)
        if piece is not None and piece.sizes != sizes and not piece.loading:
            self.remove(piece)
            piece = None
        new = piece is None
        if piece is None:
            piece = self.new_piece(owner, chunk.id, terms or self.settings.terms)
            piece.chunk, piece.rows = handle, chunk.rows
            self.table.insert(piece)
        elif piece.rows is None:
            piece.rows = chunk.rows
            self.table.move(piece, "device")
        if terms is not None:
            self.table.change_terms(piece, terms)
        self.use(piece)
        if new and self.settings.write == "through":
            self.saver.save(piece)
        self.make_room(piece)
        return piece

    def new_piece(self, owner: str, id: str, terms: Terms) -> CachedPiece:
        """Return a piece that is made now, not listed yet."""
        now = self._clock()
        return CachedPiece(owner, id, terms, now, now, now)

    def _check_open(self) -> None:
        if self.process != os.getpid():
            raise StoreError("the store was opened before a fork: open it again in this process")
        if self.closed:
            raise StoreError("the store is closed: open it again, on the same folder to find what it kept")

    # Leases.

    def release(self, pieces: Iterable[CachedPiece]) -> None:
        """End one lease of each piece."""
        with self.changed:
            for piece in pieces:
                self.table.lease(piece, -1)
                self._drop_rows(piece)
            self.make_room()
            self.changed.notify_all()

    # Eviction: which pieces go is decided by `make_room` and `PieceTable.victims`, and nowhere else.

    def make_room(self, spare: CachedPiece | None = None, owner: str | None = None) -> None:
        """Bring an owner within its quota, then each memory tier within its budget, as far as leases and saves allow.

        Rows leave device memory for host memory if they fit there at all, else for the slower tiers.

        Args:
            spare: a piece that stays; its owner's quota is looked at.
            owner: the owner whose quota is looked at, without a spare piece.
        """
        table, owner = self.table, owner if spare is None else spare.owner
        if owner is not None:
            for tier in reversed(MEMORY_TIERS):
                for piece in table.victims(tier, table.quota_excess(owner), spare, owner):
                    self._evict(piece)
        host = table.budgets["host"]
        for piece in table.victims("device", table.excess("device"), spare):
            if piece.chunk is not None and piece.rows is not None and (host is None or piece.full_bytes <= host):
                self.mover.demote(piece, piece.rows)
            else:
                self._evict(piece)
        for piece in table.victims("host", table.excess("host"), spare):
            self._evict(piece)
        self._bound_unsaved(spare)

    def _bound_unsaved(self, spare: CachedPiece | None) -> None:
        """Drop the oldest unsaved pieces where saving is too slow, as memory is bounded; `flush` reports them."""
        table, budget = self.table, self.table.budgets["device"]
        most = None if budget is None else max(budget, UNSAVED_BYTES)
        if most is None or table.excess("device") <= most:
            return
        for piece in list(table):
            if table.excess("device") <= most:
                return
            if piece.pending and not (piece is spare or piece.busy or self.saver.writes([piece.name])):
                self.saver.losses[piece.owner] += 1
                self.counters.add(piece.owner, "save_failures")
                self._drop(piece)

    def _evict(self, piece: CachedPiece) -> None:
        """Remove a piece from memory, or have it written first where no slower tier has it."""
        if self.tiers and not piece.saved and not piece.failed:
            if not piece.pending:
                self.saver.save(piece)
            piece.evicting = True
            return
        if self.tiers and not piece.saved:
            self.saver.losses[piece.owner] += 1
        self._drop(piece)

    def _drop(self, piece: CachedPiece) -> None:
        self.counters.add(piece.owner, "evictions")
        self.remove(piece)
        self.table.note_departure(piece, "evicted")

    # Loading.

    def relist(self, piece: CachedPiece) -> CachedPiece | None:
        """Return the piece as it is listed now; a piece that was only evicted is listed again."""
        current = self.get((piece.owner,), piece.id)
        if current is not None or piece.indexed:
            return current
        if piece.name in self.table.tombstones or piece.loading or not piece.saved:
            return None
        self.table.insert(piece)
        return piece

    def load(self, piece: CachedPiece) -> KVRows:
        """Return a piece's rows in device memory, or on their way there; counts as a use."""
        rows = self.mover.load(piece)
        self.use(piece)
        self.make_room(piece)
        return rows

    def _finish_move(self, piece: CachedPiece, lost: bool, from_tier: bool) -> None:
        """Bring everything up to date after a load or a copy; called by the mover."""
        if lost:
            self.remove(piece)
        piece.loading = False
        if from_tier and piece.indexed and DISK not in piece.saved:
            self.saver.save(piece)
        self._drop_rows(piece)
        self.table.recount(piece)
        self.make_room()
        self.changed.notify_all()

    # Saving, by PieceSaver.

    def _finish_save(self, piece: CachedPiece) -> None:
        """Evict a piece that is leaving once its writes have ended, well or not; called by the saver."""
        if not piece.pending:
            piece.evicting = False
        self.make_room(owner=piece.owner)

    # Deletion and expiry.

    def delete(self, owner: str, id: str, *, here: bool = False) -> bool:
        """Delete a piece everywhere, with every artifact made from it and every prefix that holds it.

        With `here` another process did so; remote it goes again if it was in memory, and so may have been saved since.
        A save of any of them that has begun is waited for, and its file is deleted with the rest. A piece that only the
        shared library has stays.

        Returns:
            Whether anything was here.

        Raises:
            StoreError: a tier, or the feed of deletions, could not be reached; this process uses the piece no more.
        """
        forgotten = self._forget_prefixes(owner, id)
        if owner != SHARED and not self.knows(owner, id) and self.knows(SHARED, id):
            return forgotten
        pause = ExitStack()
        with self.changed:
            own = self.table.get((owner, id))
            artifacts = [piece for piece in self.table.artifacts_of(id) if owner in (piece.owner, SHARED)]
            doomed = [*artifacts, *([] if own is None else [own])]
            for piece in doomed:
                self.remove(piece, dead=True)
            # Artifacts first, so that no crash leaves one without its chunk.
            names = [*(piece.name for piece in artifacts), (owner, id)]
            known = (owner, id) in self.table.tombstones or bool(doomed)
            self.table.tombstones.add((owner, id))
            pause.enter_context(self.saver.paused(names))
        with pause:
            stored = self.tiers.delete(names, here=here and not doomed)
            if self.publish is not None and not here:
                self.publish(owner, id)
            with self.changed:
                if not (stored or known or (owner, id) in self.handles):
                    # An id that never existed gets no tombstone, so that made-up ids cannot fill the list.
                    self.table.tombstones.discard((owner, id))
        return stored or bool(doomed) or forgotten

    def expire(self) -> int:
        """Delete expired pieces in memory and on disk; returns how many went from memory."""
        with self.changed:
            now = self._clock()
            expired = [piece for piece in self.table if piece.is_expired(now)]
            for piece in expired:
                self._expire(piece)
        self.tiers.maintain("expire", lambda disk: disk.expire())
        return len(expired)

    def _expire(self, piece: CachedPiece) -> None:
        """Remove an expired piece with every artifact made from it."""
        for artifact in self.table.artifacts_of(piece.id) if piece.chunk is not None else ():
            if piece.owner in (artifact.owner, SHARED):
                self.remove(artifact, dead=True)
        self.counters.add(piece.owner, "expired")
        self.remove(piece, dead=True)
        self.table.note_departure(piece, "expired")
        self._forget_prefixes(piece.owner, piece.id)

    def remove(self, piece: CachedPiece, dead: bool = False) -> None:
        """Unlist a piece, for good where it was deleted or has expired. Rows that nobody holds are freed at once."""
        if piece.indexed and piece.loading and isinstance(piece.rows, ArrivingRows) and piece.rows.failed is not None:
            self.counters.add(piece.owner, "late_loads")
        if dead and piece.indexed:
            self.table.tombstones.add(piece.name)
        self.table.remove(piece)
        self._drop_rows(piece)
        self.changed.notify_all()

    def _drop_rows(self, piece: CachedPiece) -> None:
        """Free the rows of a piece that is not in the table and that nobody holds."""
        if not piece.indexed and not piece.busy:
            piece.rows = None

    # Upkeep and closing.

    def in_use(self) -> frozenset[str]:
        """Return ids that the disk must not evict now. The disk calls this with its own lock held."""
        with self.changed:
            return frozenset(piece.id for piece in self.table if piece.busy)

    def close(self) -> None:
        """End the threads and the tiers; saves that are queued are written first."""
        with self.changed:
            self.closed = True
        self.saver.close()
        self._lookups.close()
        self.mover.close()
        self.tiers.close()

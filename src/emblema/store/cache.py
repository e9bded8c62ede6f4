"""The cache of pieces: what is in memory and on slower tiers, how a piece gets there, and when it goes."""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from emblema.errors import LoadError, StoreError
from emblema.kv.artifacts import Artifact, artifact_finite
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store.arriving import ArrivingRows
from emblema.store.clock import SteadyClock
from emblema.store.handles import HandleTable, StoredRows
from emblema.store.identity import artifact_id
from emblema.store.keys import ArtifactKey
from emblema.store.lookup import Owners, PieceLookup
from emblema.store.pieces import MEMORY_TIERS, CachedPiece, LeaseQueue
from emblema.store.record import SHARED, Name, Terms
from emblema.store.saving import SaveQueue
from emblema.store.state import CacheState
from emblema.store.tiers import DISK, StoredPiece, TierReader
from emblema.store.transfers import RowMover

EXPIRY_SECONDS = 60.0
"""How often expired pieces are deleted."""
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

    Locking. `changed` is the one lock, and it is reentrant. It guards the table, the tombstones, the handles, the
    queue of leases, every field of every CachedPiece, and the cache's own attributes. Methods whose name starts with
    an underscore are called with it held, unless their docstring says otherwise. While it is held nothing may wait
    but on it, and no tier may be called: tiers wait for devices, and the disk calls `in_use` with its own lock held.
    Other locks may be taken while it is held if what they guard calls nothing back: those of ArrivingRows,
    StoreCounters, SteadyClock, PrefixRegistry and WorkerPool. PieceLookup, RowMover and SaveQueue share the lock and
    never see the cache; they get callbacks when they are made.

    Args:
        state: settings, table, tiers, counters and lock.
        forget_prefixes: is called with the owner and id of a deleted or expired chunk; returns whether any prefix held
            it. It must not call the store.
    """

    def __init__(self, state: CacheState, forget_prefixes: Callable[[str, str], bool]) -> None:
        self.settings, self.tiers, self.counters = state.settings, state.tiers, state.counters
        self.changed, self.table = state.changed, state.table
        self.process, self.closed = os.getpid(), False
        self._forget_prefixes, self._trust = forget_prefixes, state.trust
        self.publish: Callable[[str, str], None] | None = None
        self._clock = SteadyClock(self.settings.clock)
        reader = TierReader(self.tiers, self.settings, state.device)
        self.lookup = PieceLookup(state, reader, get=self._get, use=self._use, admit=self._admit)
        self.mover = RowMover(state, reader, remove=self._remove, finished=self._finish_move)
        self.leases = LeaseQueue(self.changed, self.table)
        self.handles = HandleTable(self.rows)
        # Names that are being deleted, with the number of deletions.
        self._deleting: Counter[Name] = Counter()
        self._saves = {
            label: SaveQueue(label, state, self._deleting, finished=self._finish_save, maintain=self._maintain)
            for label in self.tiers.tiers
        }
        # Pieces of each owner that left memory before any slower tier took them, since its last flush.
        self._losses: Counter[str] = Counter()
        # Files on disk that were used since the disk was told.
        self._used: set[str] = set()
        self._expired_at = time.monotonic()

    # Finding; most look-ups are in PieceLookup.

    def find(self, owners: Owners, id: str) -> CachedPiece | None:
        """Return the first owner's piece in any tier, its rows where they are; counts as a use.

        Raises:
            StoreError: the store is closed.
        """
        with self.changed:
            self._check_open()
        return self.lookup.find(owners, id)

    def deleted(self, owners: Owners, ids: Iterable[str]) -> frozenset[str]:
        """Return those of some ids that were deleted under any of the owners."""
        with self.changed:
            return frozenset(id for id in ids if any((owner, id) in self.table.tombstones for owner in owners))

    def handle(self, chunk: Chunk, owner: str, sizes: Sequence[int]) -> Chunk:
        """Return the handle that is given out for a chunk, whether it is stored or not."""
        with self.changed:
            return self.handles.make(owner, chunk, sizes)

    def rows(self, owner: str, id: str) -> KVRows:
        """Return a chunk's rows, here or being loaded.

        Raises:
            LoadError: no tier has them.
        """
        piece = self.find((owner,), id)
        with self.changed:
            piece = None if piece is None else self._relist(piece)
            if piece is None:
                raise LoadError(id, "it was deleted, has expired or was evicted")
            return self._load(piece)

    def prefetch(self, owners: Owners, id: str) -> None:
        """Load a chunk's rows in the background, if they fit beside what may not be evicted now."""
        piece = self.find(owners, id)
        if piece is None or piece.chunk is None:
            return
        with self.changed:
            current, budget = self._relist(piece), self.table.budgets["device"]
            if current is not None and (budget is None or self.table.busy_bytes + current.full_bytes <= budget):
                self._load(current)

    @property
    def deletions(self) -> int:
        """How many deletions and expiries were noted so far."""
        with self.changed:
            return self.table.tombstones.added

    def _get(self, owners: Owners, id: str) -> CachedPiece | None:
        """Return the piece in memory; does not count as a use. Expired pieces and failed loads go."""
        for owner in owners:
            piece = self.table.get((owner, id))
            if piece is None or not self._trust.covers(piece.arrived):
                continue
            if piece.is_expired(self._clock.now()):
                self._expire(piece)
            elif isinstance(piece.rows, ArrivingRows) and piece.rows.failed is not None:
                self._remove(piece)
            else:
                return piece
        return None

    def _use(self, piece: CachedPiece) -> None:
        piece.leaving = False
        self.table.touch(piece, self._clock.now())
        if DISK in piece.saved:
            self._used.add(piece.id)
            self._saves[DISK].start()

    def _admit(self, stored: StoredPiece, key: ArtifactKey | None) -> CachedPiece | None:
        """List a piece that a slower tier has; None if it was deleted meanwhile or is expired. Takes the lock."""
        header = stored.header
        began = self._clock.steady(header.created)
        with self.changed:
            known = self.table.get((header.owner, header.id))
            if known is not None:
                return known
            piece = CachedPiece(header.owner, header.id, stored.terms, header.created, began, self._clock.now())
            piece.key, piece.artifact, piece.saved = key, stored.artifact, {stored.label}
            dead = piece.name in self.table.tombstones or any(
                (owner, chunk) in self.table.tombstones for owner in (piece.owner, SHARED) for chunk in piece.sources
            )
            if dead or piece.is_expired(self._clock.now()):
                return None
            if stored.chunk is not None:
                piece.chunk = self.handles.make(piece.owner, stored.chunk, stored.sizes)
            self.table.insert(piece)
            if piece.artifact is not None:
                self.counters.add(piece.owner, "loads")
            self._use(piece)
            self._make_room(piece)
            return piece

    # Putting.

    def put(self, owner: str, chunk: Chunk, terms: Terms | None) -> CachedPiece:
        """Keep a chunk with its rows. A piece that is here under its id is the same and stays, with new terms if given.

        Raises:
            CapacityError: it alone is larger than the device budget or its owner's quota, or may not be pinned.
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
        size = chunk.bytes + chunk.encoded.bytes
        self.table.check_fits(owner, size)
        if terms is not None and terms.pinned:
            self._check_pin(owner, chunk.id, size)
        with self.changed:
            piece = self._insert_chunk(owner, chunk, terms)
        self._save_again(piece)
        return piece

    def put_unless_deleted(self, owners: Owners, chunk: Chunk) -> bool:
        """Keep a chunk for the first owner, unless it was deleted under any or a number of it is not finite.

        Returns:
            Whether it is here.

        Raises:
            CapacityError: as `put`.
        """
        chunk = replace(chunk, rows=tuple(chunk.rows))
        if not chunk.finite:
            return False
        with self.changed:
            if self.deleted(owners, [chunk.id]):
                return False
            if self._get(owners, chunk.id) is None:
                self.table.check_fits(owners[0], chunk.bytes + chunk.encoded.bytes)
                self._insert_chunk(owners[0], chunk, None)
            return True

    def put_artifact(self, owners: Owners, key: ArtifactKey, artifact: Artifact) -> bool:
        """Keep an artifact for the first owner.

        False where one of its chunks is not here, it is too large, or a number of it is not finite.
        """
        owner = owners[0]
        if not self.table.fits(owner, artifact.bytes) or not artifact_finite(artifact):
            return False
        if not all(self.lookup.holds(owners, chunk) for chunk in key.chunks):
            return False
        piece = self._new_piece(owner, artifact_id(key, owner), self.settings.terms)
        piece.key, piece.artifact = key, artifact
        with self.changed:
            # A deletion since they were looked for wins.
            if any(self.deleted(owners, [chunk]) and not self._get(owners, chunk) for chunk in piece.sources):
                return False
            old = self.table.get(piece.name)
            if old is not None:
                self._remove(old)
            self.table.insert(piece)
            if self.settings.write == "through":
                self._save(piece)
            self._make_room(piece)
            return True

    def set_pin(self, owner: str, id: str, pinned: bool) -> bool:
        """Pin or unpin an owner's piece wherever it is; returns whether it is anywhere.

        Raises:
            CapacityError: as `PieceTable.check_pin`.
        """
        if pinned:
            self._check_pin(owner, id, 0)
        with self.changed:
            piece = self._get((owner,), id)
            if piece is not None:
                self.table.change_terms(piece, replace(piece.terms, pinned=pinned))
                self._make_room()
        stored = self.lookup.is_on_disk(owner, id)
        if stored:
            self.tiers.maintain("pin", lambda disk: disk.set_pin(id, pinned))
        elif piece is not None:
            self._save_again(piece)
        return stored or piece is not None

    def _insert_chunk(self, owner: str, chunk: Chunk, terms: Terms | None) -> CachedPiece:
        self._check_open()
        sizes = tuple(layer.bytes for layer in chunk.rows)
        handle = self.handles.make(owner, chunk, sizes)
        piece = self._get((owner,), chunk.id)
        if piece is not None and piece.sizes != sizes and not piece.loading:
            self._remove(piece)
            piece = None
        new = piece is None
        if piece is None:
            piece = self._new_piece(owner, chunk.id, terms or self.settings.terms)
            piece.chunk, piece.rows = handle, chunk.rows
            self.table.insert(piece)
        elif piece.rows is None:
            piece.rows = chunk.rows
            self.table.move(piece, "device")
        if terms is not None:
            self.table.change_terms(piece, terms)
        self._use(piece)
        if new and self.settings.write == "through":
            self._save(piece)
        self._make_room(piece)
        return piece

    def _new_piece(self, owner: str, id: str, terms: Terms) -> CachedPiece:
        now = self._clock.now()
        return CachedPiece(owner, id, terms, self._clock.system(), now, now)

    def _check_pin(self, owner: str, id: str, size: int) -> None:
        """Raise CapacityError where a piece may not be pinned; takes the lock."""
        entries = self.tiers.entries(owner) if self.table.quota_of(owner) is not None else []
        on_disk = {entry.id: entry.bytes for entry in entries if entry.terms.pinned or entry.id == id}
        with self.changed:
            self.table.check_pin((owner, id), size, on_disk if self.tiers else None)

    def _check_open(self) -> None:
        if self.process != os.getpid():
            raise StoreError("the store was opened before a fork: open it again in this process")
        if self.closed:
            raise StoreError("the store is closed: open it again, on the same folder to find what it kept")

    # Leases.

    def lease(
        self, owners: Owners, ids: Iterable[str], timeout: float
    ) -> tuple[dict[str, CachedPiece], dict[str, KVRows]]:
        """Wait until there is room for all chunks together, then hold them and have their rows loaded.

        Args:
            ids: of chunks.
            timeout: seconds to wait.

        Returns:
            The pieces held and their rows, by id; those that no tier has are not among them.

        Raises:
            CapacityError: they are larger than the budget together, or no room came free in time.
        """
        found = {id: self.find(owners, id) for id in ids}
        with self.changed:
            known = {id: piece for id, piece in found.items() if piece is not None}
            pieces = self.leases.wait(known, self._relist, timeout)
            for piece in pieces.values():
                self.table.lease(piece, 1)
            try:
                return pieces, {id: self._load(piece) for id, piece in pieces.items()}
            except StoreError:
                self.release(pieces.values())
                raise

    def lease_again(self, owners: Owners, chunk: Chunk, rows: KVRows, held: Collection[CachedPiece]) -> CachedPiece:
        """Hold a chunk whose rows were made again, with pieces that are held already; see `Lease.fill`."""
        owner = owners[0]
        size = chunk.bytes + chunk.encoded.bytes
        self.leases.check_fits(size + sum(piece.full_bytes for piece in held), len(held) + 1)
        with self.changed:
            deleted = bool(self.deleted(owners, [chunk.id]))
            if isinstance(chunk.rows, StoredRows):
                foreign = chunk.rows.owner != owner
            else:
                holders = [holder for holder in owners if (holder, chunk.id) in self.handles]
                foreign = bool(holders) and owner not in holders
        if deleted or foreign:
            piece = self._new_piece(owner, chunk.id, self.settings.terms)
            sizes = [layer.bytes for layer in rows]
            piece.chunk = replace(chunk, rows=StoredRows(owner, chunk.id, sizes, self.rows))
            piece.rows = rows
        else:
            piece = self.put(owner, replace(chunk, rows=rows), None)
        with self.changed:
            self.table.lease(piece, 1)
            self._make_room(piece)
        return piece

    def release(self, pieces: Iterable[CachedPiece]) -> None:
        """End one lease of each piece."""
        with self.changed:
            for piece in pieces:
                self.table.lease(piece, -1)
                self._drop_rows(piece)
            self._make_room()
            self.changed.notify_all()

    def reject(self, piece: CachedPiece, error: LoadError) -> None:
        """End a lease of a piece whose rows failed, and forget it; records that gave wrong rows are distrusted."""
        with self.changed:
            labels = set() if error.late else set(piece.saved)
            piece.saved -= labels
            self._remove(piece)
            self.release([piece])
        for label in labels:
            # Its checksum held, but the computation that used it found wrong contents.
            self.tiers.distrust(label, piece.id, piece.owner, error)

    # Eviction: which pieces go is decided by `_make_room` and `PieceTable.victims`, and nowhere else.

    def _make_room(self, spare: CachedPiece | None = None, owner: str | None = None) -> None:
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
            if piece.pending and not (piece is spare or piece.busy or self._is_written([piece.name])):
                self._losses[piece.owner] += 1
                self.counters.add(piece.owner, "save_failures")
                self.counters.add(piece.owner, "evictions")
                self._remove(piece)

    def _evict(self, piece: CachedPiece) -> None:
        """Remove a piece from memory, or have it written first where no slower tier has it."""
        if self._saves and not piece.saved and not piece.failed:
            if not piece.pending:
                self._save(piece)
            piece.leaving = True
            return
        if self._saves and not piece.saved:
            self._losses[piece.owner] += 1
        self.counters.add(piece.owner, "evictions")
        self._remove(piece)

    # Loading.

    def _relist(self, piece: CachedPiece) -> CachedPiece | None:
        """Return the piece as it is listed now; a piece that was only evicted is listed again."""
        current = self._get((piece.owner,), piece.id)
        if current is not None or piece.listed:
            return current
        if piece.name in self.table.tombstones or piece.loading or not piece.saved:
            return None
        self.table.insert(piece)
        return piece

    def _load(self, piece: CachedPiece) -> KVRows:
        """Return a piece's rows in device memory, or on their way there; counts as a use."""
        rows = self.mover.load(piece)
        self._use(piece)
        self._make_room(piece)
        return rows

    def _finish_move(self, piece: CachedPiece, from_tier: bool) -> None:
        """Bring everything up to date after a load or a copy; called by the mover."""
        if from_tier and piece.listed and DISK not in piece.saved:
            self._save(piece)
        self._drop_rows(piece)
        self.table.recount(piece)
        self._make_room()
        self.changed.notify_all()

    # Saving.

    def flush(self, owner: str | None = None) -> None:
        """Return once everything that an owner (None: anybody) put so far is durable.

        Raises:
            StoreError: a piece could not be written to any tier.
        """
        if not self._saves:
            return
        with self.changed:
            own = [piece for piece in self.table if owner in (None, piece.owner)]
            for piece in own:
                if not piece.saved:
                    self._save(piece)
            self.changed.wait_for(lambda: not any(piece.pending for piece in own))
            lost = self._losses.total() if owner is None else self._losses[owner]
            failed = lost + sum(bool(piece.failed) and not piece.saved for piece in own if piece.listed)
            self._losses = Counter() if owner is None else self._losses - Counter({owner: lost})
        self._tell_uses()
        if failed:
            raise StoreError(
                f"{failed} pieces are on no slower tier, as none took them: the log says why. Make room or mend the "
                "folder, and flush again; what had to leave memory meanwhile is lost."
            )

    def _save(self, piece: CachedPiece) -> None:
        """Have a piece written to every slower tier that lacks it."""
        for queue in self._saves.values():
            queue.put(piece)

    def _save_again(self, piece: CachedPiece) -> None:
        """Save a piece that the disk evicted, or another process deleted, since it was written; takes the lock."""
        if DISK in piece.saved and self.tiers.entry(piece.id, piece.owner) is None:
            with self.changed:
                piece.saved.discard(DISK)
                if piece.listed:
                    self._save(piece)

    def _finish_save(self, piece: CachedPiece) -> None:
        """Evict a piece that is leaving once its writes have ended, well or not; called by its save queue."""
        if not piece.pending:
            piece.leaving = False
        self._make_room(owner=piece.owner)

    def _is_written(self, names: Collection[Name]) -> bool:
        """Return whether a tier writes any of some pieces now."""
        return any(queue.writing in names for queue in self._saves.values())

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
        if owner != SHARED and not self.lookup.knows(owner, id) and self.lookup.knows(SHARED, id):
            return forgotten
        with self.changed:
            own = self.table.get((owner, id))
            artifacts = [piece for piece in self.table.artifacts_of(id) if owner in (piece.owner, SHARED)]
            doomed = [*artifacts, *([] if own is None else [own])]
            for piece in doomed:
                self._remove(piece, dead=True)
            # Artifacts first, so that no crash leaves one without its chunk.
            names = [*(piece.name for piece in artifacts), (owner, id)]
            known = (owner, id) in self.table.tombstones or bool(doomed)
            self.table.tombstones.add((owner, id))
            self._deleting.update(names)
            self.changed.wait_for(lambda: not self._is_written(names))
        stored = True
        try:
            stored = self.tiers.delete(names, here=here and not doomed)
            if self.publish is not None and not here:
                self.publish(owner, id)
        finally:
            with self.changed:
                if not (stored or known or (owner, id) in self.handles):
                    # An id that never existed gets no tombstone, so that made-up ids cannot fill the list.
                    self.table.tombstones.discard((owner, id))
                self._deleting -= Counter(names)
                self.changed.notify_all()
        return stored or bool(doomed) or forgotten

    def delete_artifacts(self, owner: str, chunk: str) -> int:
        """Delete an owner's artifacts of a chunk, in every tier; returns how many there were."""
        with self.changed:
            ids = {piece.id for piece in self.table.artifacts_of(chunk) if piece.owner == owner}
        ids |= {id for id in self.tiers.artifact_ids(chunk) if self.tiers.entry(id, owner) is not None}
        return sum(self.delete(owner, id) for id in sorted(ids))

    def expire(self) -> int:
        """Delete expired pieces in memory and on disk; returns how many went from memory."""
        with self.changed:
            now = self._clock.now()
            expired = [piece for piece in self.table if piece.is_expired(now)]
            for piece in expired:
                self._expire(piece)
        self.tiers.maintain("expire", lambda disk: disk.expire())
        return len(expired)

    def _expire(self, piece: CachedPiece) -> None:
        """Remove an expired piece with every artifact made from it."""
        for artifact in self.table.artifacts_of(piece.id) if piece.chunk is not None else ():
            if piece.owner in (artifact.owner, SHARED):
                self._remove(artifact, dead=True)
        self.counters.add(piece.owner, "expired")
        self._remove(piece, dead=True)
        self._forget_prefixes(piece.owner, piece.id)

    def _remove(self, piece: CachedPiece, dead: bool = False) -> None:
        """Unlist a piece, for good where it was deleted or has expired. Rows that nobody holds are freed at once."""
        if piece.listed and piece.loading and isinstance(piece.rows, ArrivingRows) and piece.rows.failed is not None:
            self.counters.add(piece.owner, "late_loads")
        if dead and piece.listed:
            self.table.tombstones.add(piece.name)
        self.table.remove(piece)
        self._drop_rows(piece)
        self.changed.notify_all()

    def _drop_rows(self, piece: CachedPiece) -> None:
        """Free the rows of a piece that is not in the table and that nobody holds."""
        if not piece.listed and not piece.busy:
            piece.rows = None

    # Upkeep and closing.

    def in_use(self) -> frozenset[str]:
        """Return ids that the disk must not evict now. The disk calls this with its own lock held."""
        with self.changed:
            return frozenset(piece.id for piece in self.table if piece.busy)

    def contents(self, owner: str | None) -> dict[str, int]:
        """Return the fields of `StoreStatistics` about pieces in memory, of one owner or, for None, of all."""
        with self.changed:
            pieces = [piece for piece in self.table if owner in (None, piece.owner)]
            tiers = self.table.bytes_of(owner)
            leased = self.table.leased_bytes if owner is None else self.table.leased_bytes_of[owner]
            return {
                "chunks": sum(piece.chunk is not None for piece in pieces),
                "patches": sum(piece.artifact is not None for piece in pieces),
                "bytes": sum(tiers.values()),
                "device_bytes": tiers["device"],
                "host_bytes": tiers["host"],
                "leased_bytes": leased,
                "unsaved_bytes": sum(piece.held_bytes for piece in pieces if not piece.saved) if self.tiers else 0,
            }

    def _maintain(self) -> None:
        """Tell the disk what was used, and delete what has expired; called without the lock."""
        self._tell_uses()
        if time.monotonic() - self._expired_at >= EXPIRY_SECONDS:
            self._expired_at = time.monotonic()
            self.expire()

    def _tell_uses(self) -> None:
        """Tell the disk which of its files were used; called without the lock."""
        with self.changed:
            used, self._used = list(self._used), set()
        if used:
            self.tiers.maintain("touch", lambda disk: disk.touch(used))

    def close(self) -> None:
        """End the threads and the tiers; saves that are queued are written first."""
        with self.changed:
            self.closed = True
        for queue in self._saves.values():
            queue.close()
        self.lookup.close()
        self.mover.close()
        self._tell_uses()
        self.tiers.close()

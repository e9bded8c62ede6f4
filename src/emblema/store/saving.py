"""Writing pieces to the slower tiers in the background."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Container

from emblema.errors import EmblemaError, StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store import codec
from emblema.store.pieces import CachedPiece, PieceTable
from emblema.store.record import Name, Record, Terms
from emblema.store.settings import StoreSettings
from emblema.store.tiers import DISK, TierStack

log = logging.getLogger(__name__)

EXPIRY_SECONDS = 60.0
"""How often expired pieces are deleted."""
MAINTENANCE_SECONDS = 1.0
"""How often `maintain` is called when nothing is written."""


class SaveQueue:
    """Writes pieces to one tier on a thread of its own, oldest request first, so that a slow tier delays no other.

    It keeps the `pending`, `saved` and `failed` of pieces. A piece that is deleted while it waits is skipped. One that
    is deleted while it is written is deleted again by the caller of the deletion, who waits for `writing` first.

    Args:
        label: of the tier.
        settings: of the store.
        table: the pieces in memory, whose lock guards the queue, `writing` and `deleting`.
        tiers: all of them.
        deleting: names whose deletion is under way; none of them is written meanwhile.
        finished: is called with the lock held after a piece was written, or was not.
        maintain: is called without the lock by the disk's queue, after each piece and every `MAINTENANCE_SECONDS`.
    """

    def __init__(
        self,
        label: str,
        settings: StoreSettings,
        table: PieceTable,
        tiers: TierStack,
        deleting: Container[Name],
        finished: Callable[[CachedPiece], None],
        maintain: Callable[[], None],
    ) -> None:
        self.label = label
        self.writing: Name | None = None
        self._settings, self._changed, self._quota_of = settings, table.changed, table.quota_of
        self._tiers, self._counters, self._deleting = tiers, tiers.counters, deleting
        self._finished, self._maintain = finished, maintain
        self._queue: deque[CachedPiece] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False

    def put(self, piece: CachedPiece) -> None:
        """Ask for a piece to be written if the tier lacks it; with the lock held."""
        if self.label in piece.saved or self.label in piece.pending:
            return
        if self._closing:
            piece.failed.add(self.label)
            return
        piece.pending.add(self.label)
        piece.failed.discard(self.label)
        self._queue.append(piece)
        self.start()
        self._changed.notify_all()

    def start(self) -> None:
        """Start the thread if it has not started; with the lock held."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name=f"emblema-saver-{self.label}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread once the queue is empty; waits for it until the deadline for loads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(self._settings.load_deadline)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing, MAINTENANCE_SECONDS)
                piece = self._next()
                if piece is None and self._closing:
                    return
                # Taken while the lock is held; rows are None for an artifact.
                taken = None if piece is None else (piece, piece.terms, piece.rows)
            try:
                if taken is not None:
                    self._save(*taken)
                if self.label == DISK:
                    self._maintain()
            except Exception:
                # The thread must go on, or a flush would wait for ever.
                log.exception("%s tier: its upkeep failed", self.label)

    def _next(self) -> CachedPiece | None:
        while self._queue:
            piece = self._queue.popleft()
            # A deletion of the name that is under way ends before its successor is written.
            self._changed.wait_for(lambda name=piece.name: name not in self._deleting)  # type: ignore[misc]
            if self.label in piece.pending and piece.listed:
                self.writing = piece.name
                return piece
        return None

    def _save(self, piece: CachedPiece, terms: Terms, rows: KVRows | None) -> None:
        failure = self._write(piece, terms, rows)
        on_disk, quota = self.label == DISK and failure is None, self._quota_of(piece.owner)
        if on_disk and quota is not None:
            self._tiers.maintain("evict", lambda disk: disk.evict(piece.owner, disk.bytes_of(piece.owner) - quota))
        self._counters.add(piece.owner, "saves" if failure is None else "save_failures")
        with self._changed:
            piece.pending.discard(self.label)
            (piece.saved if failure is None else piece.failed).add(self.label)
            repin = on_disk and piece.listed and piece.terms.pinned != terms.pinned
        if repin:
            self._tiers.maintain("pin", lambda disk: disk.set_pin(piece.id, piece.terms.pinned))
        with self._changed:
            self.writing = None
            self._changed.notify_all()
            self._finished(piece)

    def _write(self, piece: CachedPiece, terms: Terms, rows: KVRows | None) -> Exception | None:
        """Write a piece; returns why it could not be written."""
        try:
            # A chunk's file under its id is the same chunk; an artifact may have been formed again, larger.
            usual = self.label == DISK and piece.chunk is not None and terms == self._settings.terms
            if not (usual and self._tiers.entry(piece.id, piece.owner) is not None):
                self._tiers.write(self.label, self._record(piece, rows), terms)
        except (EmblemaError, OSError) as error:
            self._tiers.note_failure(self.label, "write", error, piece.owner)
            return error
        except Exception as error:
            log.exception("%s tier: %s could not be written", self.label, piece.id[:12])
            return error
        return None

    def _record(self, piece: CachedPiece, rows: KVRows | None) -> Record:
        chunk = piece.chunk
        if piece.artifact is not None and piece.key is not None:
            return codec.artifact_record(piece.key, piece.id, piece.artifact, piece.owner, created=piece.created)
        if chunk is None or rows is None:
            raise EmblemaError(f"{piece.id[:12]} has no rows in memory to write")
        whole = Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, rows)
        return codec.chunk_record(whole, piece.owner, compression=self._settings.compression, created=piece.created)


class PieceSaver:
    """Writes pieces to every slower tier, and tells the disk what was used. Called with the table's lock held, but for
    `save_again`, `flush`, `tell_uses` and `close`.

    Args:
        settings: of the store.
        table: the pieces in memory.
        tiers: disk and remote.
        finished: is called with the lock held after a piece was written, or was not.
        expire: deletes what has expired; called without the lock every `EXPIRY_SECONDS`.

    Attributes:
        deleting: names that are being deleted, with the number of deletions.
        losses: pieces of each owner that left memory before any slower tier took them, since its last flush.
    """

    def __init__(
        self,
        settings: StoreSettings,
        table: PieceTable,
        tiers: TierStack,
        finished: Callable[[CachedPiece], None],
        expire: Callable[[], object],
    ) -> None:
        self._table, self._tiers, self._expire = table, tiers, expire
        self.deleting: Counter[Name] = Counter()
        self.losses: Counter[str] = Counter()
        self._queues = {
            label: SaveQueue(label, settings, table, tiers, self.deleting, finished, self._maintain)
            for label in tiers.tiers
        }
        # Files on disk that were used since the disk was told.
        self._used: set[str] = set()
        self._expired_at = time.monotonic()

    def save(self, piece: CachedPiece) -> None:
        """Have a piece written to every slower tier that lacks it."""
        for queue in self._queues.values():
            queue.put(piece)

    def save_again(self, piece: CachedPiece) -> None:
        """Save a piece that the disk evicted, or another process deleted, since it was written."""
        if DISK in piece.saved and self._tiers.entry(piece.id, piece.owner) is None:
            with self._table.changed:
                piece.saved.discard(DISK)
                if piece.listed:
                    self.save(piece)

    def writes(self, names: Collection[Name]) -> bool:
        """Return whether a tier writes any of some pieces now."""
        return any(queue.writing in names for queue in self._queues.values())

    def flush(self, owner: str | None) -> None:
        """Return once everything that an owner (None: anybody) put so far is durable.

        Raises:
            StoreError: a piece could not be written to any tier.
        """
        if not self._queues:
            return
        changed = self._table.changed
        with changed:
            own = [piece for piece in self._table if owner in (None, piece.owner)]
            for piece in own:
                if not piece.saved:
                    self.save(piece)
            changed.wait_for(lambda: not any(piece.pending for piece in own))
            lost = self.losses.total() if owner is None else self.losses[owner]
            failed = lost + sum(bool(piece.failed) and not piece.saved for piece in own if piece.listed)
            self.losses = Counter() if owner is None else self.losses - Counter({owner: lost})
        self.tell_uses()
        if failed:
            raise StoreError(
                f"{failed} pieces are on no slower tier, as none took them: the log says why. Make room or mend the "
                "folder, and flush again; what had to leave memory meanwhile is lost."
            )

    def note_use(self, id: str) -> None:
        """Note that a file on disk was used."""
        self._used.add(id)
        self._queues[DISK].start()

    def tell_uses(self) -> None:
        """Tell the disk which of its files were used."""
        with self._table.changed:
            used, self._used = list(self._used), set()
        if used:
            self._tiers.maintain("touch", lambda disk: disk.touch(used))

    def _maintain(self) -> None:
        self.tell_uses()
        if time.monotonic() - self._expired_at >= EXPIRY_SECONDS:
            self._expired_at = time.monotonic()
            self._expire()

    def close(self) -> None:
        """End the threads; what is queued is written first."""
        for queue in self._queues.values():
            queue.close()

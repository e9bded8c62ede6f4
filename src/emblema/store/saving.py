"""Writing pieces to the slower tiers in the background."""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

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
"""How often the disk's upkeep is done when nothing is written."""


class PieceSaver:
    """Writes pieces to every slower tier, each on a thread of its own and oldest request first: none delays another.

    It keeps the `pending`, `saved` and `failed` of pieces. A piece that is deleted while it waits is skipped. The
    disk's thread also records uses and deletes what has expired. Called with the table's lock held, but for
    `save_again`, `flush` and `close`.

    Args:
        settings: of the store.
        table: the pieces in memory.
        tiers: disk and remote.
        finished: is called with the lock held after a piece was written, or was not.
        expire: deletes what has expired; called without the lock every `EXPIRY_SECONDS`.

    Attributes:
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
        self._settings, self._table, self._tiers = settings, table, tiers
        self._finished, self._expire = finished, expire
        self._changed = table.changed
        self.losses: Counter[str] = Counter()
        # By tier: what is to be written, what is being written, and the thread.
        self._queues: dict[str, deque[CachedPiece]] = {label: deque() for label in tiers.tiers}
        self._writing: dict[str, Name] = {}
        self._threads: dict[str, threading.Thread] = {}
        # Names that are being deleted, with the number of deletions.
        self._deleting: Counter[Name] = Counter()
        self._closing = False
        self._expired_at = time.monotonic()

    def save(self, piece: CachedPiece) -> None:
        """Have a piece written to every slower tier that lacks it."""
        for label, queue in self._queues.items():
            if label in piece.saved or label in piece.pending:
                continue
            if self._closing:
                piece.failed.add(label)
                continue
            piece.pending.add(label)
            piece.failed.discard(label)
            queue.append(piece)
            self._start(label)
            self._changed.notify_all()

    def save_again(self, piece: CachedPiece) -> None:
        """Save a piece that the disk evicted, or another process deleted, since it was written."""
        if DISK in piece.saved and self._tiers.entry(piece.id, piece.owner) is None:
            with self._changed:
                piece.saved.discard(DISK)
                if piece.indexed:
                    self.save(piece)

    def note_use(self, id: str) -> None:
        """Note that a file on disk was used."""
        if self._tiers.disk is not None:
            self._tiers.disk.touch([id])
            self._start(DISK)

    def writes(self, names: Collection[Name]) -> bool:
        """Return whether a tier writes any of some pieces now."""
        return any(name in names for name in self._writing.values())

    @contextmanager
    def paused(self, names: Collection[Name]) -> Iterator[None]:
        """Write none of some pieces until the block ends; begins once no tier writes any of them."""
        with self._changed:
            self._deleting.update(names)
            self._changed.wait_for(lambda: not self.writes(names))
        try:
            yield
        finally:
            with self._changed:
                self._deleting -= Counter(names)
                self._changed.notify_all()

    def flush(self, owner: str | None = None) -> None:
        """Return once everything that an owner (None: anybody) put so far is durable.

        Raises:
            StoreError: a piece could not be written to any tier.
        """
        if not self._queues:
            return
        with self._changed:
            own = [piece for piece in self._table if owner in (None, piece.owner)]
            for piece in own:
                if not piece.saved:
                    self.save(piece)
            self._changed.wait_for(lambda: not any(piece.pending for piece in own))
            lost = self.losses.total() if owner is None else self.losses[owner]
            failed = lost + sum(bool(piece.failed) and not piece.saved for piece in own if piece.indexed)
            self.losses = Counter() if owner is None else self.losses - Counter({owner: lost})
        self._record_uses()
        if failed:
            raise StoreError(
                f"{failed} pieces are on no slower tier, as none took them: the log says why. Make room or mend the "
                "folder, and flush again; what had to leave memory meanwhile is lost."
            )

    def close(self) -> None:
        """End the threads once nothing waits to be written; waits for each until the deadline for loads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            threads = list(self._threads.values())
        for thread in threads:
            thread.join(self._settings.load_deadline)

    def _start(self, label: str) -> None:
        """Start a tier's thread if it has not started."""
        if label not in self._threads and not self._closing:
            name = f"emblema-saver-{label}"
            thread = self._threads[label] = threading.Thread(target=self._run, args=(label,), name=name, daemon=True)
            thread.start()

    def _run(self, label: str) -> None:
        queue = self._queues[label]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: queue or self._closing, MAINTENANCE_SECONDS)
                piece = self._next(label)
                if piece is None and self._closing:
                    return
                # Taken while the lock is held; rows are None for an artifact.
                taken = None if piece is None else (piece, piece.terms, piece.rows)
            try:
                if taken is not None:
                    self._save(label, *taken)
                if label == DISK:
                    self._maintain()
            except Exception:
                # The thread must go on, or a flush would wait for ever.
                log.exception("%s tier: its upkeep failed", label)

    def _next(self, label: str) -> CachedPiece | None:
        queue = self._queues[label]
        while queue:
            piece = queue.popleft()
            # A deletion of the name that is under way ends before its successor is written.
            self._changed.wait_for(lambda name=piece.name: name not in self._deleting)  # type: ignore[misc]
            if label in piece.pending and piece.indexed:
                self._writing[label] = piece.name
                return piece
        return None

    def _save(self, label: str, piece: CachedPiece, terms: Terms, rows: KVRows | None) -> None:
        failure = self._write(label, piece, terms, rows)
        on_disk, quota = label == DISK and failure is None, self._table.quota_of(piece.owner)
        if on_disk and quota is not None:
            self._tiers.maintain("evict", lambda disk: disk.evict(piece.owner, disk.bytes_of(piece.owner) - quota))
        self._tiers.counters.add(piece.owner, "saves" if failure is None else "save_failures")
        with self._changed:
            piece.pending.discard(label)
            (piece.saved if failure is None else piece.failed).add(label)
            repin = on_disk and piece.indexed and piece.terms.pinned != terms.pinned
        if repin:
            self._tiers.maintain("pin", lambda disk: disk.set_pin(piece.id, piece.terms.pinned))
        with self._changed:
            del self._writing[label]
            self._changed.notify_all()
            self._finished(piece)

    def _write(self, label: str, piece: CachedPiece, terms: Terms, rows: KVRows | None) -> Exception | None:
        """Write a piece; returns why it could not be written."""
        try:
            # A chunk's file under its id is the same chunk; an artifact may have been formed again, larger.
            usual = label == DISK and piece.chunk is not None and terms == self._settings.terms
            if not (usual and self._tiers.entry(piece.id, piece.owner) is not None):
                self._tiers.write(label, self._record(piece, rows), terms)
        except (EmblemaError, OSError) as error:
            self._tiers.note_failure(label, "write", error, piece.owner)
            return error
        except Exception as error:
            log.exception("%s tier: %s could not be written", label, piece.id[:12])
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

    def _record_uses(self) -> None:
        self._tiers.maintain("uses", lambda disk: disk.record_uses())

    def _maintain(self) -> None:
        self._record_uses()
        if time.monotonic() - self._expired_at >= EXPIRY_SECONDS:
            self._expired_at = time.monotonic()
            self._expire()

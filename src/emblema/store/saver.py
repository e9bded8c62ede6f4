"""Writing in the background: one thread for each slower tier, so that a slow one holds up no other."""

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk
from emblema.store import codec
from emblema.store.pieces import Piece
from emblema.store.record import Name, Record, Terms
from emblema.store.slower import DISK

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper

log = logging.getLogger(__name__)

UPKEEP_SECONDS = 1.0
"""How often the disk's saver tells the disk what was used, and looks for what has expired."""


@dataclass(frozen=True, slots=True)
class _Job:
    """What is written of a piece, taken while the lock was held."""

    piece: Piece
    terms: Terms
    rows: Chunk | None


class Saver:
    """Writes pieces to one tier, oldest request first. Its thread begins with the first piece.

    A piece that is deleted while it waits is skipped. One that is deleted while it is written is deleted by whoever
    deletes it, who waits for `writing` first.
    """

    def __init__(self, keeper: "Keeper", label: str) -> None:
        self.label = label
        # The name being written; guarded by the store's lock, as is the queue.
        self.writing: Name | None = None
        self._keeper = keeper
        self._queue: deque[Piece] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False

    def queue(self, piece: Piece) -> None:
        """Ask for a piece to be written; under the store's lock."""
        if self._closing:
            piece.failed.add(self.label)
            return
        if self.label in piece.pending:
            return
        piece.pending.add(self.label)
        piece.failed.discard(self.label)
        self._queue.append(piece)
        self.start()
        self._keeper.changed.notify_all()

    def start(self) -> None:
        """Begin the thread if it has not begun; under the store's lock."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name=f"emblema-saver-{self.label}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread once the queue is empty."""
        with self._keeper.changed:
            self._closing = True
            self._keeper.changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(self._keeper.deadline)

    def _run(self) -> None:
        keeper = self._keeper
        while True:
            with keeper.changed:
                keeper.changed.wait_for(lambda: self._queue or self._closing, UPKEEP_SECONDS)
                job = self._next()
                if job is None and self._closing:
                    return
            if job is not None:
                try:
                    self._save(job)
                except Exception:
                    # Never the end of the thread: a flush would wait for ever.
                    log.exception("%s tier: saving %s failed", self.label, job.piece.id[:12])
                    with keeper.changed:
                        self.writing = None
                        job.piece.pending.discard(self.label)
                        job.piece.failed.add(self.label)
                        keeper.changed.notify_all()
            if self.label == DISK:
                keeper.upkeep()

    def _next(self) -> _Job | None:
        keeper = self._keeper
        while self._queue:
            piece = self._queue.popleft()
            # A deletion of the name that is under way ends before its successor is written.
            keeper.changed.wait_for(lambda name=piece.name: name not in keeper.deleting)  # type: ignore[misc]
            if self.label not in piece.pending or not piece.listed:
                continue
            self.writing = piece.name
            chunk = piece.chunk
            rows = None
            if chunk is not None and piece.rows is not None:
                rows = Chunk(chunk.id, chunk.kind, chunk.model, chunk.encoded, piece.rows)
            return _Job(piece, piece.terms, rows)
        return None

    def _save(self, job: _Job) -> None:
        keeper, piece = self._keeper, job.piece
        error: Exception | None = None
        try:
            self._write(job)
        except (EmblemaError, OSError) as failure:
            error = failure
            keeper.slower.complain(self.label, "write", failure, piece.owner)
        except Exception as failure:
            error = failure
            log.exception("%s tier: %s could not be written", self.label, piece.id[:12])
        if error is None and self.label == DISK:
            quota = keeper.quota_of(piece.owner)
            if quota is not None:
                keeper.slower.keep_within(piece.owner, quota)
        keeper.counts.add(piece.owner, "saves" if error is None else "save_failures")
        keeper.traffic.after_save(self, piece, job.terms, error)

    def _write(self, job: _Job) -> None:
        keeper, piece = self._keeper, job.piece
        # A chunk's file under its id is the same chunk; a patch may have been formed again, larger.
        known = piece.chunk is not None and self.label == DISK and job.terms == keeper.terms
        if known and keeper.slower.entry(piece.id, piece.owner) is not None:
            return
        keeper.slower.write(self.label, self._record(job), job.terms)

    def _record(self, job: _Job) -> Record:
        keeper, piece = self._keeper, job.piece
        if piece.artifact is not None and piece.key is not None:
            return codec.artifact_record(piece.key, piece.id, piece.artifact, piece.owner, created=piece.created)
        if job.rows is None:
            raise EmblemaError(f"{piece.id[:12]} has no rows in memory to write")
        return codec.chunk_record(job.rows, piece.owner, compression=keeper.compression, created=piece.created)

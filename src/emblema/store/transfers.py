"""Loading rows into device memory and moving them to host memory, on threads of their own."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

import torch

from emblema.errors import LoadError, StoreError
from emblema.kv.layout import KVRows, LayerRows
from emblema.store.arriving import ArrivingRows
from emblema.store.pieces import CachedPiece
from emblema.store.state import CacheState
from emblema.store.tiers import DISK, TierReader, move_encoding
from emblema.store.uploads import LayerUploader

log = logging.getLogger(__name__)

THREADS = 4
"""Of each pool."""


class WorkerPool:
    """A few daemon threads that make calls in order. They start with the first call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, call: Callable[[], None]) -> None:
        """Have a call made.

        Raises:
            StoreError: the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed: open it again, on the same folder to find what it kept")
            if not self._threads:
                names = [f"emblema-{self._name}-{index}" for index in range(THREADS)]
                self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
                for thread in self._threads:
                    thread.start()
            self._queue.put(call)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            try:
                call()
            except Exception:
                # The thread must go on: others wait for it.
                log.exception("a load failed")


class RowMover:
    """Loads rows into device memory and moves them to host memory, in the background, layer by layer.

    It keeps the `rows`, `tier`, `loading` and `copy_bytes` of pieces. `load` and `demote` are called with the cache's
    lock held.

    Args:
        state: of the cache.
        reader: of the slower tiers.
        remove: unlists a piece whose rows cannot be loaded; called with the lock held.
        finished: is called with the lock held when a load or copy has ended, with whether a slower tier gave the rows.
    """

    def __init__(
        self,
        state: CacheState,
        reader: TierReader,
        remove: Callable[[CachedPiece], None],
        finished: Callable[[CachedPiece, bool], None],
    ) -> None:
        # Whether device memory is other memory than the host's, so that rows have to be copied between them.
        self.copies = any(device.type != "cpu" for device in state.settings.devices)
        self._changed, self._table, self._counters = state.changed, state.table, state.counters
        self._settings = state.settings
        self._deadline, self._reader = state.settings.load_deadline, reader
        self._remove, self._finished = remove, finished
        self._workers = WorkerPool("loader")

    def load(self, piece: CachedPiece) -> KVRows:
        """Return a piece's rows in device memory, or on their way there."""
        rows = piece.rows
        if rows is None or (piece.tier == "host" and self.copies and not piece.loading):
            arriving = ArrivingRows(piece.id, piece.sizes, self._deadline)
            piece.rows, piece.loading = arriving, True
            piece.copy_bytes = 0 if rows is None else piece.full_bytes
            self._table.move(piece, "device")
            if rows is None:
                read: Callable[[], str | None] = partial(self._reader.read_rows, piece, arriving)
            else:
                self._counters.add(piece.owner, "promotions")
                read = partial(self._promote, rows, arriving)
            self._workers.submit(partial(self._fill, piece, arriving, read))
            return arriving
        if piece.tier == "host":
            self._counters.add(piece.owner, "promotions")
            self._table.move(piece, "device")
        return rows

    def demote(self, piece: CachedPiece, rows: KVRows) -> None:
        """Move a piece's rows from device to host memory."""
        self._counters.add(piece.owner, "demotions")
        if not self.copies:
            self._table.move(piece, "host")
            return
        piece.loading, piece.copy_bytes = True, piece.full_bytes
        self._table.recount(piece)
        self._workers.submit(partial(self._copy_to_host, piece, rows))

    def close(self) -> None:
        self._workers.close()

    def _promote(self, held: KVRows, rows: ArrivingRows) -> None:
        uploader = LayerUploader(self._settings.row_devices(len(held)), [layer.bytes for layer in held])
        for index, layer in enumerate(held):
            rows.arrive(index, *uploader.upload(index, layer))
        uploader.finish()

    def _fill(self, piece: CachedPiece, rows: ArrivingRows, read: Callable[[], str | None]) -> None:
        """Read rows and take them; `read` returns the label of the tier that had them, None for host memory."""
        label: str | None = None
        failure: LoadError | None = None
        try:
            label = read()
        except LoadError as error:
            failure = error
        except Exception as error:
            log.exception("%s could not be loaded", piece.id[:12])
            failure = LoadError(piece.id, f"{type(error).__name__}: {error}")
        with self._changed:
            complete = failure is None and rows.complete
            if failure is not None:
                # Under the lock: a reader of the failure must also see that it was no time-out.
                piece.loading = False
                rows.fail(failure)
                piece.saved.clear()
            if not complete:
                self._remove(piece)
            piece.loading, piece.copy_bytes = False, 0
            loaded = complete and piece.rows is rows
            if loaded:
                piece.rows = rows[:]
                if label is not None:
                    self._counters.add(piece.owner, "loads")
                    if label != DISK:
                        # The disk was asked first, and does not have it any more.
                        piece.saved = {label}
            self._finished(piece, loaded and label is not None)

    def _copy_to_host(self, piece: CachedPiece, rows: KVRows) -> None:
        copies: KVRows | None = None
        try:
            copies = tuple(LayerRows(_copy_pinned(layer.keys), _copy_pinned(layer.values)) for layer in rows)
        except RuntimeError as error:
            log.warning("%s could not be moved to host memory: %s", piece.id[:12], error)
        with self._changed:
            piece.loading, piece.copy_bytes = False, 0
            # Unless the piece was used meanwhile.
            if copies is not None and piece.listed and piece.leases == 0 and piece.rows is rows:
                piece.rows = copies
                if piece.chunk is not None:
                    encoded = move_encoding(piece.chunk.encoded, torch.device("cpu"))
                    piece.chunk = replace(piece.chunk, encoded=encoded)
                self._table.move(piece, "host")
            self._finished(piece, False)


def _copy_pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor)

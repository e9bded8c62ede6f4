"""Loading rows into device memory and moving them to host memory, on threads of their own."""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import torch

from emblema.errors import LoadError
from emblema.kv.layout import KVRows
from emblema.store.arriving import ArrivingRows
from emblema.store.pieces import CachedPiece, PieceTable
from emblema.store.settings import StoreSettings
from emblema.store.statistics import StoreCounters
from emblema.store.tiers import DISK, TierReader, move_encoding
from emblema.store.uploads import LayerUploader
from emblema.store.workers import WorkerPool

log = logging.getLogger(__name__)


class RowMover:
    """Loads rows into device memory and moves them to host memory, in the background, layer by layer.

    It keeps the `rows`, `tier`, `loading` and `copy_bytes` of pieces. `load` and `demote` are called with the table's
    lock held.

    Args:
        settings: of the store.
        table: the pieces in memory.
        reader: of the slower tiers.
        counters: where loads and moves are counted.
        finished: is called with the lock held when a load or copy has ended, the piece still `loading`: with whether
            the piece has to go, as its rows did not come, and whether a slower tier gave them.
    """

    def __init__(
        self,
        settings: StoreSettings,
        table: PieceTable,
        reader: TierReader,
        counters: StoreCounters,
        finished: Callable[[CachedPiece, bool, bool], None],
    ) -> None:
        # Whether device memory is other memory than the host's, so that rows have to be copied between them.
        self.copies = any(device.type != "cpu" for device in settings.devices)
        self._settings, self._table, self._changed = settings, table, table.changed
        self._reader, self._counters, self._finished = reader, counters, finished
        self._workers = WorkerPool("loader")

    def load(self, piece: CachedPiece) -> KVRows:
        """Return a piece's rows in device memory, or on their way there."""
        rows = piece.rows
        if rows is None or (piece.tier == "host" and self.copies and not piece.loading):
            arriving = ArrivingRows(piece.id, piece.sizes, self._settings.load_deadline)
            piece.rows, piece.loading = arriving, True
            piece.copy_bytes = 0 if rows is None else piece.full_bytes
            self._table.move(piece, "device")
            if rows is None:
                read: Callable[[], str | None] = partial(self._reader.read_rows, piece, arriving)
            else:
                self._counters.add(piece.owner, "promotions")
                read = partial(self._promote, rows, arriving)
            self._submit(partial(self._fill, piece, arriving, read))
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
        self._submit(partial(self._copy_to_host, piece, rows))

    def close(self) -> None:
        self._workers.close()

    def _submit(self, call: Callable[[], None]) -> None:
        self._workers.submit(call).add_done_callback(_log_failure)

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
            loaded = complete and piece.rows is rows
            if loaded:
                piece.rows = rows[:]
                if label is not None:
                    self._counters.add(piece.owner, "loads")
                    if label != DISK:
                        # The disk was asked first, and does not have it any more.
                        piece.saved = {label}
            piece.copy_bytes = 0
            self._finished(piece, not complete, loaded and label is not None)

    def _copy_to_host(self, piece: CachedPiece, rows: KVRows) -> None:
        copies: KVRows | None = None
        try:
            copies = tuple(layer.with_tensors([_copy_pinned(own) for own in layer.tensors]) for layer in rows)
        except RuntimeError as error:
            log.warning("%s could not be moved to host memory: %s", piece.id[:12], error)
        with self._changed:
            piece.copy_bytes = 0
            # Unless the piece was used meanwhile.
            if copies is not None and piece.indexed and piece.leases == 0 and piece.rows is rows:
                piece.rows = copies
                if piece.chunk is not None:
                    encoded = move_encoding(piece.chunk.encoded, torch.device("cpu"))
                    piece.chunk = replace(piece.chunk, encoded=encoded)
                self._table.move(piece, "host")
            self._finished(piece, False, False)


def _copy_pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor)


def _log_failure(outcome: "Future[None]") -> None:
    if (error := outcome.exception()) is not None:
        log.error("a load failed", exc_info=error)

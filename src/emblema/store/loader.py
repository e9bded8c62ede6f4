"""Reading in the background: a few threads that bring rows layer by layer, the first first."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from emblema.errors import EmblemaError, LoadError, StoreError
from emblema.kv.arriving import ArrivingRows
from emblema.kv.layout import KVRows, LayerRows
from emblema.store import codec
from emblema.store.pieces import Piece
from emblema.store.record import RecordReader

if TYPE_CHECKING:
    from emblema.store.keeper import Keeper

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 4


class Workers:
    """A few threads that make calls in order. They begin with the first and hold nobody up when the process ends."""

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._lock = threading.Lock()
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def submit(self, call: Callable[[], None]) -> None:
        """Have a call made.

        Raises:
            StoreError: the workers are closed.
        """
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed: open it again, on the same folder to find what it kept")
            if not self._threads:
                names = [f"emblema-{self._name}-{index}" for index in range(self._count)]
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
                # Never the end of the thread: others wait for it.
                log.exception("a load failed")


class Loader:
    """Looks pieces up and brings their rows, each on threads of its own, so that no look-up waits behind rows."""

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        # A call that missed its deadline and has not ended.
        self._hanging: Future[Any] | None = None
        self._finders = Workers("finder", THREADS)
        self._bringers = Workers("loader", THREADS)

    def ask(self, what: str, owner: str, call: Callable[[], T]) -> T | None:
        """The outcome of a call on another thread, waited for until the deadline; None where it comes too late.

        While an earlier call that came too late still hangs, no other is made: one deadline is waited, not many.
        """
        if self._hanging is not None:
            if not self._hanging.done():
                self._keeper.counts.add(owner, "late_loads")
                return None
            self._hanging = None
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

        self._finders.submit(answer)
        try:
            return future.result(self._keeper.deadline)
        except LateError:
            self._hanging = future
            self._keeper.counts.add(owner, "late_loads")
            log.warning("%s was not found within %g s: it is computed", what[:12], self._keeper.deadline)
            return None

    def load(self, piece: Piece, rows: ArrivingRows) -> None:
        """Bring a piece's rows from a slower tier."""
        self._bringers.submit(lambda: self._load(piece, rows))

    def copy(self, piece: Piece, held: KVRows, rows: ArrivingRows) -> None:
        """Bring a piece's rows from host to device memory."""

        def run() -> None:
            failure: LoadError | None = None
            try:
                for index, layer in enumerate(held):
                    rows.arrive(index, layer.to(self._keeper.device))
            except RuntimeError as error:
                failure = LoadError(piece.id, str(error))
            self._keeper.traffic.after_load(piece, rows, None, failure)

        self._bringers.submit(run)

    def demote(self, piece: Piece, held: KVRows) -> None:
        """Copy a piece's rows to pinned host memory."""

        def run() -> None:
            copies: KVRows | None = None
            try:
                copies = tuple(LayerRows(_pinned(layer.keys), _pinned(layer.values)) for layer in held)
            except RuntimeError as error:
                log.warning("%s could not be moved to host memory: %s", piece.id[:12], error)
            self._keeper.traffic.after_demotion(piece, held, copies)

        self._bringers.submit(run)

    def close(self) -> None:
        self._finders.close()
        self._bringers.close()

    def _load(self, piece: Piece, rows: ArrivingRows) -> None:
        keeper = self._keeper
        error: LoadError | None = LoadError(piece.id, "it is in no tier any more")
        origin: str | None = None
        try:
            for label, reader in keeper.slower.open(piece.id, (piece.owner,)):
                try:
                    self._read(reader, piece, rows)
                except (EmblemaError, OSError) as failure:
                    error = failure if isinstance(failure, LoadError) else LoadError(piece.id, str(failure))
                    keeper.slower.distrust(label, piece.id, piece.owner, error)
                else:
                    origin, error = label, None
                    break
                finally:
                    reader.close()
        except Exception as failure:
            log.exception("%s could not be loaded", piece.id[:12])
            error = LoadError(piece.id, f"{type(failure).__name__}: {failure}")
        keeper.traffic.after_load(piece, rows, origin, error)

    def _read(self, reader: RecordReader, piece: Piece, rows: ArrivingRows) -> None:
        if codec.layer_bytes(reader.header) != piece.sizes:
            raise LoadError(reader.header.id, "its layers have other sizes than before")
        for index, layer in enumerate(codec.read_layers(reader)):
            if rows.failed is not None:
                return
            rows.arrive(index, layer.to(self._keeper.device))


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=torch.cuda.is_available())
    return copy.copy_(tensor)

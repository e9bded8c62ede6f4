"""Rows on their way: a chunk's layers, each there for its reader as soon as it has been loaded and verified."""

import threading
import time
from collections.abc import Sequence
from typing import overload

from emblema.errors import LoadError
from emblema.kv.device_copies import CopyEvent
from emblema.kv.layout import LayerRows


class ArrivingRows(Sequence[LayerRows]):
    """The rows of a chunk under way from a slower tier; reading a layer waits until it is here.

    One thread calls `arrive` and `fail`; any number read. A chunk either arrives whole or fails: the reader of a layer
    that will not come gets the error, so a forward under way is dropped.

    Args:
        chunk: id of the chunk.
        sizes: bytes of each layer, known before it comes.
        deadline: seconds from now by which every layer has to be here; None waits without end.
    """

    def __init__(self, chunk: str, sizes: Sequence[int], deadline: float | None = None) -> None:
        self.chunk = chunk
        self._sizes = tuple(sizes)
        self._deadline = None if deadline is None else time.monotonic() + deadline
        self._seconds = deadline
        self._layers: list[LayerRows | None] = [None] * len(self._sizes)
        # What a reader's stream has to wait for, where a layer is only on its way to the device.
        self._events: list[CopyEvent | None] = [None] * len(self._sizes)
        self._error: LoadError | None = None
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        """Bytes of all layers, here or not."""
        return sum(self._sizes)

    @property
    def complete(self) -> bool:
        """Whether every layer is here."""
        with self._changed:
            return self._error is None and all(layer is not None for layer in self._layers)

    def is_here(self, layer: int) -> bool:
        """Return whether a layer is here."""
        with self._changed:
            return layer < len(self._layers) and self._layers[layer] is not None

    @property
    def failed(self) -> LoadError | None:
        """Why the rest will not come; None while all goes well."""
        with self._changed:
            return self._error

    def arrive(self, layer: int, rows: LayerRows, event: CopyEvent | None = None) -> None:
        """Give a layer that is here and verified, or is behind an event."""
        with self._changed:
            self._layers[layer], self._events[layer] = rows, event
            self._changed.notify_all()

    def fail(self, error: LoadError) -> None:
        """Say that the rest will not come; the first error is kept."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    @overload
    def __getitem__(self, layer: int) -> LayerRows: ...

    @overload
    def __getitem__(self, layer: slice) -> tuple[LayerRows, ...]: ...

    def __getitem__(self, layer: int | slice) -> LayerRows | tuple[LayerRows, ...]:
        """Wait for a layer and return its rows, which the calling thread's stream may use.

        Raises:
            LoadError: the load failed, or the layer is not here by the deadline.
        """
        if isinstance(layer, slice):
            return tuple(self[index] for index in range(*layer.indices(len(self))))
        with self._changed:
            while True:
                rows = self._layers[layer]
                if rows is not None:
                    event = self._events[layer]
                    if event is not None:
                        event.join(rows.tensors)
                    return rows
                if self._error is not None:
                    raise self._error
                left = None if self._deadline is None else self._deadline - time.monotonic()
                if left is not None and left <= 0:
                    reason = f"layer {layer} was not here after {self._seconds:g} s"
                    self._error = LoadError(self.chunk, reason, late=True)
                    self._changed.notify_all()
                    raise self._error
                self._changed.wait(left)

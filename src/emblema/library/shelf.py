"""Where libraries are kept: one catalogue, the media and the vectors, of all tenants of a store."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakMethod

from emblema.errors import StoreError
from emblema.library.catalogue import Catalogue
from emblema.library.indexes import Indexes
from emblema.library.sources import Sources

SOURCE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class ShelfStatistics:
    """Counters since the shelf was made: items made again from their media, and what was found damaged."""

    remade: int
    damaged_rows: int
    damaged_indexes: int
    unread_chunks: int


@dataclass(frozen=True, slots=True)
class Held:
    """A version that a snapshot keeps."""

    scope: str
    library: str
    version: int
    holder: str


class Shelf:
    """Keeps libraries in a folder, where they outlive the process, or in memory. Any number of threads share it.

    Make one for a store, in a folder beside the store's index, and hand it to every library on that store.

    Args:
        folder: made where it is missing; None keeps everything in memory.
        clock: Unix time in seconds.
        source_bytes: how many bytes of media each owner may have kept, so that lost chunks can be made again.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        source_bytes: int = SOURCE_BYTES,
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None:
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                catalogue = Catalogue(self.folder / "library.sqlite")
            except OSError as error:
                raise StoreError(f"the libraries' folder {folder} cannot be made: {error.strerror or error}") from error
        else:
            catalogue = Catalogue(None)
        self.catalogue = catalogue
        self.sources = Sources(None if self.folder is None else self.folder / "sources", source_bytes)
        self.indexes = Indexes(None if self.folder is None else self.folder / "vectors")
        self._clock = clock
        self._latest = 0.0
        self._lock = threading.Lock()
        self._remade = self._unread = 0
        # `collect` of libraries that may delete chunks, by scope and library: what a snapshot frees goes through them.
        self._collectors: dict[tuple[str, str], WeakMethod[Callable[[], int]]] = {}
        # Versions of snapshots that were dropped without `close`; a finaliser may not wait for locks.
        self.dropped: deque[Held] = deque()

    @property
    def statistics(self) -> ShelfStatistics:
        return ShelfStatistics(self._remade, self.catalogue.damaged, self.indexes.damaged, self._unread)

    def now(self) -> float:
        """The clock, which does not run back while the shelf is open: what has expired stays so."""
        with self._lock:
            self._latest = max(self._latest, self._clock())
            return self._latest

    def count_remade(self) -> None:
        """An item's media were added again."""
        with self._lock:
            self._remade += 1

    def count_unread(self) -> None:
        """A chunk's rows could not be read for its vectors."""
        with self._lock:
            self._unread += 1

    def register(self, scope: str, library: str, collect: Callable[[], int]) -> None:
        """A library that may delete chunks: its method that frees what no version needs; not kept alive by this."""
        self._collectors[scope, library] = WeakMethod(collect)

    def release(self, held: Held) -> None:
        """End a snapshot's hold; chunks that nothing needs any more are freed if the administrator is here."""
        self.catalogue.release(held.scope, held.library, held.version, held.holder)
        found = self._collectors.get((held.scope, held.library))
        collect = None if found is None else found()
        if collect is not None:
            collect()

    def release_dropped(self) -> None:
        """End the holds of snapshots that were dropped without `close`."""
        while self.dropped:
            try:
                held = self.dropped.popleft()
            except IndexError:
                return
            self.release(held)

    def flush(self) -> None:
        """Return once the vectors are on disk too; entries always are. StoreError where that fails."""
        self.indexes.flush()

    def close(self) -> None:
        """Write what is unwritten and close the catalogue."""
        try:
            self.indexes.flush()
        finally:
            self.catalogue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

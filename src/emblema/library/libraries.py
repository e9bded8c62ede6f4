"""Where libraries are kept: one catalogue, the media and the vectors, of all tenants of a store."""

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from weakref import WeakMethod

from emblema.errors import StoreError
from emblema.library.listings import Listings
from emblema.library.saved_vectors import Indexes
from emblema.library.sources import Sources

_LOG = logging.getLogger(__name__)
SOURCE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class LibraryStatistics:
    """Counters since opening: items made again, what was damaged, and deletions to be tried again."""

    remade: int
    damaged_rows: int
    damaged_indexes: int
    unread_chunks: int
    uncollected: int = 0


@dataclass(frozen=True, slots=True)
class VersionHold:
    """A version that a snapshot keeps."""

    scope: str
    library: str
    version: int
    holder: str


class Libraries:
    """The storage of libraries: a folder, where they outlive the process, or memory. Any number of threads share it.

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
                # Vectors of an earlier version are made again; until 0.2.
                shutil.rmtree(self.folder / "vectors", ignore_errors=True)
            except OSError as error:
                raise StoreError(f"the libraries' folder {folder} cannot be made: {error.strerror or error}") from error
        self.listings = Listings(self.folder)
        self.sources = Sources(None if self.folder is None else self.folder / "sources", source_bytes)
        self.indexes = Indexes(self.listings.catalogue)
        self._clock = clock
        self._lock = threading.Lock()
        self._remade = self._unread = self._uncollected = 0
        # `collect` of libraries that may delete chunks, by scope and library: what a snapshot frees goes through them.
        self._collectors: dict[tuple[str, str], WeakMethod[Callable[[], int]]] = {}
        # Versions of snapshots that were dropped without `close`; a finaliser may not wait for locks.
        self.dropped: deque[VersionHold] = deque()

    @property
    def statistics(self) -> LibraryStatistics:
        damaged = self.listings.damaged, self.indexes.damaged
        return LibraryStatistics(self._remade, *damaged, self._unread, self._uncollected)

    def now(self) -> float:
        """Return Unix time in seconds."""
        return self._clock()

    def count_remade(self) -> None:
        """Count an item whose media were added again."""
        with self._lock:
            self._remade += 1

    def count_unread(self) -> None:
        """Count a chunk whose rows could not be read for its vectors."""
        with self._lock:
            self._unread += 1

    def count_uncollected(self, error: Exception) -> None:
        """Count and log what could not be deleted now; it is tried again later."""
        with self._lock:
            self._uncollected += 1
        _LOG.warning("not deleted yet, and tried again later: %s", error)

    def register(self, scope: str, library: str, collect: Callable[[], int]) -> None:
        """Register the `collect` of a library that may delete chunks; it is not kept alive by this."""
        self._collectors[scope, library] = WeakMethod(collect)

    def release(self, held: VersionHold) -> None:
        """End a snapshot's hold; chunks that nothing needs any more are freed if the administrator is here.

        An error is not the reader's: it is counted and logged, and the same is tried again with the next snapshot.
        """
        try:
            self.listings.release(held.scope, held.library, held.version, held.holder)
        except StoreError as error:
            self.count_uncollected(error)
            self.dropped.append(held)
            return
        found = self._collectors.get((held.scope, held.library))
        collect = None if found is None else found()
        if collect is not None and not self.listings.read_only:
            try:
                collect()
            except StoreError as error:
                self.count_uncollected(error)

    def release_dropped(self) -> None:
        """End the holds of snapshots that were dropped without `close`."""
        for _ in range(len(self.dropped)):
            try:
                held = self.dropped.popleft()
            except IndexError:
                return
            self.release(held)

    def close(self) -> None:
        """Write what is unwritten and close the catalogue."""
        self.listings.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

"""Where libraries are kept: one catalogue, the media and the vectors, of all tenants of a store."""

import logging
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from weakref import WeakMethod

from emblema.errors import StoreError
from emblema.library.listings import Listings, VersionHold
from emblema.library.saved_vectors import Indexes
from emblema.library.sources import Sources
from emblema.store.store import Store

_LOG = logging.getLogger(__name__)
SOURCE_BYTES = 2**30


@dataclass(slots=True)
class LibraryStatistics:
    """Counters since opening.

    Attributes:
        remade: items whose media were added again.
        unread_chunks: chunks whose rows could not be read for their vectors.
        uncollected: deletions to be tried again.
    """

    remade: int = 0
    unread_chunks: int = 0
    uncollected: int = 0


class Libraries:
    """The storage of libraries: a folder, where they outlive the process, or memory. Any number of threads share it.

    Make one for a store, in a folder beside the store's index, and hand it to every library on that store.

    Args:
        folder: made where it is missing; None keeps everything in memory.
        clock: Unix time in seconds.
        source_bytes: how many bytes of media each owner may have kept, so that lost chunks can be made again.

    Attributes:
        now: returns Unix time in seconds.
        listings: names and versions.
        catalogue: that these are in.
        sources: media.
        indexes: vectors.
        dropped: versions of snapshots that were dropped without `close`; a finaliser may not wait for locks.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        source_bytes: int = SOURCE_BYTES,
    ) -> None:
        place = None if folder is None else Path(folder)
        if place is not None:
            try:
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Vectors of an earlier version are made again; until 0.2.
                shutil.rmtree(place / "vectors", ignore_errors=True)
            except OSError as error:
                raise StoreError(f"the libraries' folder {folder} cannot be made: {error.strerror or error}") from error
        self.listings = Listings(place)
        self.sources = Sources(None if place is None else place / "sources", source_bytes)
        self.catalogue = self.listings.catalogue
        self.indexes = Indexes(self.catalogue)
        self.now, self.statistics = clock, LibraryStatistics()
        self.dropped: deque[VersionHold] = deque()
        # `collect` of libraries that may delete chunks, by scope and library: what a snapshot frees goes through them.
        self._collectors: dict[tuple[str, str], WeakMethod[Callable[[], int]]] = {}

    def count_uncollected(self, error: Exception) -> None:
        """Count and log what could not be deleted now; it is tried again later."""
        self.statistics.uncollected += 1
        _LOG.warning("not deleted yet, and tried again later: %s", error)

    def register(self, scope: str, library: str, collect: Callable[[], int]) -> None:
        """Register the `collect` of a library that may delete chunks; it is not kept alive by this."""
        self._collectors[scope, library] = WeakMethod(collect)

    def release(self, held: VersionHold) -> None:
        """End a snapshot's hold; chunks that nothing needs any more are freed if the administrator is here.

        An error is not the reader's: it is counted and logged, and the same is tried again with the next snapshot.
        """
        try:
            self.listings.release(held)
        except StoreError as error:
            self.count_uncollected(error)
            self.dropped.append(held)
            return
        found = self._collectors.get((held.scope, held.library))
        collect = None if found is None else found()
        if collect is not None and self.catalogue.read_only is None:
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
        """Close the catalogue."""
        self.catalogue.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def libraries_of(store: Store) -> Libraries:
    """Return the storage of the libraries on a store, shared by all engines on it; in its folder if it has one."""
    folder = None if store.disk is None else store.disk.path / "libraries"
    clock, source_bytes = store.settings.clock, store.settings.library_bytes
    return store.attached("libraries", lambda: Libraries(folder, clock=clock, source_bytes=source_bytes))

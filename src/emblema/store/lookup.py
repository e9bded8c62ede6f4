"""Looking pieces up, in memory and on the slower tiers."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from functools import partial
from typing import Any, TypeVar

from emblema.kv.artifacts import Artifact
from emblema.store.identity import artifact_id
from emblema.store.keys import ArtifactKey
from emblema.store.pieces import CachedPiece
from emblema.store.record import Name
from emblema.store.state import CacheState
from emblema.store.statistics import StoreCounters
from emblema.store.tiers import StoredPiece, TierReader
from emblema.store.transfers import WorkerPool

log = logging.getLogger(__name__)

T = TypeVar("T")

HEADERS_READ = 64
"""Artifacts of one chunk on disk whose headers are read, at most, to say which there are."""

Owners = Sequence[str]
"""Whose pieces a call may see, in the order they are looked for: the tenant's, then the shared library's."""


class LookupPool:
    """Makes look-ups in slower tiers on other threads, so that a tier that hangs delays callers by one deadline only.

    Args:
        deadline: seconds that a caller waits.
        counters: where late look-ups are counted.
    """

    def __init__(self, deadline: float, counters: StoreCounters) -> None:
        self._deadline, self._counters = deadline, counters
        self._workers = WorkerPool("lookup")
        # A look-up that missed its deadline and has not ended.
        self._hanging: Future[Any] | None = None

    def call(self, id: str, owner: str, look_up: Callable[[], T]) -> T | None:
        """Return the outcome of a look-up of an id, or None where it comes too late.

        While an earlier look-up that came too late still hangs, no other is made: one deadline is waited for, not many.
        """
        if self._hanging is not None:
            if not self._hanging.done():
                self._counters.add(owner, "late_loads")
                return None
            self._hanging = None
        future: Future[T] = Future()

        def answer() -> None:
            try:
                future.set_result(look_up())
            except BaseException as error:
                future.set_exception(error)

        self._workers.submit(answer)
        try:
            return future.result(self._deadline)
        except LateError:
            self._hanging = future
            self._counters.add(owner, "late_loads")
            log.warning("%s was not found within %g s: it is computed", id[:12], self._deadline)
            return None

    def close(self) -> None:
        """End the threads."""
        self._workers.close()


class PieceLookup:
    """Finds pieces for their owners, in memory or on the slower tiers. No method is called with the lock held.

    Args:
        state: of the cache.
        reader: of the slower tiers.
        get: returns the first owner's piece in memory; called with the lock held.
        use: counts a use of a piece; called with the lock held.
        admit: lists what a slower tier has, with the key of an artifact; None where it was deleted or is expired.
    """

    def __init__(
        self,
        state: CacheState,
        reader: TierReader,
        *,
        get: Callable[[Owners, str], CachedPiece | None],
        use: Callable[[CachedPiece], None],
        admit: Callable[[StoredPiece, ArtifactKey | None], CachedPiece | None],
    ) -> None:
        self._changed, self._table, self._tiers, self._reader = state.changed, state.table, state.tiers, reader
        self._pool = LookupPool(state.settings.load_deadline, state.counters)
        self._get, self._use, self._admit = get, use, admit

    def find(self, owners: Owners, id: str) -> CachedPiece | None:
        """Return the first owner's piece, brought from a slower tier without its rows if need be; counts as a use."""
        with self._changed:
            piece = self._get(owners, id)
            if piece is not None:
                self._use(piece)
                return piece
        if not self._tiers:
            return None
        return self._pool.call(id, owners[0], partial(self._fetch_chunk, owners, id))

    def find_artifact(self, owners: Owners, key: ArtifactKey) -> Artifact | None:
        """Return the first owner's artifact of a key, in memory or read from a slower tier; counts as a use."""
        names = [(owner, artifact_id(key, owner)) for owner in owners]
        with self._changed:
            for owner, id in names:
                piece = self._get((owner,), id)
                if piece is not None:
                    self._use(piece)
                    return piece.artifact
        if not self._tiers:
            return None
        for owner, id in names:
            piece = self._pool.call(id, owner, partial(self._fetch_artifact, owner, id, key))
            if piece is not None:
                return piece.artifact
        return None

    def written(self, owner: str, key: ArtifactKey) -> tuple[float, int] | None:
        """Return when an owner's artifact was written last, and its bytes: on disk, or in memory without a disk."""
        id = artifact_id(key, owner)
        if self._tiers.disk is not None:
            entry = None if self._is_deleted(owner, *key.chunks) else self._tiers.entry(id, owner)
            return None if entry is None else (entry.created, entry.bytes)
        with self._changed:
            piece = self._get((owner,), id)
            return None if piece is None or piece.artifact is None else (piece.created, piece.artifact.bytes)

    def read_artifact(self, owner: str, key: ArtifactKey) -> Artifact | None:
        """Return an owner's artifact from the slower tiers, which another process may have written; as `written`."""
        if self._tiers.disk is None:
            return self.find_artifact((owner,), key)
        id = artifact_id(key, owner)
        stored = self._pool.call(id, owner, partial(self._reader.read_artifact, id, owner, key))
        return None if stored is None else stored.artifact

    def holds(self, owners: Owners, id: str) -> bool:
        """Return whether a chunk is in any tier."""
        with self._changed:
            piece = self._get(owners, id)
            if piece is not None:
                return piece.chunk is not None
        return any(self._tiers.holds(id, owner) for owner in owners if not self._is_deleted(owner, id))

    def held(self, owners: Owners, chunks: Collection[str]) -> dict[str, bool]:
        """Return those of some chunks that are in memory or in the disk's index, and whether artifacts were made of
        them; the index is asked once for all, files are not touched, and a remote tier is not asked.
        """
        found = {id for _, id in self._held([(owner, id) for owner in owners for id in chunks])}
        with self._changed:
            made = {id for id in found if any(piece.owner in owners for piece in self._table.artifacts_of(id))}
        made |= self._tiers.with_artifacts(found - made)
        return {id: id in made for id in found}

    def held_artifacts(self, owners: Owners, keys: Iterable[ArtifactKey]) -> frozenset[ArtifactKey]:
        """Return those of some artifacts that are in memory or in the disk's index; as `held`."""
        names = {(owner, artifact_id(key, owner)): key for key in keys for owner in owners}
        # A deletion of a chunk takes its artifacts out of the index too, but later.
        return frozenset(
            names[owner, id]
            for owner, id in self._held(list(names))
            if not self._is_deleted(owner, *names[owner, id].chunks)
        )

    def _held(self, names: Sequence[Name]) -> frozenset[Name]:
        with self._changed:
            here = frozenset(name for name in names if self._get(name[:1], name[1]) is not None)
            asked = [name for name in names if name not in here and name not in self._table.tombstones]
        return here | self._tiers.names_on_disk(asked)

    def knows(self, owner: str, id: str) -> bool:
        """Return whether an owner's piece is in memory or in the disk's index."""
        with self._changed:
            if self._table.get((owner, id)) is not None:
                return True
        return self.is_on_disk(owner, id)

    def ids(self, owner: str) -> list[str]:
        """Return ids of an owner's chunks: those on disk alone, then those in memory."""
        stored = [entry.id for entry in self._tiers.entries(owner) if entry.kind == "chunk"]
        with self._changed:
            here = [piece.id for piece in self._table if piece.owner == owner and piece.chunk is not None]
            known = set(here)
            return [id for id in stored if id not in known and (owner, id) not in self._table.tombstones] + here

    def artifact_keys(self, owners: Owners, chunk: str) -> list[ArtifactKey]:
        """Return keys of the artifacts of a chunk, in memory and, as far as `HEADERS_READ` headers tell, on disk."""
        with self._changed:
            here = [piece for piece in self._table.artifacts_of(chunk) if piece.owner in owners]
        ids = {piece.id for piece in here}
        found = {piece.key for piece in here if piece.key is not None and piece.key.chunk == chunk}
        for id in [id for id in self._tiers.artifact_ids(chunk) if id not in ids][:HEADERS_READ]:
            for owner in owners:
                entry = self._tiers.entry(id, owner)
                if entry is None or entry.kind != "patch" or entry.chunks[:1] != (chunk,):
                    continue
                key = None if self._is_deleted(owner, id, *entry.chunks) else self._reader.read_key(id, owner)
                if key is not None:
                    found.add(key)
        return sorted(found, key=str)

    def _is_deleted(self, owner: str, *ids: str) -> bool:
        """Return whether any of an owner's ids has a tombstone."""
        with self._changed:
            return any((owner, id) in self._table.tombstones for id in ids)

    def is_on_disk(self, owner: str, id: str) -> bool:
        """Return whether the disk's index has an owner's piece that was not deleted."""
        return not self._is_deleted(owner, id) and self._tiers.entry(id, owner) is not None

    def _fetch_chunk(self, owners: Owners, id: str) -> CachedPiece | None:
        """Read a chunk without its rows from the slower tiers and list it."""
        allowed = [owner for owner in owners if not self._is_deleted(owner, id)]
        stored = self._reader.read_chunk(id, allowed)
        return None if stored is None else self._admit(stored, None)

    def _fetch_artifact(self, owner: str, id: str, key: ArtifactKey) -> CachedPiece | None:
        """Read an artifact from the slower tiers and list it."""
        if self._is_deleted(owner, id, *key.chunks):
            return None
        stored = self._reader.read_artifact(id, owner, key)
        return None if stored is None else self._admit(stored, key)

    def close(self) -> None:
        """End the threads."""
        self._pool.close()

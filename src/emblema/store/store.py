"""The store: chunks, patches and prefixes of any number of tenants, over memory, disk and a remote tier."""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, cast

from emblema.errors import StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.patch import Patch
from emblema.store.cache import PieceCache
from emblema.store.deletion_feed import DeletionFeed, FeedFollower, Freshness
from emblema.store.identity import SHARED_SALT, artifact_id, owner_digest
from emblema.store.leases import Lease
from emblema.store.lookup import PieceLookup
from emblema.store.pieces import PieceTable
from emblema.store.prefixes import PrefixRegistry, PrefixStore
from emblema.store.record import SHARED, Absence, RemoteTier, Terms
from emblema.store.settings import StoreSettings, check_number
from emblema.store.statistics import StoreCounters, StoreStatistics
from emblema.store.tiers import TierStack

if TYPE_CHECKING:
    from emblema.store.disk import DiskTier


class AttachedResource(Protocol):
    """An object that all users of a store share and that is closed with it, such as its libraries."""

    def close(self) -> None: ...


ResourceT = TypeVar("ResourceT", bound=AttachedResource)


class Store:
    """Tiers with a budget each, and a part of them for each tenant.

    Pieces of the lowest priority are evicted first, of these the least recently used; leased pieces never are.

    Args:
        folder: of the disk tier, or an open one; None keeps pieces no longer than the process.
        device_bytes: budget of device memory for rows, kept embeddings and patches: `auto` is a quarter of what is free
            when the store is opened, None no bound. A lease may have to wait for it; pieces that are not written yet
            may exceed it until they are.
        disk_bytes: budget of the files; None for half of what is free, at most 64 GiB.
        quota: bytes that one tenant may hold in memory, and again on disk; None for no bound.
        remote: a tier beyond the disk.
        deletions: where processes with stores of their own tell each other what was deleted. Each honours it within
            `StoreSettings(deletion_seconds=…)` of its acknowledgement; one that cannot read the feed for half of that
            uses nothing that it kept before.
        settings: the settings that few users change.

    Attributes:
        device: where rows are loaded to.

    Raises:
        StoreError: an option is out of range, or the folder cannot be used.
    """

    def __init__(
        self,
        folder: "str | Path | DiskTier | None" = None,
        *,
        device_bytes: int | None | Literal["auto"] = "auto",
        disk_bytes: int | None = None,
        quota: int | None = None,
        remote: RemoteTier | None = None,
        deletions: DeletionFeed | None = None,
        settings: StoreSettings | None = None,
    ) -> None:
        self.settings = settings or StoreSettings()
        self.device = self.settings.resolve_device()
        for name, size in (("device_bytes", device_bytes), ("disk_bytes", disk_bytes), ("quota", quota)):
            if size != "auto" or name != "device_bytes":
                check_number(name, size)
        quotas = {owner_digest(salt): size for salt, size in self.settings.quotas.items()}
        if device_bytes == "auto":
            device_bytes = self.settings.device_budget()
        table = PieceTable(
            {"device": device_bytes, "host": self.settings.host_budget()},
            lambda owner: quotas.get(owner, quota),
        )
        self.disk = _open_disk(folder, disk_bytes, self.settings)
        freshness = Freshness()
        tiers = TierStack(self.disk, remote, StoreCounters(), freshness)
        self.prefixes = PrefixRegistry(self.settings.prefix_bytes, freshness)
        self.cache = PieceCache(self.settings, table, tiers, self.prefixes.forget)
        self._lock = threading.Lock()
        self._attached: dict[str, AttachedResource] = {}
        if self.disk is not None:
            self.disk.use(self.cache.in_use)
        if deletions is not None:
            self._follow(deletions, freshness)
        # Nothing below holds the store itself: one that is dropped, or left open at the end, is still written.
        self._finalizer = weakref.finalize(self, _close_dropped, self.cache)

    def _follow(self, feed: DeletionFeed, freshness: Freshness) -> None:
        """Tell others of deletions, and carry theirs out."""
        # Not the store itself: see its finalizer.
        cache, prefixes = self.cache, self.prefixes
        kept = None if self.disk is None else self.disk.path / "deletions-read"
        cache.publish = feed.publish

        def delete(owner: str, id: str) -> None:
            cache.delete(owner, id, here=True)

        def forget() -> None:
            with cache.changed:
                names = {piece.name for piece in cache.table}
            for owner, id in names | {(entry.owner, entry.id) for entry in cache.tiers.entries()}:
                cache.delete(owner, id, here=True)
            prefixes.clear()

        seconds = self.settings.deletion_seconds
        self.attached("deletions", lambda: FeedFollower(feed, freshness, delete, forget, seconds, kept))

    def tenant(self, salt: bytes = b"") -> "TenantStore":
        """Return one tenant's part of the store.

        Raises:
            StoreError: the salt is not bytes, or is the shared library's.
        """
        if salt == SHARED_SALT:
            raise StoreError("This salt is the shared library's: use `store.shared`, or give the tenant another.")
        return TenantStore(self, salt)

    @property
    def shared(self) -> "TenantStore":
        """The shared library, which every tenant reads and the administrator writes."""
        return TenantStore(self, SHARED_SALT)

    @property
    def statistics(self) -> StoreStatistics:
        """Counters and contents, of all owners together."""
        return self.statistics_of(None)

    def statistics_of(self, owner: str | None) -> StoreStatistics:
        """Return counters and contents of one owner, or of all for None."""
        with self.cache.changed:
            contents = self.cache.table.contents(owner)
        if not self.cache.tiers:
            contents["unsaved_bytes"] = 0
        return StoreStatistics(
            **self.cache.counters.of(owner),
            **contents,
            prefix_bytes=self.prefixes.bytes(owner),
            disk_bytes=0 if self.disk is None else self.disk.bytes if owner is None else self.disk.bytes_of(owner),
        )

    def attached(self, name: str, make: "Callable[[], ResourceT]") -> "ResourceT":
        """Return the object that all users of the store share under a name, made at the first call."""
        with self._lock:
            if name not in self._attached:
                self._attached[name] = make()
            return cast("ResourceT", self._attached[name])

    @property
    def version(self) -> object:
        """What is another value after every change of what is stored, by any process; None where that is not known.

        A remote tier's changes do not count.
        """
        with self.cache.changed:
            changes = (self.cache.table.changes, self.cache.table.tombstones.added)
        try:
            return (*changes, None if self.disk is None else self.disk.version)
        except StoreError:
            return None

    def expire(self) -> int:
        """Delete expired pieces, which no look-up finds in any case; returns how many went from memory."""
        return self.cache.expire()

    def flush(self) -> None:
        """Return once everything put so far is durable.

        Raises:
            StoreError: a piece is in memory only, as no slower tier took it.
        """
        self.cache.saver.flush()

    def close(self) -> None:
        """Flush, and end the threads and the tiers; a second call does nothing.

        Raises:
            StoreError: as `flush`; everything is closed even then.
        """
        with self._lock:
            attached, self._attached = list(self._attached.values()), {}
        if self.cache.closed:
            return
        self._finalizer.detach()
        with ExitStack() as last:
            last.callback(self.cache.close)
            last.callback(self.flush)
            for resource in attached:
                last.callback(resource.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TenantStore:
    """One tenant's part of a store; cheap to make, and any number of threads may use it.

    Every call reads the tenant's own pieces and the shared ones, and writes only its own. Other tenants' pieces cannot
    be seen.

    Args:
        store: the store it is a part of.
        salt: the tenant's secret.

    Attributes:
        parent: the store it is a part of, with what all tenants share.
        owner: digest of the salt, under which the tenant's pieces are kept.
    """

    def __init__(self, store: Store, salt: bytes = b"") -> None:
        # Holding the store keeps it open.
        self.parent = store
        self.salt = salt
        self.owner = owner_digest(salt)
        self._owners: tuple[str, ...] = (self.owner,) if self.owner == SHARED else (self.owner, SHARED)
        self._cache, self._lookup = store.cache, PieceLookup(store.cache, self._owners)

    @property
    def disk(self) -> "DiskTier | None":
        """The store's disk tier, which all tenants share; None without a folder."""
        return self.parent.disk

    @property
    def lookup_salts(self) -> tuple[bytes, ...]:
        """The salts to make an id with, in the order to look it up: the tenant's, then the shared library's."""
        return (self.salt,) if self.salt == SHARED_SALT else (self.salt, SHARED_SALT)

    def __contains__(self, chunk: object) -> bool:
        """Return whether a chunk's id is in any tier; does not count as a use."""
        return isinstance(chunk, str) and self._cache.holds(self._owners, chunk)

    def __len__(self) -> int:
        """Return the number of own chunks, in memory and on disk."""
        return len(self.ids())

    @property
    def bytes(self) -> int:
        """Bytes of own pieces in memory: rows, kept embeddings and patches."""
        return self.statistics.bytes

    @property
    def statistics(self) -> StoreStatistics:
        """Counters and contents, of own pieces only."""
        return self.parent.statistics_of(self.owner)

    def ids(self) -> list[str]:
        """Return ids of own chunks: those on disk alone, then those in memory, the least recently used first."""
        return self._lookup.ids()

    def find(self, chunk: str) -> Chunk | None:
        """Return the chunk with this id, or None. Its rows are read from the store when they are used."""
        piece = self._cache.find(self._owners, chunk)
        found = None if piece is None else piece.chunk
        self._cache.counters.add(self.owner, "misses" if found is None else "hits")
        return found

    def deleted(self, chunks: Iterable[str]) -> frozenset[str]:
        """Return those ids that were deleted or have expired; not those that were only evicted, or never kept."""
        return self._cache.deleted(self._owners, chunks)

    def absence(self, chunk: str, look: bool = True) -> Absence:
        """Return what is known of an own chunk that was not found.

        With `look` the disk's index is asked, once; a remote tier never.
        """
        return self._cache.absence(self.owner, chunk, look)

    def handle(self, chunk: Chunk, sizes: Sequence[int]) -> Chunk:
        """Return the handle of a chunk that is not kept yet, so that a deletion meanwhile is remembered.

        Args:
            chunk: its rows are not read.
            sizes: bytes of its rows in each layer, once they are made.
        """
        with self._cache.changed:
            return self._cache.handles.make(self.owner, chunk, sizes)

    def get(self, chunk: str) -> Chunk:
        """Return the chunk with this id.

        Raises:
            StoreError: the store does not have it.
        """
        found = self.find(chunk)
        if found is None:
            raise StoreError(f"Chunk {str(chunk)[:12]} is not in the store: it was deleted or evicted, add it again.")
        return found

    def put(self, chunk: Chunk, terms: Terms | None = None) -> Chunk:
        """Keep a chunk and return its handle; saving goes on in the background.

        A chunk that the store has under the same id is the same and is kept; terms that are given replace its terms.

        Raises:
            CapacityError: the chunk alone is larger than the budget or the tenant's quota.
            StoreError: the chunk is a handle whose rows are lost, or a number of it is NaN or infinite.
        """
        if terms is not None and terms.pinned:
            self._check_pin(chunk.id, chunk.bytes + chunk.encoded.bytes)
        kept = self._cache.put(self.owner, chunk, terms).chunk
        if kept is None:
            raise StoreError(f"{chunk.id[:12]} is the id of a patch: give a chunk.")
        return kept

    def put_unless_deleted(self, chunk: Chunk) -> bool:
        """Keep a chunk that was made in the background; returns whether it is here.

        It is not kept where it was deleted meanwhile, or where a number of it is NaN or infinite.

        Raises:
            CapacityError: as `put`.
        """
        cache, chunk = self._cache, replace(chunk, rows=tuple(chunk.rows))
        if not chunk.finite:
            return False
        with cache.changed:
            if cache.deleted(self._owners, [chunk.id]):
                return False
            if cache.get(self._owners, chunk.id) is None:
                cache.table.check_fits(self.owner, chunk.bytes + chunk.encoded.bytes)
                cache.insert_chunk(self.owner, chunk, None)
            return True

    def delete(self, chunk: str) -> bool:
        """Delete an own chunk from every tier, with every patch made from it and every prefix that holds it.

        A lease can be read to its end; no other call finds the chunk from now on, and no crash brings it back.

        Returns:
            Whether anything was here.

        Raises:
            StoreError: a tier could not be reached; this process does not use the chunk any more.
        """
        return self._cache.delete(self.owner, chunk)

    @property
    def deletions(self) -> int:
        """How many deletions and expiries the store has noted, of any owner. `deleted` only changes when it grows."""
        with self._cache.changed:
            return self._cache.table.tombstones.added

    def pin(self, chunk: str) -> bool:
        """Keep an own chunk from being evicted; returns whether it is here.

        Raises:
            CapacityError: the tenant's pins would exceed its quota, or all pins a memory without slower tiers.
        """
        self._check_pin(chunk, 0)
        return self._set_pin(chunk, True)

    def unpin(self, chunk: str) -> bool:
        """Let an own chunk be evicted again; returns whether it is here."""
        return self._set_pin(chunk, False)

    def _set_pin(self, id: str, pinned: bool) -> bool:
        cache = self._cache
        with cache.changed:
            piece = cache.get((self.owner,), id)
            if piece is not None:
                cache.table.change_terms(piece, replace(piece.terms, pinned=pinned))
                cache.make_room()
        stored = cache.is_on_disk(self.owner, id)
        if stored:
            cache.tiers.maintain("pin", lambda disk: disk.set_pin(id, pinned))
        elif piece is not None:
            cache.saver.save_again(piece)
        return stored or piece is not None

    def _check_pin(self, id: str, size: int) -> None:
        cache, owner = self._cache, self.owner
        entries = cache.tiers.entries(owner) if cache.table.quota_of(owner) is not None else []
        on_disk = {entry.id: entry.bytes for entry in entries if entry.terms.pinned or entry.id == id}
        with cache.changed:
            cache.table.check_pin((owner, id), size, on_disk if cache.tiers else None)

    def find_patch(self, key: ArtifactKey) -> Patch | None:
        """Return the patch with this key, the tenant's own before a shared one; or None."""
        found = self._cache.find_artifact(self._owners, key)
        self._cache.counters.add(self.owner, "patch_misses" if found is None else "patch_hits")
        return found

    def put_artifact(self, key: ArtifactKey, artifact: Patch) -> bool:
        """Keep a patch or another artifact in place of one with the same key; returns whether it was kept.

        It is not kept where a chunk that it was made from is not here any more, so that a deletion during its forming
        wins, nor where it alone is larger than the budget or a number of it is NaN or infinite. It belongs to the
        tenant even where all its chunks are shared, because the text before them was the tenant's.
        """
        return self._cache.put_artifact(self._owners, key, artifact)

    def has_artifact(self, key: ArtifactKey) -> bool:
        """Return whether an own artifact with this key is in memory or on disk; does not count as a use."""
        return self._cache.knows(self.owner, artifact_id(key, self.owner))

    def held(self, chunks: Iterable[str]) -> dict[str, bool]:
        """Return those of some chunks that are in memory or on disk, and whether any artifact was made of each.

        The disk's index is asked once for all, no file is touched, and a remote tier is not asked; not a use.
        """
        return self._lookup.held(list(chunks))

    def held_artifacts(self, keys: Iterable[ArtifactKey]) -> frozenset[ArtifactKey]:
        """Return those of some artifacts, own or shared, that are in memory or on disk; as `held`."""
        return self._lookup.held_artifacts(keys)

    def artifact_keys(self, chunk: str) -> list[ArtifactKey]:
        """Return keys of the own and shared artifacts of a chunk, after any antecedents.

        Of those on disk alone at most `HEADERS_READ` headers are read; a remote tier is not asked.
        """
        return self._lookup.artifact_keys(chunk)

    def delete_artifacts(self, chunk: str) -> int:
        """Delete the tenant's own artifacts made from a chunk, which itself stays; returns how many there were."""
        cache = self._cache
        with cache.changed:
            ids = {piece.id for piece in cache.table.artifacts_of(chunk) if piece.owner == self.owner}
        ids |= {id for id in cache.tiers.artifact_ids(chunk) if cache.tiers.entry(id, self.owner) is not None}
        return sum(cache.delete(self.owner, id) for id in sorted(ids))

    def prefixes(self, owner: str) -> PrefixStore:
        """Return the tenant's exact prefixes of one model and dtype, `owner` being a digest of them."""
        return self.parent.prefixes.of(self.owner, owner)

    @contextmanager
    def lease(self, ids: Iterable[str], timeout: float = 60.0) -> Iterator[Lease]:
        """Hold chunks in device memory, or on their way there, for as long as the block runs; none is evicted.

        The call waits for room, in order of arrival. Take all of a prompt's chunks in one lease: two callers that each
        wait for a second lease would wait for each other until the time-out.

        Args:
            ids: ids of chunks; one may come more than once.
            timeout: seconds to wait for room.

        Raises:
            CapacityError: the chunks together are larger than the budget, or no room came free in time.
        """
        lease = Lease(self._cache, self._owners, ids, timeout)
        try:
            yield lease
        finally:
            lease.end()

    def prefetch(self, ids: Iterable[str]) -> None:
        """Load chunks' rows into device memory in the background, as far as they fit, for a later lease."""
        cache = self._cache
        for id in ids:
            piece = cache.find(self._owners, id)
            with cache.changed:
                current = None if piece is None or piece.chunk is None else cache.relist(piece)
                if current is not None and cache.table.has_room_for(current):
                    cache.load(current)

    def flush(self) -> None:
        """Return once everything this tenant put so far is durable.

        Raises:
            StoreError: a piece is in memory only, as no slower tier took it.
        """
        self._cache.saver.flush(self.owner)


def _close_dropped(cache: PieceCache) -> None:
    if cache.process == os.getpid():
        cache.close()


def _open_disk(
    folder: "str | Path | DiskTier | None", capacity: int | None, settings: StoreSettings
) -> "DiskTier | None":
    if folder is None:
        if capacity is not None:
            raise StoreError(f"disk_bytes is {capacity}, but there is no folder: give one.")
        return None
    if not isinstance(folder, str | Path):
        if capacity is not None:
            raise StoreError(
                f"disk_bytes is {capacity}, but the disk tier is open already: it has a budget of its own."
            )
        return folder
    from emblema.store.disk import DiskTier

    return DiskTier(folder, capacity, clock=settings.clock)

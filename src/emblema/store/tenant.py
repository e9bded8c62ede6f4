"""What a tenant sees of a store: its own pieces and the shared library, nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from emblema.errors import StoreError
from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Patch
from emblema.store.identity import SHARED_SALT, owner_digest
from emblema.store.keys import PatchKey
from emblema.store.leases import Lease
from emblema.store.prefixes import PrefixStore
from emblema.store.record import SHARED, Terms
from emblema.store.statistics import StoreStatistics

if TYPE_CHECKING:
    from emblema.store.store import Store


class TenantStore:
    """One tenant's part of a store; cheap to make, and any number of threads may use it.

    Every call reads the tenant's own pieces and the shared ones, and writes its own alone. What belongs to somebody
    else is not here.

    Args:
        store: the store it is a part of.
        salt: the tenant's secret.
    """

    def __init__(self, store: "Store", salt: bytes = b"") -> None:
        self.store = store
        self.salt = salt
        self.owner = owner_digest(salt)
        self._owners: tuple[str, ...] = (self.owner,) if self.owner == SHARED else (self.owner, SHARED)
        self._keeper = store.keeper

    @property
    def lookup_salts(self) -> tuple[bytes, ...]:
        """The salts to make an id with, in the order to look it up: the tenant's, then the shared library's."""
        return (self.salt,) if self.salt == SHARED_SALT else (self.salt, SHARED_SALT)

    @property
    def capacity_bytes(self) -> int | None:
        """The budget of device memory, which one prompt's chunks have to fit into; None for no bound."""
        return self._keeper.memory.budgets["device"]

    def __contains__(self, chunk: object) -> bool:
        """Whether a chunk's id is here in any tier; not counted as a use."""
        return isinstance(chunk, str) and self._keeper.holds(self._owners, chunk)

    def __len__(self) -> int:
        """Number of own chunks, in memory and on disk."""
        return len(self.ids())

    @property
    def bytes(self) -> int:
        """Bytes of own pieces in memory: rows, kept embeddings and patches."""
        return self.statistics.bytes

    @property
    def statistics(self) -> StoreStatistics:
        """Counters and contents, of own pieces only."""
        return self.store.statistics_of(self.owner)

    def ids(self) -> list[str]:
        """Ids of own chunks: those on disk alone, then those in memory, the least recently used first."""
        return self._keeper.ids(self.owner)

    def find(self, chunk: str) -> Chunk | None:
        """The chunk with this id, or None. Its rows are read from the store where and when they are used."""
        piece = self._keeper.find(self._owners, chunk)
        found = None if piece is None else piece.chunk
        self._keeper.counts.add(self.owner, "misses" if found is None else "hits")
        return found

    def deleted(self, chunks: Iterable[str]) -> frozenset[str]:
        """Those ids that were deleted, or have expired, while somebody had a handle of theirs or a piece was under way.

        A chunk that was merely evicted, or never kept, is not among them.
        """
        return self._keeper.deleted(self._owners, chunks)

    def handle(self, chunk: Chunk, sizes: Sequence[int]) -> Chunk:
        """The handle of a chunk that is not kept yet, so that its deletion is known to whoever holds it.

        Args:
            sizes: bytes of its rows in each layer, once they are made.
        """
        return self._keeper.handle(chunk, self.owner, sizes)

    def get(self, chunk: str) -> Chunk:
        """The chunk with this id.

        Raises:
            StoreError: it is not here (any more).
        """
        found = self.find(chunk)
        if found is None:
            raise StoreError(f"Chunk {str(chunk)[:12]} is not in the store: it was deleted or evicted, add it again.")
        return found

    def put(self, chunk: Chunk, terms: Terms | None = None) -> Chunk:
        """Keep a chunk, and give back its handle; saving goes on in the background.

        What is here already under the id stays, being the same; terms that are given replace its terms.

        Raises:
            CapacityError: the chunk alone is larger than the budget or the tenant's quota.
            StoreError: the chunk is a handle whose rows are lost.
        """
        kept = self._keeper.put(self.owner, chunk, terms).chunk
        if kept is None:
            raise StoreError(f"{chunk.id[:12]} is the id of a patch: give a chunk.")
        return kept

    def put_unless_deleted(self, chunk: Chunk) -> bool:
        """As `put`, for a chunk made behind a caller's back: a deletion that came meanwhile wins. Whether it is here.

        Raises:
            CapacityError: as `put`.
        """
        with self._keeper.changed:
            if self.deleted([chunk.id]):
                return False
            if self._keeper.lookup(self._owners, chunk.id) is None:
                self._keeper.put(self.owner, chunk, None)
            return True

    def delete(self, chunk: str) -> bool:
        """Delete an own chunk from every tier, with every patch made from it and every prefix that holds it.

        A plan that holds a lease reads on to its end; nobody else finds the chunk from here on, nor does a crash bring
        it back. Returns whether anything was here.

        Raises:
            StoreError: a tier could not be reached; the chunk is out of use here all the same.
        """
        forgotten = self.store.forget_prefixes(self.owner, chunk)
        return self._keeper.delete(self.owner, chunk) or forgotten

    @property
    def deletions(self) -> int:
        """Grows with every deletion and expiry in the store, whoever's: while it stays, `deleted` says what it said."""
        return self._keeper.deletions

    def pin(self, chunk: str) -> bool:
        """Keep an own chunk from being evicted; whether it is here."""
        return self._keeper.set_pin(self.owner, chunk, True)

    def unpin(self, chunk: str) -> bool:
        """Let an own chunk be evicted again; whether it is here."""
        return self._keeper.set_pin(self.owner, chunk, False)

    def find_patch(self, key: PatchKey) -> Patch | None:
        """The patch with this key, the tenant's own before a shared one; None where there is none, or another kind."""
        found = self.find_artifact(key)
        return found if isinstance(found, Patch) else None

    def find_artifact(self, key: PatchKey) -> Artifact | None:
        """The patch or other artifact with this key, the tenant's own before a shared one; or None."""
        found = self._keeper.patches.find(self._owners, key)
        self._keeper.counts.add(self.owner, "patch_misses" if found is None else "patch_hits")
        return found

    def put_patch(self, key: PatchKey, patch: Artifact) -> bool:
        """Keep a patch, in place of one with the same key; whether it was kept.

        It is not where a chunk that it was made from is not here any more, so that a patch whose forming was overtaken
        by a deletion does not bring anything deleted back; nor where it alone is larger than the budget. It is the
        tenant's even where all its chunks are shared: the text in front of them was the tenant's.
        """
        return self._keeper.patches.put(self._owners, key, patch)

    def has_patch(self, key: PatchKey) -> bool:
        """Whether an own patch with this key is in memory or on disk; not counted as a use."""
        return self._keeper.patches.holds(self._owners, key)

    def patch_keys(self, chunk: str) -> list[PatchKey]:
        """Keys of the patches made of a chunk that this tenant can find, whatever stood before it: own and shared ones.

        Of what is on disk alone at most 64 headers are read; a remote tier is not asked.
        """
        return self._keeper.patches.keys(self._owners, chunk)

    def forget_patches(self, chunk: str) -> int:
        """Delete the tenant's own patches made from a chunk, which itself stays; how many there were."""
        return self._keeper.patches.forget(self.owner, chunk)

    def prefixes(self, owner: str) -> PrefixStore:
        """The tenant's exact prefixes of one model and dtype, named by a digest of them."""
        return self.store.prefixes_of(self.owner, owner)

    @contextmanager
    def lease(self, ids: Iterable[str], timeout: float = 60.0) -> Iterator[Lease]:
        """Hold chunks for as long as the block runs, in device memory or on their way there: none is evicted.

        Where other leases leave no room the call waits, in order of arrival. Take all of a prompt's chunks in one
        lease: two callers that each wait for a second one would wait for each other until the time-out.

        Args:
            ids: ids of chunks; one may come more than once.
            timeout: seconds to wait for room.

        Raises:
            CapacityError: the chunks together are larger than the budget, or no room came free in time.
        """
        lease = Lease(self._keeper, self._owners)
        try:
            lease.begin(list(ids), timeout, self.store.waiting)
            yield lease
        finally:
            lease.end()

    def prefetch(self, ids: Iterable[str]) -> None:
        """Have chunks' rows come to device memory in the background, as far as they fit, for a lease to come."""
        memory = self._keeper.memory
        for id in ids:
            piece = self._keeper.find(self._owners, id)
            if piece is None or piece.chunk is None:
                continue
            with self._keeper.changed:
                current = self._keeper.traffic.relist(piece)
                budget = memory.budgets["device"]
                if current is None or (budget is not None and memory.busy + current.whole > budget):
                    continue
                self._keeper.traffic.activate(current)

    def flush(self) -> None:
        """Return once everything this tenant put so far is durable.

        Raises:
            StoreError: a piece is in memory only, as no slower tier took it.
        """
        self._keeper.flush(self.owner)

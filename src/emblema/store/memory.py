"""The store in memory: chunks and their patches within a budget of bytes, the least recently used going first."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emblema.errors import CapacityError, StoreError
from emblema.kv.chunk import Chunk
from emblema.kv.patch import Patch
from emblema.store.keys import PatchKey
from emblema.store.prefixes import PrefixStore


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since the store was made, and what it holds now."""

    hits: int
    misses: int
    patch_hits: int
    patch_misses: int
    evictions: int
    chunks: int
    patches: int
    bytes: int
    leased_bytes: int


class MemoryStore:
    """Chunks by id and patches by key, shared by any number of threads.

    The budget covers canonical rows, kept embeddings and patches. Leased chunks are never evicted; while leases are
    held, a newly put piece may take the store over its budget, and the last lease's end brings it back.

    Args:
        capacity_bytes: the budget; None for no bound.
        prefix_bytes: the budget of each owner's exact prefixes, apart from the first.
    """

    def __init__(self, capacity_bytes: int | None = None, prefix_bytes: int = 256 * 2**20) -> None:
        if capacity_bytes is not None and capacity_bytes <= 0:
            raise StoreError(f"A store of {capacity_bytes} bytes holds nothing: give a positive number, or None.")
        self.capacity_bytes = capacity_bytes
        self.prefix_bytes = prefix_bytes
        self._prefixes: dict[str, PrefixStore] = {}
        # Guards everything below; waited on by leases, notified when one ends.
        self._changed = threading.Condition(threading.RLock())
        # Least recently used first. A chunk lies under its id, a patch under its key.
        self._held: OrderedDict[str | PatchKey, Chunk | Patch] = OrderedDict()
        self._sizes: dict[str | PatchKey, int] = {}
        self._patches_of: dict[str, set[PatchKey]] = {}
        self._bytes = 0
        # Chunks that may not be evicted, and of these the ones whose lease has begun, with the number of leases.
        self._pinned: Counter[str] = Counter()
        self._leased: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()

    def __contains__(self, chunk: object) -> bool:
        """Whether a chunk's id is held; not counted as a use."""
        with self._changed:
            return isinstance(chunk, str) and chunk in self._held

    def __len__(self) -> int:
        """Number of chunks."""
        with self._changed:
            return sum(isinstance(key, str) for key in self._held)

    @property
    def bytes(self) -> int:
        """Bytes held: rows, kept embeddings and patches."""
        with self._changed:
            return self._bytes

    @property
    def statistics(self) -> StoreStatistics:
        with self._changed:
            chunks = len(self)
            return StoreStatistics(
                hits=self._counts["hits"],
                misses=self._counts["misses"],
                patch_hits=self._counts["patch hits"],
                patch_misses=self._counts["patch misses"],
                evictions=self._counts["evictions"],
                chunks=chunks,
                patches=len(self._held) - chunks,
                bytes=self._bytes,
                leased_bytes=self._sum(self._leased),
            )

    def ids(self) -> list[str]:
        """Ids of all chunks, the least recently used first."""
        with self._changed:
            return [key for key in self._held if isinstance(key, str)]

    def find(self, chunk: str) -> Chunk | None:
        """The chunk with this id, or None."""
        with self._changed:
            found = self._touch(chunk)
            self._counts["misses" if found is None else "hits"] += 1
            return found if isinstance(found, Chunk) else None

    def get(self, chunk: str) -> Chunk:
        """The chunk with this id.

        Raises:
            StoreError: it is not here (any more).
        """
        found = self.find(chunk)
        if found is None:
            raise StoreError(f"Chunk {str(chunk)[:12]} is not in the store: it was deleted or evicted, add it again.")
        return found

    def put(self, chunk: Chunk) -> None:
        """Keep a chunk; one with the same id is replaced.

        Raises:
            CapacityError: the chunk alone is larger than the budget.
        """
        self._insert(chunk.id, chunk, chunk.bytes + chunk.encoded.bytes)

    def delete(self, chunk: str) -> bool:
        """Forget a chunk, every patch made from it and every prefix that holds it, leased or not; True if any was.

        A plan that holds a lease keeps its own reference to the end; nobody else finds the chunk from here on.
        """
        with self._changed:
            keys: list[str | PatchKey] = [chunk, *self._patches_of.get(chunk, ())]
            found = [key for key in keys if key in self._held]
            for key in found:
                self._remove(key)
            kept = [prefixes.forget(chunk) for prefixes in self._prefixes.values()]
            return bool(found) or any(kept)

    def prefixes(self, owner: str) -> PrefixStore:
        """The exact prefixes of one owner: a digest of model, dtype and tenant, which share nothing with another's."""
        with self._changed:
            return self._prefixes.setdefault(owner, PrefixStore(self.prefix_bytes))

    def flush(self) -> None:
        """Return once everything is durable; memory has nothing to wait for."""

    def find_patch(self, key: PatchKey) -> Patch | None:
        """The patch with this key, or None."""
        with self._changed:
            found = self._touch(key)
            self._counts["patch misses" if found is None else "patch hits"] += 1
            return found if isinstance(found, Patch) else None

    def put_patch(self, key: PatchKey, patch: Patch) -> bool:
        """Keep a patch, in place of one with the same key; whether it was kept.

        It is not where a chunk that it was made from is not here any more, so that a patch whose forming was overtaken
        by a deletion does not bring anything deleted back; nor where it alone is larger than the budget.
        """
        with self._changed:
            too_large = self.capacity_bytes is not None and patch.bytes > self.capacity_bytes
            if too_large or not all(chunk in self._held for chunk in key.chunks):
                return False
            self._insert(key, patch, patch.bytes)
            return True

    @contextmanager
    def lease(
        self, ids: Iterable[str], timeout: float = 60.0, skip_absent: bool = False
    ) -> Iterator[tuple[Chunk, ...]]:
        """Hold chunks for as long as the block runs: nothing under their ids is evicted. Yields them in order.

        Where other leases leave no room the call waits. Take all of a prompt's chunks in one lease: two callers that
        each wait for a second one would wait for each other until the time-out.

        Args:
            ids: ids of chunks in the store; one may come more than once.
            timeout: seconds to wait for room.
            skip_absent: leave out ids that are not here instead of refusing.

        Raises:
            StoreError: a chunk is not here (any more).
            CapacityError: the chunks together are larger than the budget, or no room came free in time.
        """
        with self._changed:
            wanted = [chunk for chunk in ids if not skip_absent or chunk in self._held]
            distinct = set(wanted)
            chunks = tuple(self._leasable(chunk) for chunk in wanted)
            self._check_budget(self._sum(distinct), f"A prompt's {len(distinct)} chunks")
            self._pinned.update(distinct)
            try:
                if not self._changed.wait_for(lambda: self._has_room(distinct), timeout):
                    raise CapacityError(
                        f"No room for {len(distinct)} chunks came free in {timeout:g} s: run fewer prompts at a time, "
                        "or give the store a larger budget."
                    )
            except BaseException:
                self._release(distinct, self._pinned)
                raise
            self._leased.update(distinct)
        try:
            yield chunks
        finally:
            with self._changed:
                self._release(distinct, self._leased, self._pinned)

    def _leasable(self, chunk: str) -> Chunk:
        found = self._touch(chunk)
        if not isinstance(found, Chunk):
            raise StoreError(f"Chunk {chunk[:12]} is not in the store: it was deleted or evicted, add it again.")
        return found

    def _has_room(self, ids: set[str]) -> bool:
        return self.capacity_bytes is None or self._sum(ids | self._leased.keys()) <= self.capacity_bytes

    def _release(self, ids: set[str], *counters: Counter[str]) -> None:
        for counter in counters:
            counter.subtract(ids)
            for chunk in ids:
                if counter[chunk] <= 0:
                    del counter[chunk]
        self._evict()
        self._changed.notify_all()

    def _sum(self, ids: Iterable[str]) -> int:
        return sum(self._sizes.get(chunk, 0) for chunk in ids)

    def _check_budget(self, size: int, what: str) -> None:
        if self.capacity_bytes is not None and size > self.capacity_bytes:
            raise CapacityError(f"{what} need {size} bytes; the store's budget is {self.capacity_bytes}.")

    def _touch(self, key: str | PatchKey) -> Chunk | Patch | None:
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def _insert(self, key: str | PatchKey, item: Chunk | Patch, size: int) -> None:
        self._check_budget(size, "One piece's rows")
        with self._changed:
            if key in self._held:
                self._remove(key)
            self._held[key] = item
            self._sizes[key] = size
            self._bytes += size
            if isinstance(key, PatchKey):
                for chunk in key.chunks:
                    self._patches_of.setdefault(chunk, set()).add(key)
            self._evict(spare=key)

    def _remove(self, key: str | PatchKey) -> None:
        del self._held[key]
        self._bytes -= self._sizes.pop(key)
        if isinstance(key, PatchKey):
            for chunk in key.chunks:
                self._patches_of[chunk].discard(key)
                if not self._patches_of[chunk]:
                    del self._patches_of[chunk]

    def _evict(self, spare: str | PatchKey | None = None) -> None:
        """Let the least recently used go until the budget holds; patches of an evicted chunk stay, it may come back."""
        if self.capacity_bytes is None or self._bytes <= self.capacity_bytes:
            return
        for key in list(self._held):
            if key != spare and key not in self._pinned:
                self._remove(key)
                self._counts["evictions"] += 1
                if self._bytes <= self.capacity_bytes:
                    return

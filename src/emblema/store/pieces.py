"""Pieces in memory: their state, their bytes in each tier, and which of them go first."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from emblema.errors import CapacityError
from emblema.kv.chunk import Chunk
from emblema.kv.keys import ArtifactKey
from emblema.kv.layout import KVRows
from emblema.kv.patch import Patch
from emblema.store.handles import StoredRows
from emblema.store.record import Departure, Name, Terms

MemoryTier = Literal["device", "host"]
MEMORY_TIERS: tuple[MemoryTier, MemoryTier] = ("device", "host")

TOMBSTONES_PER_OWNER = 2**16
DEPARTED_PER_OWNER = 2**12
"""Evicted and expired chunks of each owner that are remembered as such."""


@dataclass(slots=True, eq=False)
class CachedPiece:
    """A chunk, or an artifact of a chunk such as a patch, in memory. Guarded by the cache's lock.

    Attributes:
        owner, id: whose, and which.
        terms: how long it is kept.
        created: Unix time in seconds.
        began, accessed: Unix times when it was created and last used.
        chunk: the handle given out, with the encoding; None for an artifact.
        rows: a tuple when they are here, ArrivingRows while they are loaded, None when only a slower tier has them.
        key, artifact: of a patch or another artifact; None for a chunk.
        tier: where `rows` are.
        copy_bytes: bytes held in the other memory tier too while they are copied.
        loading: whether a load or copy is going on, even when nobody waits for it any more.
        leases: running requests that hold it.
        indexed: whether it is in the table and can be found.
        saved, pending, failed: the slower tiers that have it, will get it, and did not take it.
        used: whether it was found since it came here. An artifact that never was goes before all of its priority.
        evicting: whether it leaves memory once it is saved.
        accounted_bytes: bytes counted for it in each memory tier.
        loaded_at: when it came into memory, in monotonic time.
    """

    owner: str
    id: str
    terms: Terms
    created: float
    began: float
    accessed: float
    chunk: Chunk | None = None
    rows: KVRows | None = None
    key: ArtifactKey | None = None
    artifact: Patch | None = None
    tier: MemoryTier = "device"
    copy_bytes: int = 0
    loading: bool = False
    leases: int = 0
    indexed: bool = False
    saved: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    used: bool = False
    evicting: bool = False
    accounted_bytes: dict[MemoryTier, int] = field(default_factory=dict)
    loaded_at: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> Name:
        return self.owner, self.id

    @property
    def rank(self) -> tuple[int, bool]:
        """Its place in the order of eviction: by priority, then artifacts that have saved nothing yet, then others."""
        return self.terms.priority, self.used or self.key is None

    @property
    def sources(self) -> frozenset[str]:
        """Ids of the chunks that an artifact was made from; empty for a chunk."""
        return frozenset() if self.key is None else self.key.chunks

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each layer's rows."""
        rows = None if self.chunk is None else self.chunk.rows
        return rows.sizes if isinstance(rows, StoredRows) else ()

    @property
    def full_bytes(self) -> int:
        """Bytes with all rows."""
        if self.chunk is not None:
            return self.chunk.encoded.bytes + self.chunk.bytes
        return 0 if self.artifact is None else self.artifact.bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of what is in memory or being loaded."""
        if self.chunk is not None and self.rows is None:
            return self.chunk.encoded.bytes
        return self.full_bytes

    @property
    def busy(self) -> bool:
        """Whether it may not be evicted now: a request holds it, or its rows are being loaded or copied."""
        return self.leases > 0 or self.loading

    def is_expired(self, now: float) -> bool:
        """Return whether its terms have run out at a Unix time."""
        age, idle = self.terms.seconds, self.terms.idle_seconds
        return (age is not None and now - self.began >= age) or (idle is not None and now - self.accessed >= idle)


class Tombstones:
    """Names by owner, as of deleted and expired pieces, so that nothing under way brings them back.

    Args:
        limit: names remembered of each owner, the latest; one tenant's do not push out another's.

    Attributes:
        added: how many names were ever added.
    """

    def __init__(self, limit: int = TOMBSTONES_PER_OWNER) -> None:
        self._limit = limit
        self._ids: dict[str, OrderedDict[str, None]] = {}
        self.added = 0

    def __contains__(self, name: Name) -> bool:
        owner, id = name
        return id in self._ids.get(owner, ())

    def add(self, name: Name) -> None:
        owner, id = name
        ids = self._ids.setdefault(owner, OrderedDict())
        self.added += 1
        ids[id] = None
        ids.move_to_end(id)
        if len(ids) > self._limit:
            ids.popitem(last=False)

    def discard(self, name: Name) -> None:
        owner, id = name
        ids = self._ids.get(owner)
        if ids is not None:
            ids.pop(id, None)
            if not ids:
                del self._ids[owner]


class PieceTable:
    """All pieces in memory in their order of use, the bytes of each tier and owner, and what was deleted.

    Args:
        budgets: bytes of each memory tier; None for no bound.
        quota_of: bytes that an owner may hold in memory; None for no bound.

    Attributes:
        changed: the one lock of the cache, reentrant, held at every call and notified of every change.
    """

    def __init__(self, budgets: Mapping[MemoryTier, int | None], quota_of: Callable[[str], int | None]) -> None:
        self.changed = threading.Condition()
        self.budgets = dict(budgets)
        self.quota_of = quota_of
        self.bytes: Counter[MemoryTier] = Counter()
        self.leased_bytes = 0
        self.leased_bytes_of: Counter[str] = Counter()
        self.tombstones = Tombstones()
        # Chunks that left memory otherwise; what another tier still has is found all the same.
        self._evicted, self._expired = Tombstones(DEPARTED_PER_OWNER), Tombstones(DEPARTED_PER_OWNER)
        # How often a piece was listed or unlisted.
        self.changes = 0
        self._owner_bytes: Counter[tuple[str, MemoryTier]] = Counter()
        self._pieces: dict[Name, CachedPiece] = {}
        # By tier and rank, the least recently used first.
        self._queues: dict[MemoryTier, dict[tuple[int, bool], OrderedDict[Name, CachedPiece]]] = {
            tier: {} for tier in MEMORY_TIERS
        }
        self._artifacts: dict[str, set[Name]] = {}

    def __iter__(self) -> Iterator[CachedPiece]:
        """Iterate over all pieces; in each tier the lower ranks and the least recently used come first."""
        for tier in reversed(MEMORY_TIERS):
            for rank in sorted(self._queues[tier]):
                yield from list(self._queues[tier][rank].values())

    def get(self, name: Name) -> CachedPiece | None:
        return self._pieces.get(name)

    def artifacts_of(self, chunk: str) -> list[CachedPiece]:
        """Return the patches and other artifacts in memory that were made from a chunk."""
        return [self._pieces[name] for name in self._artifacts.get(chunk, ())]

    def insert(self, piece: CachedPiece) -> None:
        """List a piece as the most recently used; lifts its tombstone. Its name must be free."""
        piece.indexed = True
        self.changes += 1
        self._pieces[piece.name] = piece
        self._enqueue(piece)
        for names in (self.tombstones, self._evicted, self._expired):
            names.discard(piece.name)
        for chunk in piece.sources:
            self._artifacts.setdefault(chunk, set()).add(piece.name)
        self.recount(piece)

    def remove(self, piece: CachedPiece) -> None:
        """Unlist a piece; its bytes stay counted while a lease or a load holds them."""
        if not piece.indexed:
            return
        self._dequeue(piece)
        piece.indexed = False
        self.changes += 1
        piece.pending.clear()
        del self._pieces[piece.name]
        for chunk in piece.sources:
            self._artifacts[chunk].discard(piece.name)
            if not self._artifacts[chunk]:
                del self._artifacts[chunk]
        self.recount(piece)

    def note_departure(self, piece: CachedPiece, how: Departure) -> None:
        """Remember how a chunk left memory, until it is listed again; deletions are remembered by their tombstones."""
        if piece.chunk is not None and how != "deleted":
            (self._evicted if how == "evicted" else self._expired).add(piece.name)

    def departure(self, name: Name) -> Departure | None:
        """Return how a piece that is not here left memory, as far as it is remembered."""
        if name in self._expired:
            return "expired"
        if name in self.tombstones:
            return "deleted"
        return "evicted" if name in self._evicted else None

    def touch(self, piece: CachedPiece, now: float) -> None:
        """Make a piece the most recently used, at a Unix time."""
        piece.accessed = now
        if not piece.used:
            self._dequeue(piece)
            piece.used = True
            self._enqueue(piece)
        elif piece.indexed:
            self._queues[piece.tier][piece.rank].move_to_end(piece.name)

    def move(self, piece: CachedPiece, tier: MemoryTier) -> None:
        """Count a piece in another memory tier, as the most recently used there."""
        self._dequeue(piece)
        piece.tier = tier
        self._enqueue(piece)
        self.recount(piece)

    def change_terms(self, piece: CachedPiece, terms: Terms) -> None:
        self._dequeue(piece)
        piece.terms = terms
        self._enqueue(piece)

    def recount(self, piece: CachedPiece) -> None:
        """Bring the counted bytes up to what the piece holds now."""
        here = piece.indexed or piece.busy
        other: MemoryTier = "host" if piece.tier == "device" else "device"
        now = {piece.tier: piece.held_bytes if here else 0, other: piece.copy_bytes if here else 0}
        for tier, size in now.items():
            change = size - piece.accounted_bytes.get(tier, 0)
            self.bytes[tier] += change
            self._owner_bytes[piece.owner, tier] += change
        piece.accounted_bytes = now

    def lease(self, piece: CachedPiece, change: int) -> None:
        """Count one lease more (1) or less (-1)."""
        before = piece.leases
        piece.leases += change
        if bool(before) != bool(piece.leases):
            step = piece.full_bytes if piece.leases else -piece.full_bytes
            self.leased_bytes += step
            self.leased_bytes_of[piece.owner] += step
        self.recount(piece)

    def bytes_of(self, owner: str | None) -> dict[MemoryTier, int]:
        """Return the bytes in each tier, of one owner or of all."""
        return {tier: self.bytes[tier] if owner is None else self._owner_bytes[owner, tier] for tier in MEMORY_TIERS}

    def contents(self, owner: str | None) -> dict[str, int]:
        """Return the fields of `StoreStatistics` about pieces in memory, of one owner or, for None, of all."""
        pieces, tiers = [piece for piece in self if owner in (None, piece.owner)], self.bytes_of(owner)
        return {
            "chunks": sum(piece.chunk is not None for piece in pieces),
            "patches": sum(piece.artifact is not None for piece in pieces),
            "bytes": sum(tiers.values()),
            "device_bytes": tiers["device"],
            "host_bytes": tiers["host"],
            "leased_bytes": self.leased_bytes if owner is None else self.leased_bytes_of[owner],
            "unsaved_bytes": sum(piece.held_bytes for piece in pieces if not piece.saved),
        }

    def has_room_for(self, piece: CachedPiece) -> bool:
        """Return whether a piece's rows fit into device memory beside what is leased or being loaded."""
        loading = (piece.full_bytes for piece in self._pieces.values() if piece.loading and not piece.leases)
        budget = self.budgets["device"]
        return budget is None or self.leased_bytes + sum(loading) + piece.full_bytes <= budget

    def excess(self, tier: MemoryTier) -> int:
        """Return the bytes beyond a tier's budget; 0 or less where it holds."""
        budget = self.budgets[tier]
        return 0 if budget is None else self.bytes[tier] - budget

    def quota_excess(self, owner: str) -> int:
        """Return the bytes beyond an owner's quota; 0 or less where it holds."""
        quota = self.quota_of(owner)
        return 0 if quota is None else sum(self.bytes_of(owner).values()) - quota

    def victims(
        self, tier: MemoryTier, excess: int, spare: CachedPiece | None, owner: str | None = None
    ) -> list[CachedPiece]:
        """Return the pieces to evict for `excess` bytes: lower ranks first, then the least recently used.

        Never a busy one, nor a pinned one that no slower tier has. Pieces that are leaving already count towards the
        excess and are not returned.

        Args:
            spare: stays in any case.
            owner: evict this owner's pieces only; None for any.
        """
        chosen: list[CachedPiece] = []
        for rank in sorted(self._queues[tier]):
            for piece in self._queues[tier][rank].values():
                if excess <= 0:
                    return chosen
                if piece is spare or piece.busy or (owner is not None and piece.owner != owner):
                    continue
                if piece.terms.pinned and not piece.saved:
                    continue
                if not piece.evicting:
                    chosen.append(piece)
                excess -= piece.held_bytes
        return chosen

    def fits(self, owner: str, size: int) -> bool:
        """Return whether a piece of this size may be kept at all."""
        return all(bound is None or size <= bound for bound in (self.budgets["device"], self.quota_of(owner)))

    def check_fits(self, owner: str, size: int) -> None:
        """Raise CapacityError where a piece alone is larger than the device budget or its owner's quota."""
        budget, quota = self.budgets["device"], self.quota_of(owner)
        if budget is not None and size > budget:
            raise CapacityError(f"One piece's rows need {size} bytes; the store's budget is {budget}.")
        if quota is not None and size > quota:
            raise CapacityError(f"One piece's rows need {size} bytes; its owner's quota is {quota}.")

    def check_pin(self, name: Name, size: int, on_disk: Mapping[str, int] | None) -> None:
        """Check that one more piece may be pinned. Pins are never evicted, so they are bounded when they are set.

        Args:
            name: of the piece.
            size: its bytes, counted where it is neither in memory nor on disk.
            on_disk: bytes of the owner's pinned files and of this piece's file, by id; None without slower tiers.

        Raises:
            CapacityError: the owner's pins would exceed its quota, or all pins a memory without slower tiers.
        """
        owner, id = name
        budget, quota = self.budgets["device"], self.quota_of(owner)
        pinned = {piece.name: piece.full_bytes for piece in self if piece.terms.pinned or piece.id == id}
        total = sum(pinned.values()) + (0 if name in pinned else size)
        if on_disk is None and budget is not None and total > budget:
            raise CapacityError(f"{id[:12]} cannot be pinned: pinned pieces would take {total} bytes of {budget}.")
        if quota is None:
            return
        own = {other: held for (holder, other), held in pinned.items() if holder == owner}
        for other, held in (on_disk or {}).items():
            own[other] = max(own.get(other, 0), held)
        total = sum(own.values()) + (0 if id in own else size)
        if total > quota:
            raise CapacityError(f"{id[:12]} cannot be pinned: its owner's pins would take {total} bytes of {quota}.")

    def _enqueue(self, piece: CachedPiece) -> None:
        if piece.indexed:
            self._queues[piece.tier].setdefault(piece.rank, OrderedDict())[piece.name] = piece

    def _dequeue(self, piece: CachedPiece) -> None:
        if piece.indexed:
            queue = self._queues[piece.tier][piece.rank]
            del queue[piece.name]
            if not queue:
                del self._queues[piece.tier][piece.rank]

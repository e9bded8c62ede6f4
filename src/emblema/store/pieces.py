"""What memory holds: pieces by owner and id, in their order of use, with their bytes in each tier.

Life of a piece. It is *put* (rows in device memory) or *found* on a slower tier (its encoding in memory, rows None).
A lease or a reading makes its rows *arrive*. Want of room moves them from device to host memory and from there out;
what a slower tier has not got yet is written first (`pending`, `leaving`). *Lost* is what no tier has any more: it may
be made and stored again. *Deleted* and *expired* pieces leave a tombstone, which only putting them again lifts:
whatever was under way (a save, a load, the forming of a patch) finds it, or its piece unlisted, and comes to nothing.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from emblema.kv.artifacts import Artifact
from emblema.kv.chunk import Chunk
from emblema.kv.layout import KVRows
from emblema.store.handles import StoredRows
from emblema.store.keys import PatchKey
from emblema.store.record import Name, Terms
from emblema.store.tombstones import Tombstones

MemoryTier = Literal["device", "host"]
TIERS: tuple[MemoryTier, MemoryTier] = ("device", "host")


@dataclass(slots=True, eq=False)
class Piece:
    """A chunk or a patch in memory. Guarded by the store's lock.

    Attributes:
        owner, id: whose, and which.
        terms: how long it is kept.
        created: Unix time.
        began, accessed: when it was created and last used, in steady time.
        chunk: the handle given out, with the encoding; None for a patch.
        rows: a tuple where they are here, ArrivingRows under way, None where only a slower tier has them.
        key, artifact: of a patch or another artifact.
        tier: where `rows` are.
        moving: bytes held in the other tier too, while they are copied.
        loading: whether a load or copy is under way, even where nobody waits for it any more.
        leases: running requests that hold it.
        listed: whether it can be found.
        saved, pending, failed: the slower tiers that have it, will have it, and would not take it.
        leaving: whether it goes once it is saved.
    """

    owner: str
    id: str
    terms: Terms
    created: float
    began: float
    accessed: float
    chunk: Chunk | None = None
    rows: KVRows | None = None
    key: PatchKey | None = None
    artifact: Artifact | None = None
    tier: MemoryTier = "device"
    moving: int = 0
    loading: bool = False
    leases: int = 0
    listed: bool = False
    saved: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    leaving: bool = False
    charged: dict[MemoryTier, int] = field(default_factory=dict)

    @property
    def name(self) -> Name:
        return self.owner, self.id

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each layer's rows."""
        rows = None if self.chunk is None else self.chunk.rows
        return rows.sizes if isinstance(rows, StoredRows) else ()

    @property
    def whole(self) -> int:
        """Bytes with all rows."""
        if self.chunk is not None:
            return self.chunk.encoded.bytes + self.chunk.bytes
        return 0 if self.artifact is None else self.artifact.bytes

    def expired(self, now: float) -> bool:
        """Whether its time has come, in steady time."""
        age, idle = self.terms.seconds, self.terms.idle_seconds
        return (age is not None and now - self.began >= age) or (idle is not None and now - self.accessed >= idle)

    @property
    def held(self) -> int:
        """Bytes of what is in memory, or on its way there."""
        if self.chunk is not None and self.rows is None:
            return self.chunk.encoded.bytes
        return self.whole


class Memory:
    """The table of pieces, with what each tier and owner holds. Every call is made under the store's lock.

    Args:
        budgets: bytes of each tier; None for no bound.
    """

    def __init__(self, budgets: Mapping[MemoryTier, int | None]) -> None:
        self.budgets = dict(budgets)
        self.bytes: Counter[MemoryTier] = Counter()
        self.owned: Counter[str] = Counter()
        self._owned_in: Counter[tuple[str, MemoryTier]] = Counter()
        # Bytes that leases hold, in all and of each owner.
        self.leased = 0
        self.leased_of: Counter[str] = Counter()
        self.tombstones = Tombstones()
        self._pieces: dict[Name, Piece] = {}
        # Least recently used first, for each priority.
        self._order: dict[MemoryTier, dict[int, OrderedDict[Name, Piece]]] = {tier: {} for tier in TIERS}
        self._patches_of: dict[str, set[Name]] = {}

    def __iter__(self) -> Iterator[Piece]:
        """All pieces; of each tier the lower priorities and the least recently used first."""
        for tier in reversed(TIERS):
            for priority in sorted(self._order[tier]):
                yield from list(self._order[tier][priority].values())

    def get(self, name: Name) -> Piece | None:
        return self._pieces.get(name)

    def patches_of(self, chunk: str) -> list[Piece]:
        """Patches in memory that were made from a chunk."""
        return [self._pieces[name] for name in self._patches_of.get(chunk, ())]

    def insert(self, piece: Piece) -> None:
        """List a piece, as the most recently used; its name is free."""
        piece.listed = True
        self._pieces[piece.name] = piece
        self._line(piece)[piece.name] = piece
        self.tombstones.discard(piece.name)
        for chunk in () if piece.key is None else piece.key.chunks:
            self._patches_of.setdefault(chunk, set()).add(piece.name)
        self.settle(piece)

    def remove(self, piece: Piece, gone: bool = False) -> None:
        """Unlist a piece, deleted or expired if it is `gone`; what a lease or a load holds stays counted until then."""
        if not piece.listed:
            return
        piece.listed = False
        piece.pending.clear()
        del self._pieces[piece.name]
        self._unline(piece)
        for chunk in () if piece.key is None else piece.key.chunks:
            self._patches_of[chunk].discard(piece.name)
            if not self._patches_of[chunk]:
                del self._patches_of[chunk]
        if gone:
            self.tombstones.add(piece.name)
        self.settle(piece)

    def touch(self, piece: Piece, now: float) -> None:
        piece.accessed = now
        if piece.listed:
            self._line(piece).move_to_end(piece.name)

    def move(self, piece: Piece, tier: MemoryTier) -> None:
        """Count a piece in another tier, as the most recently used there."""
        if piece.listed:
            self._unline(piece)
        piece.tier = tier
        if piece.listed:
            self._line(piece)[piece.name] = piece
        self.settle(piece)

    def change_terms(self, piece: Piece, terms: Terms) -> None:
        if piece.listed:
            self._unline(piece)
        piece.terms = terms
        if piece.listed:
            self._line(piece)[piece.name] = piece

    def settle(self, piece: Piece) -> None:
        """Bring the counted bytes up to what the piece holds now."""
        there = piece.listed or piece.leases > 0 or piece.loading
        now = {piece.tier: piece.held if there else 0, _other(piece.tier): piece.moving if there else 0}
        for tier, size in now.items():
            change = size - piece.charged.get(tier, 0)
            self.bytes[tier] += change
            self.owned[piece.owner] += change
            self._owned_in[piece.owner, tier] += change
        piece.charged = now

    def lease(self, piece: Piece, change: int) -> None:
        """Count one lease more or less."""
        before = piece.leases
        piece.leases += change
        if bool(before) != bool(piece.leases):
            step = piece.whole if piece.leases else -piece.whole
            self.leased += step
            self.leased_of[piece.owner] += step
        self.settle(piece)

    def charges(self, owner: str | None) -> dict[MemoryTier, int]:
        """Bytes in each tier, of one owner or of all."""
        return {tier: self.bytes[tier] if owner is None else self._owned_in[owner, tier] for tier in TIERS}

    @property
    def busy(self) -> int:
        """Bytes of device memory that cannot be given up now: leased, or on their way there."""
        return self.leased + sum(piece.whole for piece in self._pieces.values() if piece.loading and not piece.leases)

    def excess(self, tier: MemoryTier) -> int:
        budget = self.budgets[tier]
        return 0 if budget is None else self.bytes[tier] - budget

    def victims(self, tier: MemoryTier, excess: int, spare: Piece | None, owner: str | None = None) -> list[Piece]:
        """What has to go for `excess` bytes: lower priorities first, then the least recently used.

        Never what is leased, on its way, or pinned and nowhere else. Bytes that are leaving already are counted.
        """
        chosen: list[Piece] = []
        for priority in sorted(self._order[tier]):
            for piece in self._order[tier][priority].values():
                if excess <= 0:
                    return chosen
                if piece is spare or piece.leases or piece.loading or (owner is not None and piece.owner != owner):
                    continue
                if piece.terms.pinned and not piece.saved:
                    continue
                if not piece.leaving:
                    chosen.append(piece)
                excess -= piece.held
        return chosen

    def _line(self, piece: Piece) -> OrderedDict[Name, Piece]:
        return self._order[piece.tier].setdefault(piece.terms.priority, OrderedDict())

    def _unline(self, piece: Piece) -> None:
        line = self._line(piece)
        line.pop(piece.name, None)
        if not line:
            del self._order[piece.tier][piece.terms.priority]


def _other(tier: MemoryTier) -> MemoryTier:
    return "host" if tier == "device" else "device"

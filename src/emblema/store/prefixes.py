"""Exact prefixes: the KV tables of recent prompts, found again by their contents, row for row."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from emblema.errors import StoreError
from emblema.kv.layout import KVRows, kv_bytes
from emblema.store.deletion_feed import Freshness
from emblema.store.identity import canonical
from emblema.store.record import SHARED

ENTRIES = 16
"""Prompts of one tenant and model that are kept at most."""


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A run of text tokens, one row each."""

    token_ids: tuple[int, ...]

    @property
    def rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class ChunkSegment:
    """A chunk in a prompt.

    Attributes:
        chunk: its 256-bit id.
        rows: how many rows of the table it has.
        slid: whether the rows after it do not see it.
    """

    chunk: str
    rows: int
    slid: bool = False


Segment = TextSegment | ChunkSegment


@dataclass(frozen=True, slots=True, eq=False)
class KeptPrefix:
    """A prompt's rows, layer by layer, as the forward wrote them.

    Attributes:
        id: digest of the segments, hex.
        place: the tenant, and a digest of model and dtype.
        segments: what the rows hold, neighbouring texts joined.
        rows: one entry for each layer.
        bytes: of the rows.
    """

    id: str
    place: tuple[str, str]
    segments: tuple[Segment, ...]
    rows: KVRows
    bytes: int


class PrefixRegistry:
    """The exact KV of recent prompts of all tenants and models, of which the least recently used are dropped first.

    Args:
        capacity_bytes: budget for the rows of all; None for no bound.
        freshness: whether what is kept here may be used now.
        entries: how many prompts of one tenant and model are kept at most.
    """

    def __init__(
        self, capacity_bytes: int | None = None, freshness: Freshness | None = None, entries: int = ENTRIES
    ) -> None:
        self.capacity_bytes, self._entries = capacity_bytes, entries
        self._freshness = freshness or Freshness()
        self._lock = threading.Lock()
        # Least recently used first.
        self._kept: list[KeptPrefix] = []

    def of(self, tenant: str, owner: str) -> "PrefixStore":
        """Return a tenant's prefixes of one model and dtype, `owner` being a digest of them."""
        return PrefixStore(self, (tenant, owner))

    def put(self, place: tuple[str, str], segments: Iterable[Segment], rows: KVRows) -> bool:
        """Keep a prompt's rows, as `PrefixStore.put`."""
        joined = join(segments)
        expected = sum(segment.rows for segment in joined)
        if not joined or any(layer.tokens != expected for layer in rows):
            held = sorted({layer.tokens for layer in rows})
            raise StoreError(f"The segments have {expected} rows, the table has {held}: they have to be equal.")
        entry = KeptPrefix(_digest(joined), place, joined, rows, kv_bytes(rows))
        if self.capacity_bytes is not None and entry.bytes > self.capacity_bytes:
            return False
        with self._lock:
            self._kept = [
                old for old in self._kept if old.place != place or shared_rows(old.segments, joined) < _rows(old)
            ]
            self._kept.append(entry)
            own = [old for old in self._kept if old.place == place]
            if len(own) > self._entries:
                self._kept.remove(own[0])
            total = sum(old.bytes for old in self._kept)
            while self.capacity_bytes is not None and total > self.capacity_bytes:
                total -= self._kept.pop(0).bytes
        return True

    def longest(
        self, place: tuple[str, str], segments: Iterable[Segment], most: int | None
    ) -> tuple[int, KeptPrefix] | None:
        """Return what shares most rows with the front of a prompt, as `PrefixStore.longest`."""
        if not self._freshness.current:
            return None
        joined = join(segments)
        with self._lock:
            best: KeptPrefix | None = None
            length = 0
            for entry in self._kept:
                shared = shared_rows(entry.segments, joined, most) if entry.place == place else 0
                if shared > 0 and shared >= length:
                    best, length = entry, shared
            if best is None:
                return None
            self._kept.remove(best)
            self._kept.append(best)
            return length, best

    def count(self, place: tuple[str, str]) -> int:
        """Return how many prompts of a tenant and model are kept."""
        with self._lock:
            return sum(entry.place == place for entry in self._kept)

    def bytes(self, tenant: str | None = None) -> int:
        """Return the bytes of one tenant's prefixes, or of all."""
        with self._lock:
            return sum(entry.bytes for entry in self._kept if tenant in (None, entry.place[0]))

    def forget(self, tenant: str, chunk: str) -> bool:
        """Drop the tenant's prefixes that hold a chunk, or all tenants' if it was shared; return whether any did."""
        with self._lock:
            before = len(self._kept)
            self._kept = [
                entry for entry in self._kept if tenant not in (SHARED, entry.place[0]) or not _holds(entry, chunk)
            ]
            return len(self._kept) < before

    def clear(self, place: tuple[str, str] | None = None) -> None:
        """Drop everything of one tenant and model, or of all."""
        with self._lock:
            self._kept = [entry for entry in self._kept if place not in (None, entry.place)]


@dataclass(frozen=True, slots=True)
class PrefixStore:
    """The exact KV of recent prompts of one model and one tenant.

    Attributes:
        registry: of all.
        place: the tenant, and a digest of model and dtype.
    """

    registry: PrefixRegistry
    place: tuple[str, str]

    def __len__(self) -> int:
        return self.registry.count(self.place)

    def put(self, segments: Iterable[Segment], rows: KVRows) -> bool:
        """Keep a prompt's rows; returns False if they alone are larger than the budget.

        Prefixes that are contained in the new one are dropped. The rows belong to the store from now on: do not
        write to them.

        Raises:
            StoreError: the segments' rows do not add up to the table's.
        """
        return self.registry.put(self.place, segments, rows)

    def longest(self, segments: Iterable[Segment], most: int | None = None) -> tuple[int, KeptPrefix] | None:
        """Return the kept prefix that shares most rows with the front of a prompt, and how many; None if none does.

        The shared rows may end inside a text, but not inside a chunk.

        Args:
            segments: the prompt.
            most: rows to share at most, for example all but the last, whose logits are wanted.
        """
        return self.registry.longest(self.place, segments, most)

    def clear(self) -> None:
        """Drop everything."""
        self.registry.clear(self.place)


def join(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Return the same prompt with neighbouring texts joined and empty texts left out."""
    joined: list[Segment] = []
    for segment in segments:
        if isinstance(segment, TextSegment):
            if not segment.token_ids:
                continue
            if joined and isinstance(joined[-1], TextSegment):
                joined[-1] = TextSegment(joined[-1].token_ids + segment.token_ids)
                continue
        joined.append(segment)
    return tuple(joined)


def shared_rows(left: tuple[Segment, ...], right: tuple[Segment, ...], most: int | None = None) -> int:
    """Return how many rows two joined prompts share at their fronts, at most `most`."""
    shared = 0
    for segment, other in zip(left, right, strict=False):
        if isinstance(segment, TextSegment) and isinstance(other, TextSegment):
            same = _common(segment.token_ids, other.token_ids)
            if most is not None and shared + same >= most:
                return max(most, 0)
            shared += same
            if same < segment.rows or same < other.rows:
                return shared
        elif segment != other or (most is not None and shared + segment.rows > most):
            return shared
        else:
            shared += segment.rows
    return shared


def _digest(segments: tuple[Segment, ...]) -> str:
    fields = [
        segment.token_ids if isinstance(segment, TextSegment) else (segment.chunk, segment.rows, segment.slid)
        for segment in segments
    ]
    return blake3(canonical(list(fields))).hexdigest()


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(index for index in range(length) if left[index] != right[index])


def _holds(entry: KeptPrefix, chunk: str) -> bool:
    return any(isinstance(segment, ChunkSegment) and segment.chunk == chunk for segment in entry.segments)


def _rows(entry: KeptPrefix) -> int:
    return sum(segment.rows for segment in entry.segments)

"""Exact prefixes: the KV tables of recent prompts, found again by their contents, row for row."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blake3 import blake3

from emblema.errors import StoreError
from emblema.kv.layout import KVRows, kv_bytes
from emblema.store.deletion_feed import LocalTrust
from emblema.store.identity import canonical
from emblema.store.record import SHARED


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
        segments: what the rows hold, neighbouring texts joined.
        rows: one entry for each layer.
    """

    id: str
    segments: tuple[Segment, ...]
    rows: KVRows

    @property
    def bytes(self) -> int:
        return kv_bytes(self.rows)


class PrefixStore:
    """The exact KV of recent prompts of one model and one tenant, of which the least recently used are dropped first.

    Args:
        capacity_bytes: budget for the rows of all entries.
        entries: how many prompts are kept at most.
        grown: is called after every `put`.
        trust: whether what is kept here may be used now.
    """

    def __init__(
        self,
        capacity_bytes: int | None = None,
        entries: int = 16,
        grown: Callable[[], None] | None = None,
        trust: LocalTrust | None = None,
    ) -> None:
        self._trust = trust or LocalTrust()
        self.capacity_bytes = capacity_bytes
        self._grown = grown
        self.entries = entries
        self._lock = threading.Lock()
        # Least recently used first.
        self._kept: list[KeptPrefix] = []

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(entry.bytes for entry in self._kept)

    def put(self, segments: Iterable[Segment], rows: KVRows) -> bool:
        """Keep a prompt's rows; returns False if they alone are larger than the budget.

        Prefixes that are contained in the new one are dropped. The rows belong to the store from now on: do not
        write to them.

        Raises:
            StoreError: the segments' rows do not add up to the table's.
        """
        joined = join(segments)
        expected = sum(segment.rows for segment in joined)
        if not joined or any(layer.tokens != expected for layer in rows):
            held = sorted({layer.tokens for layer in rows})
            raise StoreError(f"The segments have {expected} rows, the table has {held}: they have to be equal.")
        entry = KeptPrefix(_digest(joined), joined, rows)
        if self.capacity_bytes is not None and entry.bytes > self.capacity_bytes:
            return False
        with self._lock:
            self._kept = [old for old in self._kept if shared_rows(old.segments, joined) < _rows(old)]
            self._kept.append(entry)
            while len(self._kept) > self.entries or self._over_budget():
                self._kept.pop(0)
        if self._grown is not None:
            self._grown()
        return True

    def longest(self, segments: Iterable[Segment], most: int | None = None) -> tuple[int, KeptPrefix] | None:
        """Return the kept prefix that shares most rows with the front of a prompt, and how many; None if none does.

        The shared rows may end inside a text, but not inside a chunk.

        Args:
            segments: the prompt.
            most: rows to share at most, for example all but the last, whose logits are wanted.
        """
        if not self._trust.holds:
            return None
        joined = join(segments)
        with self._lock:
            best: KeptPrefix | None = None
            length = 0
            for entry in self._kept:
                shared = shared_rows(entry.segments, joined, most)
                if shared > 0 and shared >= length:
                    best, length = entry, shared
            if best is None:
                return None
            self._kept.remove(best)
            self._kept.append(best)
            return length, best

    def forget(self, chunk: str) -> int:
        """Drop every prefix that holds a deleted chunk; returns how many there were."""
        with self._lock:
            before = len(self._kept)
            self._kept = [entry for entry in self._kept if not _holds(entry, chunk)]
            return before - len(self._kept)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._kept = []

    def _over_budget(self) -> bool:
        return self.capacity_bytes is not None and sum(entry.bytes for entry in self._kept) > self.capacity_bytes


class PrefixRegistry:
    """The prefix stores of all tenants and models, within one budget; the least recently used are emptied first.

    Args:
        capacity_bytes: budget for the rows of all.
        trust: whether what is kept here may be used now.
    """

    def __init__(self, capacity_bytes: int, trust: LocalTrust | None = None) -> None:
        self.capacity_bytes, self._trust = capacity_bytes, trust
        self._lock = threading.Lock()
        # By tenant and by digest of model and dtype; the least recently used first.
        self._stores: OrderedDict[tuple[str, str], PrefixStore] = OrderedDict()

    def of(self, tenant: str, owner: str) -> PrefixStore:
        """Return a tenant's prefixes of one model and dtype, `owner` being a digest of them."""
        with self._lock:
            found = self._stores.get((tenant, owner))
            if found is None:
                found = self._stores[tenant, owner] = PrefixStore(
                    self.capacity_bytes, grown=self._bound, trust=self._trust
                )
            self._stores.move_to_end((tenant, owner))
            return found

    def bytes(self, tenant: str | None = None) -> int:
        """Return the bytes of one tenant's prefixes, or of all."""
        with self._lock:
            return sum(store.bytes for (own, _), store in self._stores.items() if tenant in (None, own))

    def forget(self, tenant: str, chunk: str) -> bool:
        """Drop the tenant's prefixes that hold a chunk, or all tenants' if it was shared; return whether any did."""
        with self._lock:
            known = [store for (own, _), store in self._stores.items() if tenant in (SHARED, own)]
        return any([store.forget(chunk) > 0 for store in known])

    def clear(self) -> None:
        """Drop everything of all tenants."""
        with self._lock:
            known = list(self._stores.values())
        for store in known:
            store.clear()

    def _bound(self) -> None:
        """Empty the least recently used stores until the budget holds; the last used has a bound of its own."""
        with self._lock:
            total = sum(store.bytes for store in self._stores.values())
            for name in list(self._stores)[:-1]:
                if total <= self.capacity_bytes:
                    return
                total -= self._stores[name].bytes
                self._stores.pop(name).clear()


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

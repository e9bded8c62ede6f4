"""Exact prefixes: the KV tables of the last prompts, found again by what stands in them, row for row."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from blake3 import blake3

from emblema.errors import StoreError
from emblema.kv.layout import KVRows, kv_bytes
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
        rows: how many rows of the table are its.
        slid: whether it is absent for the rows behind it.
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
        segments: what stands in the rows, neighbouring texts joined.
        rows: one entry a layer.
    """

    id: str
    segments: tuple[Segment, ...]
    rows: KVRows

    @property
    def bytes(self) -> int:
        return kv_bytes(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixMatch:
    """The first `rows` rows of an entry stand at the front of the prompt as well."""

    rows: int
    entry: KeptPrefix


class PrefixStore:
    """The exact KV of recent prompts of one model and one tenant, the least recently used going first.

    Args:
        capacity_bytes: budget for the rows of all entries.
        entries: how many prompts are kept at most.
        grown: called behind every `put`.
    """

    def __init__(
        self, capacity_bytes: int | None = None, entries: int = 16, grown: Callable[[], None] | None = None
    ) -> None:
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
        """Keep a prompt's rows; False if they alone are larger than the budget.

        Entries that are wholly contained in the new one go. The rows belong to the store from here on: nobody writes
        to them any more.

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

    def longest(self, segments: Iterable[Segment], most: int | None = None) -> PrefixMatch | None:
        """The entry that shares most rows with the front of a prompt; None if none shares any.

        A match may end inside a text, but only behind a whole chunk.

        Args:
            segments: the prompt.
            most: rows to match at most, for example all but the last, whose logits are wanted.
        """
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
            return PrefixMatch(length, best)

    def forget(self, chunk: str) -> int:
        """Drop every entry that holds a chunk, as it has been deleted; how many there were."""
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
    """The prefix stores of all tenants and models, within one budget: those used longest ago are emptied first.

    Args:
        capacity_bytes: budget for the rows of all.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._lock = threading.Lock()
        # By tenant and by digest of model and dtype; the least recently used first.
        self._stores: OrderedDict[tuple[str, str], PrefixStore] = OrderedDict()

    def of(self, tenant: str, owner: str) -> PrefixStore:
        """A tenant's prefixes of one model and dtype."""
        with self._lock:
            found = self._stores.get((tenant, owner))
            if found is None:
                found = self._stores[tenant, owner] = PrefixStore(self.capacity_bytes, grown=self._bound)
            self._stores.move_to_end((tenant, owner))
            return found

    def bytes(self, tenant: str | None = None) -> int:
        """Bytes of one tenant's prefixes, or of all."""
        with self._lock:
            return sum(store.bytes for (own, _), store in self._stores.items() if tenant in (None, own))

    def forget(self, tenant: str, chunk: str) -> bool:
        """Drop the prefixes that hold a chunk: the tenant's; everybody's where the chunk was shared; if any did."""
        with self._lock:
            known = [store for (own, _), store in self._stores.items() if tenant in (SHARED, own)]
        return any([store.forget(chunk) > 0 for store in known])

    def _bound(self) -> None:
        """Empty what was used longest ago until the budget holds; the last used stays, it has a bound of its own."""
        with self._lock:
            total = sum(store.bytes for store in self._stores.values())
            for name in list(self._stores)[:-1]:
                if total <= self.capacity_bytes:
                    return
                total -= self._stores[name].bytes
                self._stores.pop(name).clear()


def join(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same prompt with neighbouring texts as one and empty texts left out."""
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
    """How many rows two joined prompts share at their fronts, at most `most`."""
    shared = 0
    for one, other in zip(left, right, strict=False):
        if isinstance(one, TextSegment) and isinstance(other, TextSegment):
            same = _common(one.token_ids, other.token_ids)
            if most is not None and shared + same >= most:
                return max(most, 0)
            shared += same
            if same < one.rows or same < other.rows:
                return shared
        elif one != other or (most is not None and shared + one.rows > most):
            return shared
        else:
            shared += one.rows
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

"""What a store has done since it was opened, and what it holds now."""

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal

CounterName = Literal[
    "hits", "misses", "patch_hits", "patch_misses", "evictions", "demotions", "promotions", "loads", "load_failures",
    "late_loads", "quarantined", "saves", "save_failures", "remote_failures", "expired",
]  # fmt: skip
"""The fields of `StoreStatistics` that only grow."""


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since the store was opened, and contents now; of one owner for a tenant's store, of all for a store.

    Attributes:
        hits, misses: look-ups of chunks that found one, and that did not.
        patch_hits, patch_misses: the same of patches and other artifacts.
        evictions: pieces that left memory to make room; a slower tier may still have them.
        demotions, promotions: moves from device to host memory and back.
        loads: chunks and patches read from disk or remote.
        load_failures: reads that failed or did not verify.
        late_loads: loads given up at the deadline.
        quarantined: files set aside because they did not verify.
        saves: pieces written, counted once for each tier.
        save_failures: pieces that a tier did not take.
        remote_failures: calls that the remote tier did not carry out.
        expired: pieces whose terms ran out.
        chunks, patches: pieces in memory.
        bytes: of memory, rows that are being loaded included: `device_bytes` and `host_bytes`.
        leased_bytes: of these, what running requests hold.
        unsaved_bytes: of these, what is still to be written to a slower tier.
        prefix_bytes: of exact prefixes of earlier prompts; not part of `bytes`.
        disk_bytes: of the files on disk.
    """

    hits: int = 0
    misses: int = 0
    patch_hits: int = 0
    patch_misses: int = 0
    evictions: int = 0
    demotions: int = 0
    promotions: int = 0
    loads: int = 0
    load_failures: int = 0
    late_loads: int = 0
    quarantined: int = 0
    saves: int = 0
    save_failures: int = 0
    remote_failures: int = 0
    expired: int = 0
    chunks: int = 0
    patches: int = 0
    bytes: int = 0
    device_bytes: int = 0
    host_bytes: int = 0
    leased_bytes: int = 0
    unsaved_bytes: int = 0
    prefix_bytes: int = 0
    disk_bytes: int = 0


class StoreCounters:
    """Counters by owner; any thread may raise them. They have a lock of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_owner: dict[str, Counter[str]] = {}

    def add(self, owner: str, name: CounterName, count: int = 1) -> None:
        with self._lock:
            self._by_owner.setdefault(owner, Counter())[name] += count

    def of(self, owner: str | None) -> dict[str, int]:
        """Return the counters of one owner, or the sums over all for None; those at 0 may be absent."""
        with self._lock:
            counters = self._by_owner.values() if owner is None else [self._by_owner.get(owner, Counter())]
            return dict(sum(counters, Counter[str]()))

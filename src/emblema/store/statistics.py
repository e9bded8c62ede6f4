"""What a store has done since it was opened, and what it holds now."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Counters since the store was opened, and what it holds now; of one owner for a view, of all for a store.

    Attributes:
        hits, misses: look-ups of chunks that found one, and that did not.
        patch_hits, patch_misses: the same of patches.
        evictions: pieces that left memory for want of room; on a slower tier they may still be.
        demotions, promotions: moves from device to host memory and back.
        loads: chunks and patches read from disk or remote.
        load_failures: reads that failed or did not verify.
        late_loads: loads given up at the deadline.
        quarantined: files set aside as they did not verify.
        saves: pieces written, once for each tier.
        save_failures: pieces that a tier did not take.
        remote_failures: times that the remote tier did not do what was asked.
        expired: pieces whose time had come.
        chunks, patches: in memory.
        bytes: of memory, rows under way included: `device_bytes` and `host_bytes`.
        leased_bytes: of these, what running requests hold.
        unsaved_bytes: of these, what is still to be written to a slower tier.
        prefix_bytes: of exact prefixes of earlier prompts, beside `bytes`.
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


COUNTERS = (
    "hits", "misses", "patch_hits", "patch_misses", "evictions", "demotions", "promotions", "loads", "load_failures",
    "late_loads", "quarantined", "saves", "save_failures", "remote_failures", "expired",
)  # fmt: skip
"""The fields that only ever grow."""

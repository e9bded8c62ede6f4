"""What the cache shares with the classes that look up, move and save pieces for it."""

import threading
from dataclasses import dataclass, field

import torch

from emblema.store.deletion_feed import LocalTrust
from emblema.store.pieces import PieceTable
from emblema.store.settings import StoreSettings
from emblema.store.statistics import StoreCounters
from emblema.store.tiers import TierStack


@dataclass(frozen=True, slots=True)
class CacheState:
    """The parts of a cache.

    Attributes:
        settings: of the store.
        table: the pieces in memory, guarded by `changed`.
        tiers: disk and remote, never called while `changed` is held.
        counters: where everything is counted; they have a lock of their own.
        device: where rows are computed with.
        trust: whether pieces that are kept on this machine may be used now.
        changed: the one lock of the cache, reentrant, notified of every change; see `PieceCache`.
    """

    settings: StoreSettings
    table: PieceTable
    tiers: TierStack
    counters: StoreCounters
    device: torch.device
    trust: LocalTrust = field(default_factory=LocalTrust)
    changed: threading.Condition = field(default_factory=threading.Condition)

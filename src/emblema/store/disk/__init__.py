"""The disk tier: one file a piece, and a catalogue of them. Nothing here needs torch."""

from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.tier import DiskTier

__all__ = ["DiskEntry", "DiskTier"]

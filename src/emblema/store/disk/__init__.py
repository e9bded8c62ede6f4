"""The disk tier: one file a piece, and a catalogue of them. Nothing here needs torch."""

from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.scan import ScanReport
from emblema.store.disk.tier import CollectReport, DiskTier, VerifyReport

__all__ = ["CollectReport", "DiskTier", "DiskEntry", "ScanReport", "VerifyReport"]

"""The disk tier: one file a piece, an index that can be made again from them. Nothing here needs torch."""

from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.reports import CollectReport, DiskStatistics, ScanReport, VerifyReport
from emblema.store.disk.tier import DiskTier

__all__ = ["CollectReport", "DiskStatistics", "DiskTier", "DiskEntry", "ScanReport", "VerifyReport"]

"""What the disk tier tells about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a scan of the folder found.

    Attributes:
        restored: pieces that are there and can be asked for.
        skipped: paths that are not, each with the reason; what was damaged is in `quarantine/` now.
        temporary_removed: files that writers left half-written when they were killed.
        seconds: how long it took.
        added: pieces among the restored that the index did not know, or knew otherwise.
        lost: pieces that the index knew and no file holds.
        notes: what else was put in order, in words: an index that was made again, a folder that cannot be written.
    """

    restored: int
    skipped: tuple[tuple[str, str], ...]
    temporary_removed: int
    seconds: float
    added: int = 0
    lost: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"restored {self.restored} pieces", f"skipped {len(self.skipped)}"]
        parts += [f"{count} {what}" for count, what in ((self.added, "new to the index"), (self.lost, "lost")) if count]
        parts += [f"removed {self.temporary_removed} temporary files"] if self.temporary_removed else []
        return ", ".join([*parts, *self.notes]) + f" in {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What reading everything found.

    Attributes:
        checked: files that were read to their end.
        damaged: pieces that did not verify, each with the reason; in quarantine now if repair was asked for.
        bytes: that were read and verified.
        scan: of the folder, before the reading; None if repair was not asked for.
    """

    checked: int
    damaged: tuple[tuple[str, str], ...]
    bytes: int
    scan: ScanReport | None


@dataclass(frozen=True, slots=True)
class CollectReport:
    """What tidying up removed.

    Attributes:
        expired: pieces whose time was over.
        quarantined: files that were kept for inspection.
        bytes: freed by both.
        scan: of the folder, with the temporary files it removed.
    """

    expired: int
    quarantined: int
    bytes: int
    scan: ScanReport


@dataclass(frozen=True, slots=True)
class DiskStatistics:
    """Counts since the tier was opened.

    Attributes:
        hits: times a piece was opened.
        deleted: pieces, patches that went with their chunk included.
        evicted: pieces, for room.
        expired: pieces.
        quarantined: files that did not verify.
        lost: pieces whose file was gone or another.
        failed_writes: pieces that could not be written.
        failed_reads: times the tier did not answer: a folder that vanished, a file that may not be opened.
        rebuilt: times the index was made again from the files.
    """

    hits: int = 0
    deleted: int = 0
    evicted: int = 0
    expired: int = 0
    quarantined: int = 0
    lost: int = 0
    failed_writes: int = 0
    failed_reads: int = 0
    rebuilt: int = 0

"""Looking after a folder of pieces: reading every file to its end, and clearing away what nobody needs."""

from contextlib import closing
from dataclasses import dataclass

from emblema.errors import LoadError
from emblema.store.disk import folder as files
from emblema.store.disk.entry import DiskEntry
from emblema.store.disk.scan import Progress, ScanReport
from emblema.store.disk.tier import DiskTier
from emblema.store.format import is_passing, open_file, verify


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
    """What tidying up removed: expired pieces, files in quarantine, the bytes of both, and what a scan found."""

    expired: int
    quarantined: int
    bytes: int
    scan: ScanReport


def verify_piece(tier: DiskTier, entry: DiskEntry) -> None:
    """Read a piece's file to its end; not a use.

    Raises:
        LoadError: it is damaged, or of another owner, kind or chunks than the catalogue has.
        OSError: it is gone, or cannot be read.
    """
    with closing(open_file(tier.piece_path(entry.id), entry.id)) as reader:
        verify(reader)
        if not entry.is_of(reader.header):
            raise LoadError(entry.id, "its file has another owner, kind or chunks than the catalogue")


def verify_pieces(tier: DiskTier, progress: Progress | None = None, repair: bool = True) -> VerifyReport:
    """Read every piece to its end.

    Args:
        tier: of the folder.
        progress: called with the bytes read so far and the bytes of all.
        repair: compare the catalogue with the files first, and set damaged files aside.

    Raises:
        StoreError: the folder does not answer.
    """
    scan = tier.scan() if repair and tier.catalogue.read_only is None else None
    total = tier.bytes
    checked = passed = read = 0
    damaged: list[tuple[str, str]] = []
    for entry in tier.entries():
        try:
            inode = tier.piece_path(entry.id).lstat().st_ino
            verify_piece(tier, entry)
            passed += entry.bytes
        except FileNotFoundError:
            # Deleted or evicted since it was listed, unless the catalogue still has it.
            if tier.entry(entry.id) is not None:
                damaged.append((entry.id, "its file is gone"))
            continue
        except OSError as error:
            damaged.append((entry.id, str(error)))
        except LoadError as error:
            damaged.append((entry.id, error.reason))
            if repair and not is_passing(error):
                tier.quarantine(entry.id, error.reason, inode)
        checked += 1
        read += entry.bytes
        if progress is not None:
            progress(read, total)
    return VerifyReport(checked, tuple(damaged), passed, scan)


def collect(tier: DiskTier, progress: Progress | None = None) -> CollectReport:
    """Delete expired pieces, what crashed writers left, and the quarantine; compare the catalogue with the files.

    Args:
        tier: of the folder.
        progress: called with the number of folders compared so far, and of all folders.

    Raises:
        StoreError: the folder cannot be written.
    """
    before = tier.bytes
    expired = tier.expire()
    freed = before - tier.bytes
    with tier.change():
        quarantined, bytes = files.clear_quarantine(tier.path)
    scan = tier.scan(progress)
    tier.catalogue.checkpoint()
    return CollectReport(expired, quarantined, freed + bytes, scan)

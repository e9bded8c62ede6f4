"""Comparing the catalogue with the files: after a crash, a damaged catalogue, or changes by hand."""

import os
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from emblema.errors import LoadError
from emblema.store.disk import folder as files
from emblema.store.disk.entry import DiskEntry, entry_of, find_rows, put_entry, put_sources, remove_rows
from emblema.store.format import is_passing, open_file
from emblema.store.record import is_id

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ScanReport:
    """What a scan of the folder found.

    Attributes:
        restored: pieces that are there and can be asked for.
        skipped: paths that are not, each with the reason; what was damaged is out of `pieces/` now.
        temporary_removed: files that writers left half-written when they were killed.
        seconds: how long it took.
        added: pieces among the restored that the catalogue did not know, or knew otherwise.
        lost: pieces that the catalogue knew and no file holds.
        notes: what else was put in order, in words: a catalogue that was made again, a folder that cannot be written.
    """

    restored: int
    skipped: tuple[tuple[str, str], ...] = ()
    temporary_removed: int = 0
    seconds: float = 0.0
    added: int = 0
    lost: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [f"restored {self.restored} pieces", f"skipped {len(self.skipped)}"]
        parts += [f"{count} {what}" for count, what in ((self.added, "read again"), (self.lost, "lost")) if count]
        parts += [f"removed {self.temporary_removed} temporary files"] if self.temporary_removed else []
        return ", ".join([*parts, *self.notes]) + f" in {self.seconds:.2f} s"


@dataclass(slots=True)
class Scan:
    """One comparison of every file with its row, within a change of the catalogue.

    A row is that of its file while its checksum holds and the file has its length and time of modification; otherwise
    the file's header is read again. Rows without a file go, damaged files are set aside, foreign ones stay.

    Args:
        folder: of the tier.
        rows: of the catalogue.
        now: Unix time in seconds.
        pins: ids that were pinned before there was a catalogue.
    """

    folder: Path
    rows: sqlite3.Connection
    now: float
    pins: Collection[str] = ()
    _skipped: list[tuple[str, str]] = field(default_factory=list)

    def run(self, progress: Progress | None = None) -> ScanReport:
        """Compare all; `progress` is called with the number of folders of pieces done, and of all."""
        started = time.perf_counter()
        self._skipped = [
            (name, "not the store's") for name in sorted(os.listdir(self.folder)) if name not in files.KNOWN
        ]
        removed = files.remove_abandoned(self.folder)
        shards = set(self._shards())
        restored = added = lost = 0
        patches: list[DiskEntry] = []
        for number in range(256):
            known = dict(find_rows(self.rows, *_in_shard(number)))
            for id, status in self._pieces(f"{number:02x}") if number in shards else ():
                old = known.pop(id, None)
                agrees = old is not None and (old.bytes, old.stamp) == (status.st_size, status.st_mtime_ns)
                entry = old if agrees else self._read(id, status, old)
                restored, added = restored + (entry is not None), added + (entry is not None and entry is not old)
                patches += [entry] if entry is not None and entry.chunks else []
            remove_rows(self.rows, known)
            lost += len(known)
            if progress is not None:
                progress(number + 1, 256)
        sources = {(chunk, entry.id) for entry in patches for chunk in entry.chunks}
        if set(self.rows.execute("SELECT chunk, piece FROM sources")) != sources:
            self.rows.execute("DELETE FROM sources")
            put_sources(self.rows, patches)
        return ScanReport(restored, tuple(self._skipped), removed, time.perf_counter() - started, added, lost)

    def _shards(self) -> Iterator[int]:
        """Yield the numbers of the folders of pieces: the first byte of their ids."""
        for name, status in files.list_files(self.folder / files.PIECES):
            if len(name) == 2 and set(name) <= set("0123456789abcdef") and stat.S_ISDIR(status.st_mode):
                yield int(name, 16)
            else:
                self._skipped.append((f"{files.PIECES}/{name}", "not a folder of pieces"))

    def _pieces(self, shard: str) -> Iterator[tuple[str, os.stat_result]]:
        """Yield ids and status of the plain files in a folder of pieces that have a piece's name."""
        for name, status in list(files.list_files(self.folder / files.PIECES / shard)):
            id = name.removesuffix(files.SUFFIX)
            if not is_id(id) or id[:2] != shard or id == name:
                self._skipped.append((f"{files.PIECES}/{shard}/{name}", "not a piece's name"))
            elif not stat.S_ISREG(status.st_mode):
                self._skipped.append((f"{files.PIECES}/{shard}/{name}", "not a plain file"))
            else:
                yield id, status

    def _read(self, id: str, status: os.stat_result, known: DiskEntry | None) -> DiskEntry | None:
        """Write the entry of a file from its header, and return it; its pin and last use are those of the entry before.

        A damaged file is set aside: None.
        """
        try:
            with open_file(files.piece_path(self.folder, id), id) as reader:
                header = reader.header
            accessed = min(status.st_mtime, self.now) if known is None else known.accessed
            pinned = id in self.pins if known is None else known.terms.pinned
            stamp = status.st_mtime_ns
            entry = entry_of(header, bytes=status.st_size, accessed=accessed, pinned=pinned, stamp=stamp)
        except (LoadError, ValueError) as error:
            reason = error.reason if isinstance(error, LoadError) else str(error)
            self._skipped.append((f"{files.PIECES}/{id[:2]}/{id}{files.SUFFIX}", reason))
            remove_rows(self.rows, [id])
            if not is_passing(error):
                files.set_aside(self.folder, id, status.st_ino)
            return None
        put_entry(self.rows, entry)
        return entry


def _in_shard(number: int) -> tuple[str, ...]:
    """Return a condition for the ids that start with a byte, and what it takes; all others are with the first or last.

    Numbers come before texts in sqlite's order, and bytes after them.
    """
    first, last = f"{number:02x}", f"{number + 1:02x}"
    if number == 0:
        return "id < ?", last
    return ("id >= ?", first) if number == 255 else ("id >= ? AND id < ?", first, last)

"""Comparing an index with the files, which it is repaired from."""

import os
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emblema.errors import LoadError
from emblema.store.clock import SteadyClock
from emblema.store.disk.entry import entry_of, written_at
from emblema.store.disk.folder import PIECES, SUFFIX, Folder
from emblema.store.disk.index import Index, IndexRow, row_of
from emblema.store.disk.reports import ScanReport
from emblema.store.format import is_passing, open_file
from emblema.store.record import is_id

_TICK = 1e-6
"""Seconds by which a file's time of access may differ from its row's."""


@dataclass(slots=True)
class Scan:
    """One comparison of every file with its row, which repairs the index.

    A row is valid while its checksum holds and its file has the length, inode and time of last use that it says;
    otherwise the file's header is read again. The time tells the file from an earlier one whose inode it got: a power
    cut may leave the index with the row of that one. Damaged files are quarantined, foreign ones are left alone.

    Args:
        quarantine_bytes: how much quarantine may hold.
    """

    folder: Folder
    index: Index
    clock: SteadyClock
    quarantine_bytes: int
    _pins: set[str] = field(default_factory=set)
    _added: int = 0
    _skipped: list[tuple[str, str]] = field(default_factory=list)
    _totals: dict[tuple[bytes, str], tuple[int, int]] = field(default_factory=lambda: defaultdict(lambda: (0, 0)))
    _parts: set[tuple[bytes, bytes]] = field(default_factory=set)

    def run(self, progress: Callable[[int, int], None] | None = None) -> ScanReport:
        """Compare all files and repair the index, within a transaction of it.

        Args:
            progress: called with the number of folders of pieces done, and of all.
        """
        started = time.perf_counter()
        folder, index = self.folder, self.index
        self._skipped = list(folder.foreign())
        removed = folder.remove_temporary() if folder.read_only is None else 0
        self.clock.reach(index.latest())
        self._pins = folder.pins()
        shards = dict(self._shards())
        lost = 0
        listed = index.shards()
        for number in range(256):
            rows = {row.id: row for row in index.shard(number)} if number in listed else {}
            for file in self._pieces(shards.get(number)):
                self._compare(file, rows)
            for key in rows:
                index.remove_row(key)
            lost += len(rows)
            if progress is not None:
                progress(number + 1, 256)
        index.set_totals(self._totals)
        if set(index.parts()) != self._parts:
            index.set_parts(self._parts)
        index.set_latest(self.clock.now())
        for id in self._pins:
            if folder.read_only is None and index.get_row(id) is None:
                folder.pin(id, False)
        restored = sum(pieces for pieces, _ in self._totals.values())
        seconds = time.perf_counter() - started
        notes = tuple(folder.notes)
        return ScanReport(restored, tuple(self._skipped), removed, seconds, self._added, lost, notes)

    def _shards(self) -> Iterator[tuple[int, str]]:
        """Yield the folders of pieces, by the first byte of their ids."""
        with os.scandir(self.folder.path / PIECES) as entries:
            for entry in entries:
                named = len(entry.name) == 2 and set(entry.name) <= set("0123456789abcdef")
                if named and entry.is_dir(follow_symlinks=False):
                    yield int(entry.name, 16), entry.name
                else:
                    self._skipped.append((f"{PIECES}/{entry.name}", "not a folder of pieces"))

    def _pieces(self, shard: str | None) -> Iterator[tuple[str, os.stat_result]]:
        """Yield ids and status of the plain files in a folder of pieces that have a piece's name."""
        if shard is None:
            return
        with os.scandir(self.folder.path / PIECES / shard) as entries:
            for file in entries:
                id = file.name.removesuffix(SUFFIX)
                try:
                    status = file.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not is_id(id) or id[:2] != shard or id == file.name:
                    self._skipped.append((f"{PIECES}/{shard}/{file.name}", "not a piece's name"))
                elif not stat.S_ISREG(status.st_mode):
                    self._skipped.append((f"{PIECES}/{shard}/{file.name}", "not a plain file"))
                else:
                    yield id, status

    def _compare(self, file: tuple[str, os.stat_result], rows: dict[bytes, IndexRow]) -> None:
        """Compare one file with its row, which is taken out of `rows`."""
        id, status = file
        key = bytes.fromhex(id)
        row = rows.pop(key, None)
        if row is None or not _agrees(row, status, id in self._pins):
            try:
                row = self._read(id, status)
            except (LoadError, ValueError) as error:
                reason = error.reason if isinstance(error, LoadError) else str(error)
                self._skipped.append((f"{PIECES}/{id[:2]}/{id}{SUFFIX}", reason))
                self.index.remove_row(key)
                if self.folder.read_only is None and not is_passing(error):
                    self.folder.quarantine(id, status.st_ino, self.quarantine_bytes)
                return
            self.index.put_row(row)
            self._added += 1
        pieces, size = self._totals[row.owner, row.kind]
        self._totals[row.owner, row.kind] = pieces + 1, size + status.st_size
        self._parts.update(row.parts())

    def _read(self, id: str, status: os.stat_result) -> IndexRow:
        """Return the row of a file from its header."""
        with open_file(self.folder.piece(id), id) as reader:
            header = reader.header
        self.clock.reach(written_at(header) or 0.0)
        accessed = min(_accessed(status), self.clock.now())
        if accessed < _accessed(status) and self.folder.read_only is None:
            # A use in the future: file and row must agree at the next start.
            self.folder.set_accessed(id, accessed)
        entry = entry_of(header, bytes=status.st_size, accessed=accessed, pinned=id in self._pins)
        return row_of(entry, status.st_ino)


def _agrees(row: IndexRow, status: os.stat_result, pinned: bool) -> bool:
    same = row.bytes == status.st_size and row.is_of(status.st_ino) and row.pinned == pinned
    return same and row.is_whole() and abs(row.accessed - _accessed(status)) <= _TICK


def _accessed(status: os.stat_result) -> float:
    return status.st_mtime_ns / 1e9

"""Making the index agree with the files, which are the truth."""

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
from emblema.store.disk.index import Index
from emblema.store.disk.reports import ScanReport
from emblema.store.disk.schema import Row, row_of
from emblema.store.format import is_passing, open_file
from emblema.store.record import is_id

_TICK = 1e-6


@dataclass(slots=True)
class _Found:
    added: int = 0
    lost: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    totals: dict[tuple[bytes, str], tuple[int, int]] = field(default_factory=lambda: defaultdict(lambda: (0, 0)))
    parts: set[tuple[bytes, bytes]] = field(default_factory=set)


def reconcile(
    folder: Folder,
    index: Index,
    clock: SteadyClock,
    quarantine_bytes: int,
    progress: Callable[[int, int], None] | None = None,
) -> ScanReport:
    """Compare every file with its row and mend the index, within a transaction of it.

    A row holds as long as it is whole and its file has the length and the inode that it was written with; otherwise
    the file's header is read again. Files that are damaged go to quarantine, foreign ones are left alone. `progress` is
    called with how many of how many folders are done.
    """
    started = time.perf_counter()
    found = _Found(skipped=list(folder.foreign()))
    removed = folder.remove_temporary() if folder.read_only is None else 0
    clock.reach(index.latest())
    pins = folder.pins()
    shards = dict(_shards(folder, found))
    for number in range(256):
        rows = {row.id: row for row in index.shard(number)}
        if number in shards:
            _shard(folder, index, clock, quarantine_bytes, shards[number], rows, pins, found)
        for key in rows:
            index.remove_row(key)
        found.lost += len(rows)
        if progress is not None:
            progress(number + 1, 256)
    index.set_totals(found.totals)
    if set(index.parts()) != found.parts:
        index.set_parts(found.parts)
    index.set_latest(clock.now())
    for id in pins:
        if folder.read_only is None and index.get_row(id) is None:
            folder.pin(id, False)
    restored = sum(pieces for pieces, _ in found.totals.values())
    seconds = time.perf_counter() - started
    return ScanReport(
        restored, tuple(found.skipped), removed, seconds, found.added, found.lost, notes=tuple(folder.notes)
    )


def _shards(folder: Folder, found: _Found) -> Iterator[tuple[int, str]]:
    with os.scandir(folder.path / PIECES) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                found.skipped.append((f"{PIECES}/{entry.name}", "not a folder of pieces"))
            elif len(entry.name) == 2 and set(entry.name) <= set("0123456789abcdef"):
                yield int(entry.name, 16), entry.name
            else:
                found.skipped.append((f"{PIECES}/{entry.name}", "not a folder of pieces"))


def _shard(
    folder: Folder,
    index: Index,
    clock: SteadyClock,
    quarantine_bytes: int,
    shard: str,
    rows: dict[bytes, Row],
    pins: set[str],
    found: _Found,
) -> None:
    """One folder of pieces; takes the rows that have a file out of `rows`."""
    with os.scandir(folder.path / PIECES / shard) as entries:
        for file in entries:
            path = f"{PIECES}/{shard}/{file.name}"
            id = file.name.removesuffix(SUFFIX)
            try:
                status = file.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not is_id(id) or id[:2] != shard or id == file.name:
                found.skipped.append((path, "not a piece's name"))
                continue
            if not stat.S_ISREG(status.st_mode):
                found.skipped.append((path, "not a plain file"))
                continue
            key = bytes.fromhex(id)
            row = rows.pop(key, None)
            accessed = min(status.st_mtime_ns / 1e9, clock.now())
            if row is None or not _agrees(row, status, id in pins):
                try:
                    row = _read(folder, clock, id, status, id in pins)
                except (LoadError, ValueError) as error:
                    found.skipped.append((path, error.reason if isinstance(error, LoadError) else str(error)))
                    index.remove_row(key)
                    if folder.read_only is None and not is_passing(error):
                        folder.quarantine(id, status.st_ino, quarantine_bytes)
                    continue
                index.put_row(row)
                found.added += 1
            elif abs(row.accessed - accessed) > _TICK:
                index.set_row_accessed(key, accessed)
            pieces, bytes_ = found.totals[row.owner, row.kind]
            found.totals[row.owner, row.kind] = pieces + 1, bytes_ + status.st_size
            found.parts.update(row.parts())


def _agrees(row: Row, status: os.stat_result, pinned: bool) -> bool:
    return row.is_whole() and row.bytes == status.st_size and row.is_of(status.st_ino) and row.pinned == pinned


def _read(folder: Folder, clock: SteadyClock, id: str, status: os.stat_result, pinned: bool) -> Row:
    reader = open_file(folder.piece(id), id)
    try:
        header = reader.header
    finally:
        reader.close()
    clock.reach(written_at(header) or 0.0)
    accessed = min(status.st_mtime_ns / 1e9, clock.now())
    return row_of(entry_of(header, bytes=status.st_size, accessed=accessed, pinned=pinned), status.st_ino)

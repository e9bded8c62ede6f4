"""What a stream keeps on disk: lines of frames in a log, those that memory has no room for and those that are saved.

Rows that were read stay in memory, up to a share of the budget though new frames come: questions ask for some old
frames again and again.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.frames import FrameLog
from emblema.stream.lines import FrameLines, FrameNumbers
from emblema.stream.log import HEADER, Extent, Lines, LogCounts, StreamLog
from emblema.stream.log_files import (
    delete_leftovers,
    hold_folder,
    log_owner,
    new_log,
    new_postings_path,
    open_log,
    read_postings,
    rename_log,
)
from emblema.stream.mosaic.memory import Mosaic
from emblema.stream.recalled import RecalledLines
from emblema.stream.settings import StreamSettings
from emblema.stream.state import StreamState, state_path, write_state

CODES, MEMORY = 0, 1
"""Series: what the encoder made of every frame; what the memory keeps of those that left the window."""
REPEATED, SHARE = 64, 8
"""Frames that are added to the posting lists again when a stream is loaded: so many, or one for so many that it has."""
RECALLED = 0.5
"""Share of the memory's budget that rows which were read keep against those of new frames."""
MOST_BYTES = 2**25
"""Bytes that are written, or copied to another log, at once."""


@dataclass(frozen=True, slots=True)
class ArchivedLines:
    """The lines of one column that are in the log."""

    archive: "FrameArchive"
    series: int
    column: int

    def read(self, frames: FrameNumbers, out: Lines) -> None:
        self.archive.read(self.series, self.column, frames, out)


class FrameArchive:
    """Puts lines in a log, and the oldest out of memory.

    Args:
        folder: of the owner's saved streams; None if the engine keeps nothing on disk.
        settings: of the stream.
        log: codes of all frames; there is a frame.
        memory: of those that left the window.

    Attributes:
        saved: the name under which the stream was last saved; None if it was not.
    """

    def __init__(self, folder: Path | None, settings: StreamSettings, log: FrameLog, memory: Mosaic) -> None:
        self.counts = LogCounts()
        self.saved: str | None = None
        self._folder, self._budget, self._memory, self._codes = folder, settings.host_bytes, memory, log.lines
        self._file: StreamLog | None = None
        # A state of the posting lists, of the stream as it was last saved or before.
        self._listed: Path | None = None
        rows = [store.lines for store in memory.stores]
        self._gone = log.gone
        self._lines: tuple[FrameLines, ...] = (self._codes, *rows)
        self._widths = ((self._codes.line_bytes,), (*(own.line_bytes for own in rows), memory.index_bytes))
        # By layer, and the bytes that they take together or are about to.
        self._recalled = tuple(RecalledLines(own.line_bytes) for own in rows)
        self._recalled_bytes, self._lock = 0, threading.Lock()
        # Of rows that were read since the last block and found no room.
        self._refused_bytes = 0
        self._codes.below = ArchivedLines(self, CODES, 0)
        for column, own in enumerate(rows):
            own.below = ArchivedLines(self, MEMORY, column)

    @property
    def bytes(self) -> int:
        """Bytes on disk."""
        return 0 if self._file is None else self._file.size

    @property
    def _opened(self) -> StreamLog:
        """The log; StoreError once it was closed."""
        if self._file is None:
            raise StoreError("the stream was closed: load it from where it was saved")
        return self._file

    @property
    def recalled_bytes(self) -> int:
        """Bytes in memory of rows that were read from disk."""
        return self._recalled_bytes

    def read(self, series: int, column: int, frames: FrameNumbers, out: Lines) -> None:
        """Write lines of frames, which rise, that are on disk into `out`: rows from memory if they were read before.

        Raises:
            StoreError: a line is damaged, or the file cannot be read.
        """
        log = self._opened
        if series == CODES or not len(frames):
            log.read_into(series, column, frames, out)
            return
        recalled = self._recalled[column]
        missing = recalled.copy(frames, out)
        if len(missing) == len(frames):
            log.read_into(series, column, frames, out)
            self._keep(recalled, frames, out)
        elif len(missing):
            lines = numpy.empty((len(missing), recalled.width), dtype=numpy.uint8)
            log.read_into(series, column, frames[missing], lines)
            out[missing] = lines
            self._keep(recalled, frames[missing], lines)

    def _keep(self, recalled: RecalledLines, frames: FrameNumbers, lines: Lines) -> None:
        """Keep rows that were read, as many as there is room for."""
        width, wanted = recalled.width, len(frames) - recalled.free
        with self._lock:
            # Layers are read on several threads.
            if self._budget is not None:
                wanted = min(wanted, (self._budget - self._recalled_bytes - self._newest_bytes) // width)
            more = max(0, wanted)
            self._recalled_bytes += more * width
        kept = recalled.keep(frames, lines, more)
        with self._lock:
            self._refused_bytes += (len(frames) - kept) * width

    def _drop(self, recalled: RecalledLines) -> None:
        before = recalled.bytes
        recalled.drop_unused()
        self._release(before - recalled.bytes)

    def _release(self, count: int) -> None:
        with self._lock:
            self._recalled_bytes -= count

    def forget(self, frames: range) -> None:
        """Overwrite rows of frames that were read from disk."""
        for recalled in self._recalled:
            before = recalled.bytes
            recalled.clear(frames)
            self._release(before - recalled.bytes)

    def index(self) -> Tensor:
        """Return the lines that `Mosaic.restore` takes, [frames, bytes] uint8; zeros for frames that were forgotten."""
        frames = self._memory.frames
        live = self._gone.live(frames.start, frames.stop)
        lines = torch.zeros(len(frames), self._memory.index_bytes, dtype=torch.uint8)
        own = self._opened.read(MEMORY, len(self._widths[MEMORY]) - 1, live)
        lines[torch.from_numpy(live - frames.start)] = own
        return lines

    def compact(self, most: float = 0.0) -> None:
        """Write the log again without frames that were forgotten, if they are more than a share of it.

        The former log of a saved stream is deleted by the next save, any other one at once.

        Args:
            most: the share.

        Raises:
            StoreError: the folder cannot be written; the log is as it was.
        """
        log = self._file
        if log is None:
            return
        runs = ((series, run) for series, own in enumerate(log.extents) for run in _live_runs(own, self._gone))
        live = sum(len(run) * log.bytes_of(series) for series, run in runs)
        if log.size - HEADER > live and log.size - HEADER - live >= most * log.size:
            self._renew("")

    def keep_budget(self) -> None:
        """Bring what is in memory down to its budget.

        Rows that were read go first, as long as they have more than their share. Then the oldest frames go to the log;
        within that share they make room for rows that were read and found none.

        Raises:
            StoreError: the log cannot be written; memory keeps what it has.
        """
        if self._budget is None:
            return
        share = int(RECALLED * self._budget)
        while self._recalled_bytes > share and self._recalled_bytes + self._newest_bytes > self._budget:
            self._drop(max(self._recalled, key=lambda own: own.bytes))
        with self._lock:
            room, self._refused_bytes = min(share, self._recalled_bytes + self._refused_bytes), 0
        while self._newest_bytes > self._budget - room and self._lines[1].bytes:
            until = self._lines[1].oldest
            log = self._file
            if log is None or not log.writable:
                log = self._renew("")
            self._write(log, until)
            for own in self._lines:
                own.drop(until)

    @property
    def _newest_bytes(self) -> int:
        return sum(own.bytes for own in self._lines)

    def save(self, name: str, state: StreamState) -> Path:
        """Append what is not in the log, then write the rest of the stream's state; return the file of that.

        Raises:
            StreamError: there is no folder, or this is no name.
            StoreError: the folder cannot be written; what was saved before is as it was.
        """
        path, log = state_path(self._folder, name), self._file
        if log is None or not log.writable or not log.is_there() or log_owner(log) not in ("", name):
            log = self._renew(name)
        elif log_owner(log) != name:
            rename_log(log, name)
        self._write(log, self._memory.frames.stop)
        self._append(log, CODES, self._codes.frames.stop)
        log.sync()
        state.put("lines", log.state())
        try:
            with hold_folder(path.parent):
                keep = (log.path, *self._save_postings(path.parent, name, state))
                write_state(path, state)
                delete_leftovers(path.parent, name, *keep)
        except OSError as error:
            raise StoreError(f"the stream could not be written to {path}: {error.strerror or error}") from error
        self.saved = name
        return path

    def _save_postings(self, folder: Path, name: str, state: StreamState) -> tuple[Path, ...]:
        """Let a state say how the posting lists are made; return the file that it needs, if any.

        They are written whole once so many frames came that adding these again would take long. The folder's lock is
        held.

        Raises:
            StoreError: the folder cannot be written.
        """
        memory, path = self._memory, self._listed
        if not memory.postings:
            return ()
        again = None if memory.since is None else sum(map(len, memory.since))
        most = max(REPEATED, len(memory.frames) // SHARE)
        if path is None or not path.exists() or path.name.rpartition("~")[0] != name or again is None or again > most:
            path = new_postings_path(folder, name)
            try:
                write_state(path, memory.postings_state())
            except BaseException:
                # What `since` counts from is not there.
                memory.since = None
                raise
            self._listed = path
        state.put("postings", StreamState(facts={"file": path.name, "since": memory.since}))
        return (path,)

    def read_postings(self, folder: Path, state: StreamState) -> tuple[StreamState | None, Sequence[Sequence[int]]]:
        """Return an earlier state of the posting lists, and the frames that came after it; None where there are none.

        Raises:
            StreamError: its file is gone.
            StoreError: it is damaged.
            ValueError, KeyError, TypeError: the state is damaged.
        """
        if not self._memory.postings:
            return None, ()
        facts = state.part("postings").facts
        listed = read_postings(folder, facts["file"])
        self._listed = folder / facts["file"]
        return listed, facts["since"]

    def restore(self, name: str, state: StreamState, frames: range, held: bool) -> None:
        """Go on from a saved stream; its lines are read when they are asked for.

        Args:
            frames: those that have left the window.
            held: whether the folder's lock is held.

        Raises:
            StreamError: the log is gone.
            StoreError: it is another stream's, ends too early, or cannot be read.
            ValueError, KeyError, TypeError: the state is damaged.
        """
        folder = state_path(self._folder, name).parent
        self._file = log = open_log(folder, state, self._widths, self.counts, held)
        self.saved = name
        if log.writable:
            delete_leftovers(folder, name, log.path, *(() if self._listed is None else (self._listed,)))
        for own in self._lines[1:]:
            own.begin(frames.start, len(frames))

    def close(self) -> None:
        """Give back the file; one that is of no saved stream is deleted."""
        log, self._file = self._file, None
        if log is not None:
            _leave(log)

    def _write(self, log: StreamLog, until: int) -> None:
        """Append what is not in the log of frames before `until`."""
        self._append(log, CODES, until)
        self._append(log, MEMORY, until)

    def _append(self, log: StreamLog, series: int, until: int) -> None:
        end = log.end(series)
        start = self._lines[series].first if end is None else end
        for frames in _parts(self._gone.live_runs(range(start, until)), log.bytes_of(series)):
            log.append(series, frames, self._columns(series, frames))

    def _columns(self, series: int, frames: range) -> Sequence[Tensor]:
        numbers = numpy.array(frames, dtype=numpy.int64)
        lines = self._lines[:1] if series == CODES else self._lines[1:]
        columns = [own.copy(numbers).view(torch.uint8) for own in lines]
        return columns if series == CODES else [*columns, self._memory.index_lines(frames)]

    def _renew(self, name: str) -> StreamLog:
        """Go on in a new log, with all that is in the one before.

        Raises:
            StoreError: it cannot be written; the one before is still the stream's.
        """
        if self._folder is None:
            raise StreamError("the engine keeps nothing on disk: open it with store= and a folder")
        old, log = self._file, new_log(self._folder, name, self._widths, self.counts)
        try:
            if old is not None:
                _copy(old, log, self._gone)
        except BaseException:
            log.close()
            log.path.unlink(missing_ok=True)
            raise
        self._file = log
        if old is not None:
            _leave(old)
        return log


def _copy(old: StreamLog, log: StreamLog, gone: ForgottenFrames) -> None:
    """Append all extents of a log to another one, neighbours as one, without frames that were forgotten."""
    for series, extents in enumerate(old.extents):
        for part in _parts(_live_runs(extents, gone), log.bytes_of(series)):
            numbers = numpy.array(part, dtype=numpy.int64)
            log.append(series, part, [old.read(series, column, numbers) for column in range(len(log.widths[series]))])


def _live_runs(extents: Sequence[Extent], gone: ForgottenFrames) -> list[range]:
    """Return the frames of extents that were not forgotten, neighbours as one run."""
    runs: list[range] = []
    for live in (run for extent in extents for run in gone.live_runs(range(extent.first, extent.stop))):
        joined = bool(runs) and runs[-1].stop == live.start
        runs.append(range(runs.pop().start if joined else live.start, live.stop))
    return runs


def _parts(runs: Sequence[range], frame_bytes: int) -> list[range]:
    """Return runs of frames of so many bytes, divided into what is written at once."""
    step = max(1, MOST_BYTES // frame_bytes)
    return [run[start : start + step] for run in runs for start in range(0, len(run), step)]


def _leave(log: StreamLog) -> None:
    """Give back a log; one of no saved stream is deleted."""
    if not log_owner(log):
        with suppress(OSError):
            log.path.unlink()
    log.close()

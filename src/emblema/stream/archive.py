"""What a stream keeps on disk: records of frames, those that memory has no room for and those that are saved."""

import secrets
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from torch import Tensor

from emblema.errors import StoreError, StreamError
from emblema.stream.forgotten import ForgottenFrames
from emblema.stream.frame_file import MOST_BYTES, DiskCounts, FrameFile, Lines, delete_leftovers, hold_folder
from emblema.stream.frames import FrameLog
from emblema.stream.lines import FrameLines, FrameNumbers
from emblema.stream.mosaic.frame_memory import FrameMemory
from emblema.stream.settings import StreamSettings
from emblema.stream.state import StreamState, state_path, write_state

ERASED = 3
"""Forgotten frames at its beginning, for each live one, from which a file is written again without them."""


@dataclass(frozen=True, slots=True)
class ArchivedLines:
    """The lines of one column that are on disk."""

    archive: "FrameArchive"
    column: int

    def read(self, frames: FrameNumbers, out: Lines) -> None:
        self.archive.file.read_into(self.column, frames, out)


class FrameArchive:
    """Puts frames in a file, and the oldest out of memory.

    Columns are the encoder's codes, the rows of each layer, and what frames are retrieved by. All frames have codes;
    the others come when a frame leaves the window.

    Args:
        folder: of the owner's saved streams; None if the engine keeps nothing on disk.
        settings: of the stream.
        log: codes of all frames; there is a frame.
        memory: of those that left the window.

    Attributes:
        saved: the name under which the stream was last saved; None if it was not.
    """

    def __init__(self, folder: Path | None, settings: StreamSettings, log: FrameLog, memory: FrameMemory) -> None:
        self.counts = DiskCounts()
        self.saved: str | None = None
        self._folder, self._budget, self._memory, self._log = folder, settings.host_bytes, memory, log
        self._lines: tuple[FrameLines, ...] = (log.lines, *(store.lines for store in memory.stores))
        self._widths = (*(own.line_bytes for own in self._lines), memory.index_bytes)
        self._file: FrameFile | None = None
        # Frames before these have codes, and the other columns, in the file.
        self._codes_end = self._rows_end = 0
        # Frames that the last save needs, and forgotten ones that are zeros in the file.
        self._needed, self._erased = 0, ForgottenFrames()
        for column, own in enumerate(self._lines):
            own.below = ArchivedLines(self, column)

    @property
    def file(self) -> FrameFile:
        """The open file; StoreError once it was closed."""
        if self._file is None:
            raise StoreError("the stream was closed: load it from where it was saved")
        return self._file

    def keep_budget(self) -> None:
        """Bring what is in memory down to its budget: the oldest frames go to the file.

        Raises:
            StoreError: the file cannot be written; memory keeps what it has.
        """
        if self._budget is None:
            return
        while sum(own.bytes for own in self._lines) > self._budget and self._lines[1].bytes:
            until = self._lines[1].oldest
            file = self._writable("")
            self._write_codes(file, until)
            self._write_rows(file, until)
            for own in self._lines:
                own.drop(until)

    def save(self, name: str, state: StreamState) -> Path:
        """Write what is not in the file, then the rest of the stream's state; return the file of that.

        Raises:
            StreamError: there is no folder, or this is no name.
            StoreError: the folder cannot be written; what was saved before is as it was.
        """
        path, file = state_path(self._folder, name), self._writable(name)
        if file.owner != name:
            file.rename(name)
        self._write_rows(file, self._memory.frames.stop)
        self._write_codes(file, len(self._log))
        file.resize(len(self._log))
        file.sync()
        state.put("file", StreamState(facts=file.facts(len(self._log))))
        state.put("erased", self._erased.state())
        try:
            with hold_folder(path.parent):
                write_state(path, state)
                delete_leftovers(path.parent, name, file.path)
        except OSError as error:
            raise StoreError(f"the stream could not be written to {path}: {error.strerror or error}") from error
        self.saved, self._needed = name, 0
        self.erase()
        self._needed = len(self._log)
        return path

    def erase(self) -> None:
        """Overwrite forgotten frames in the file, but for those that the last save needs.

        Raises:
            StoreError: the file cannot be written; the call may be repeated.
        """
        if self._file is None or not self._file.writable:
            return
        gone = self._log.gone
        for run in gone.runs():
            for part in self._erased.live_runs(range(max(run.start, self._needed, self._file.first), run.stop)):
                self._file.erase(part)
                self._erased.add(part)

    def restore(self, name: str, state: StreamState, held: bool) -> Tensor:
        """Go on from a saved stream; its lines are read when they are asked for.

        Args:
            held: whether the folder's lock is held.

        Returns:
            The lines for `FrameMemory.restore`, [frames, bytes] uint8; zeros for frames that were forgotten.

        Raises:
            StreamError: the file is gone.
            StoreError: it is another stream's, ends too early, or cannot be read.
            ValueError, KeyError, TypeError: the state is damaged.
        """
        folder, facts = state_path(self._folder, name).parent, state.part("memory").facts
        frames = range(facts["first"], facts["first"] + facts["count"])
        self._file = file = FrameFile.open(folder, state.part("file").facts, self._widths, self.counts, held)
        self._erased.restore(state.part("erased"))
        self._codes_end, self._rows_end = len(self._log), frames.stop
        self.saved = name
        if file.writable:
            delete_leftovers(folder, name, file.path)
            self.erase()
        self._needed = len(self._log)
        for own in self._lines[1:]:
            own.begin(frames.start, len(frames))
        live = self._log.gone.live(frames.start, frames.stop)
        lines = torch.zeros(len(frames), self._widths[-1], dtype=torch.uint8)
        found = numpy.empty((len(live), self._widths[-1]), dtype=numpy.uint8)
        file.read_into(len(self._widths) - 1, live, found)
        lines[torch.from_numpy(live - frames.start)] = torch.from_numpy(found)
        return lines

    def close(self) -> None:
        """Give back the file; one that is of no saved stream is deleted."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _write_codes(self, file: FrameFile, until: int) -> None:
        for frames in self._parts(file, range(self._codes_end, until)):
            numbers = numpy.array(frames, dtype=numpy.int64)
            file.write(0, frames, [self._lines[0].copy(numbers).view(torch.uint8)])
        self._codes_end = max(self._codes_end, until)

    def _write_rows(self, file: FrameFile, until: int) -> None:
        for frames in self._parts(file, range(max(self._rows_end, self._memory.frames.start), until)):
            numbers = numpy.array(frames, dtype=numpy.int64)
            rows = [own.copy(numbers).view(torch.uint8) for own in self._lines[1:]]
            file.write(1, frames, [*rows, self._memory.index_lines(frames)])
        self._rows_end = max(self._rows_end, until)

    def _parts(self, file: FrameFile, frames: range) -> list[range]:
        """Return runs of frames that were not forgotten, divided into what is written at once."""
        step = max(1, MOST_BYTES // file.record_bytes)
        runs = self._log.gone.live_runs(frames)
        return [run[start : start + step] for run in runs for start in range(0, len(run), step)]

    def _writable(self, name: str) -> FrameFile:
        """Return a file of a saved stream (empty: of any) to write to: the one that there is, or a copy of it.

        Raises:
            StreamError: there is no folder.
            StoreError: it cannot be written; the one before is still the stream's.
        """
        if self._folder is None:
            raise StreamError("the engine keeps nothing on disk: open it with store= and a folder")
        old, gone, frames = self._file, self._log.gone, len(self._log)
        if old is not None and old.writable:
            wasteful = gone.first() - old.first > ERASED * gone.count_live(old.first, frames)
            if not name or (old.is_there() and old.owner in ("", name) and not wasteful):
                return old
        identity = secrets.token_bytes(16) if old is None else old.identity
        first = min(gone.first(), self._codes_end) if old is not None else 0
        new = FrameFile.create(self._folder, name, identity, first, self._widths, self.counts)
        if old is not None:
            try:
                old.copy(new, gone.live_runs(range(first, self._codes_end)))
            except BaseException:
                new.path.unlink(missing_ok=True)
                new.close()
                raise
            old.close()
        self._file, self._erased = new, ForgottenFrames()
        self._erased.restore(gone.state())
        return new

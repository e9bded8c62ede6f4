"""The calls by which the store reaches its files, between it and the system: one fails, or all are recorded.

`FailingCalls` lets the n-th call fail, or every call from the n-th on. `Recorder` notes what each call changes, so that
`PowerCut` can make the folder as a power cut might have left it: of what was not synced, anything may be missing, and
later changes may be there where earlier ones are not.
"""

import errno
import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from emblema.store import catalogue, files

CHANGING = ("open", "ftruncate", "pwrite", "fsync", "utime", "mkdir", "rename", "replace", "unlink", "rmdir", "chmod")
LOOKING = ("scandir", "listdir", "pread", "fstat", "lstat")


class FailingCalls:
    """The n-th call that reaches a file or the catalogue fails.

    Attributes:
        threads: whose calls count, the thread that made this alone; None for all.

    Args:
        number: the call that fails, from 1; 0 fails none and counts.
        lasting: whether all calls after it fail too.
        code: of the error; the catalogue's is the one sqlite gives in this case.
        reading: whether calls that only look count.
    """

    def __init__(self, number: int, *, lasting: bool = False, code: int = errno.EIO, reading: bool = True) -> None:
        self.number, self.lasting, self.code = number, lasting, code
        self.names, self.reads = CHANGING + (LOOKING if reading else ()), reading
        self.calls, self.failed = 0, list[str]()
        self.threads: set[int] | None = {threading.get_ident()}

    def tick(self, name: str, bytes: int = 0) -> bool:
        """Count a call that writes so many bytes; return whether it fails."""
        if self.threads is not None and threading.get_ident() not in self.threads:
            return False
        self.calls += 1
        fails = self.number > 0 and (self.calls == self.number or (self.lasting and self.calls > self.number))
        if fails:
            self.failed.append(name)
        return fails

    def refuse(self, name: str) -> None:
        """Raise OSError where this call fails."""
        if self.tick(name):
            raise OSError(self.code, os.strerror(self.code), name)

    def refuse_statement(self, statement: str) -> None:
        """Raise sqlite's error where this statement fails."""
        if self.tick(statement.split(None, 1)[0]):
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL if self.code == errno.ENOSPC else sqlite3.SQLITE_IOERR
            raise error

    @contextmanager
    def __call__(self) -> Iterator["FailingCalls"]:
        """Lie between the store and the system until the block ends."""
        with pytest.MonkeyPatch.context() as patch:
            for name in self.names:
                patch.setattr(os, name, self._watched(name, getattr(os, name)))
            patch.setattr(files.os, "fdopen", self._opened(os.fdopen))
            layer = self

            def execute(own: Any, statement: str, *given: Any) -> sqlite3.Cursor:
                if not _in_memory(own):
                    layer.refuse_statement(statement)
                return _EXECUTE(own, statement, *given)

            def executemany(own: Any, statement: str, *given: Any) -> sqlite3.Cursor:
                if not _in_memory(own):
                    layer.refuse_statement(statement)
                return sqlite3.Connection.executemany(own, statement, *given)

            patch.setattr(catalogue.Connection, "execute", execute)
            patch.setattr(catalogue.Connection, "executemany", executemany, raising=False)
            yield self

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if name != "open" or self.reads or given[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                self.refuse(name)
            return real(*given, **named)

        return call

    def _opened(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, mode: str = "r", *given: Any, **named: Any) -> Any:
            file = real(descriptor, mode, *given, **named)
            return _FailingFile(file, self) if "w" in mode else file

        return call


_EXECUTE = catalogue.Connection.execute


class FullDisk(FailingCalls):
    """A disk of so many bytes for the store's files: what would go beyond is refused as on a full disk.

    The catalogue's file is sqlite's own and not counted.

    Args:
        root: folder of the files.
        bytes: of all files together.
    """

    def __init__(self, root: Path, bytes: int) -> None:
        super().__init__(0, code=errno.ENOSPC, reading=False)
        self.root, self.bytes = root, bytes

    def tick(self, name: str, bytes: int = 0) -> bool:
        """Count a call; return whether there is no room for what it makes."""
        super().tick(name)
        full = name in ("write", "open", "mkdir") and self.held() + bytes >= self.bytes
        if full:
            self.failed.append(name)
        return full

    def held(self) -> int:
        """Return the bytes of the files, without those of the catalogue."""
        held = 0
        for place, _, names in os.walk(self.root):
            held += sum(os.stat(os.path.join(place, name)).st_size for name in names if "catalogue.sqlite" not in name)
        return held


def _in_memory(connection: sqlite3.Connection) -> bool:
    return not sqlite3.Connection.execute(connection, "PRAGMA database_list").fetchone()[2]


class _FailingFile:
    """A file whose writes and flushes count, and may fail; one that fails has written half."""

    def __init__(self, file: BinaryIO, calls: FailingCalls) -> None:
        self._file, self._calls = file, calls

    def write(self, data: Any) -> int:
        if self._calls.tick("write", memoryview(data).nbytes):
            self._file.write(memoryview(data)[: len(memoryview(data)) // 2])
            raise OSError(self._calls.code, os.strerror(self._calls.code), "write")
        return self._file.write(data)

    def writelines(self, parts: Any) -> None:
        for part in parts:
            self.write(part)

    def flush(self) -> None:
        self._calls.refuse("flush")
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "_FailingFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Change:
    """One change of the folder, in the order in which they were made.

    Attributes:
        do: `entry`, a name of a folder now means another file, folder or nothing; or `synced`, a file or folder is
            durable as it is now.
        path: of the name, or of what was synced.
        inode: of the file that the name means or that was synced; 0 for a folder, None for nothing.
        folder: whether the name means a folder.
    """

    do: str
    path: Path
    inode: int | None
    folder: bool = False


@dataclass
class Recorder:
    """Notes every change of files below a folder while they are made as always.

    Files are kept by a second name beside the folder, so that each has its own inode for good.

    Attributes:
        root: the folder; its parent is there already.
        kept: beside it, every file that was ever made, by its inode.
        times: after how many changes which inode's time of modification was set to which nanosecond.
    """

    root: Path
    kept: Path
    changes: list[Change] = field(default_factory=list)
    times: list[tuple[int, int, int]] = field(default_factory=list)

    @contextmanager
    def __call__(self) -> Iterator["Recorder"]:
        """Record until the block ends."""
        names = ("open", "mkdir", "rename", "replace", "link", "unlink", "utime", "fsync")
        real = {name: getattr(os, name) for name in names}

        def opened(path: Any, flags: int, *given: Any, **named: Any) -> int:
            where = self._path(path, named.get("dir_fd"))
            new = bool(flags & os.O_CREAT) and self._inside(where) and not os.path.lexists(where)
            descriptor: int = real["open"](path, flags, *given, **named)
            if new:
                self._keep(where)
            return descriptor

        def mkdir(path: Any, *given: Any, **named: Any) -> None:
            real["mkdir"](path, *given, **named)
            self._entry(self._path(path, named.get("dir_fd")), 0, folder=True)

        def moving(name: str) -> Callable[..., None]:
            def move(source: Any, target: Any, **named: Any) -> None:
                first, last = self._path(source, named.get("src_dir_fd")), self._path(target, named.get("dst_dir_fd"))
                inode = os.lstat(first).st_ino
                real[name](source, target, **named)
                self._entry(last, inode)
                self._entry(first, None)

            return move

        def link(source: Any, target: Any, **named: Any) -> None:
            real["link"](source, target, **named)
            path = self._path(target, named.get("dst_dir_fd"))
            self._entry(path, os.lstat(path).st_ino)

        def unlink(path: Any, **named: Any) -> None:
            real["unlink"](path, **named)
            self._entry(self._path(path, named.get("dir_fd")), None)

        def fsync(descriptor: int) -> None:
            real["fsync"](descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if self._inside(path) or path == self.root.parent:
                status = os.fstat(descriptor)
                is_folder = os.path.isdir(path)
                self.changes.append(Change("synced", path, 0 if is_folder else status.st_ino, is_folder))

        def utime(path: Any, **named: Any) -> None:
            real["utime"](path, **named)
            folder = {"dir_fd": named["dir_fd"]} if "dir_fd" in named else {}
            inode = os.stat(path, **folder).st_ino
            if (self.kept / str(inode)).exists():
                self.times.append((len(self.changes), inode, named["ns"][1]))

        own = {"open": opened, "mkdir": mkdir, "link": link, "unlink": unlink, "utime": utime, "fsync": fsync}
        own |= {name: moving(name) for name in ("rename", "replace")}
        with pytest.MonkeyPatch.context() as patch:
            for name, call in own.items():
                patch.setattr(os, name, call)
            yield self

    def _path(self, path: Any, folder: int | None) -> Path:
        base = Path(os.readlink(f"/proc/self/fd/{folder}")) if folder is not None else Path.cwd()
        return base / os.fsdecode(path)

    def _inside(self, path: Path) -> bool:
        # A catalogue's file is sqlite's own.
        return ".sqlite" not in path.name and (path == self.root or self.root in path.parents)

    def _entry(self, path: Path, inode: int | None, folder: bool = False) -> None:
        if self._inside(path):
            self.changes.append(Change("entry", path, inode, folder))

    def _keep(self, path: Path) -> None:
        inode = os.lstat(path).st_ino
        os.link(path, self.kept / str(inode))
        self._entry(path, inode)


class PowerCut:
    """The folder as a power cut may leave it after some of the recorded changes.

    Args:
        recorder: of the changes.
        whole: what each file holds in the end, by inode; files are written once.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._root, self._kept, self._changes = recorder.root, recorder.kept, recorder.changes
        self._times = recorder.times
        self._whole = {int(path.name): path.read_bytes() for path in recorder.kept.iterdir()}

    def leave(self, folder: Path, changes: int, chance: random.Random, lost: float) -> None:
        """Make the folder after so many changes.

        Args:
            folder: where it is made, in place of what is there.
            changes: those that were made.
            chance: decides what is lost.
            lost: share of what was not synced that is lost: 0 nothing, 1 all of it.
        """
        shutil.rmtree(folder, ignore_errors=True)
        made = self._changes[:changes]
        synced: dict[Path, int] = {}
        # By inode, when the file was last synced.
        contents: dict[int, int] = {}
        for number, change in enumerate(made):
            if change.do == "synced" and change.folder:
                synced[change.path] = number
            elif change.do == "synced" and change.inode is not None:
                contents[change.inode] = number
        entries: dict[Path, Change] = {}
        for number, change in enumerate(made):
            durable = number < synced.get(change.path.parent, -1)
            if change.do == "entry" and (durable or chance.random() >= lost):
                entries[change.path] = change
        times: dict[int, int] = {}
        for number, inode, nanoseconds in self._times:
            if number < changes and (number <= contents.get(inode, -1) or chance.random() >= lost):
                times[inode] = nanoseconds
        self._make(folder, entries, contents, times, chance, lost)

    def _make(
        self,
        folder: Path,
        entries: dict[Path, Change],
        contents: Collection[int],
        times: dict[int, int],
        chance: random.Random,
        lost: float,
    ) -> None:
        folders = {path for path, change in entries.items() if change.inode is not None and change.folder}
        # A name in a folder that is lost is lost with it.
        there = {path for path in folders if all(p in folders for p in path.parents if self._root in (p, *p.parents))}
        for path in sorted(there):
            (folder / path.relative_to(self._root)).mkdir()
        for path, change in entries.items():
            if change.inode is None or change.folder or path.parent not in there:
                continue
            kept = self._kept / str(change.inode)
            kept.write_bytes(self._left(change.inode, change.inode in contents, chance, lost))
            if change.inode in times:
                os.utime(kept, ns=(times[change.inode],) * 2)
            os.link(kept, folder / path.relative_to(self._root))

    def _left(self, inode: int, synced: bool, chance: random.Random, lost: float) -> bytes:
        data = self._whole[inode]
        if synced or chance.random() >= lost:
            return data
        return chance.choice(
            [b"", bytes(len(data)), data[: len(data) // 2], data[: len(data) // 2].ljust(len(data), b"\0")]
        )

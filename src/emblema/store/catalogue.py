"""The catalogue of a folder: one sqlite file, which threads and processes share and which is made again if damaged."""

import logging
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from emblema.errors import StoreError
from emblema.store.files import clear, hold_lock
from emblema.store.journal import set_journal

_LOG = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

FILE, LOCK = "catalogue.sqlite", "lock"
"""Names in a folder: the catalogue, and the file that is locked while one is opened or made."""
COMPANIONS = ("-wal", "-shm", "-journal")
"""Endings of the files that sqlite keeps beside one."""
_APPLICATION = 0x656D6263
_CACHE = 64 * 2**20
"""Bytes of pages that a connection keeps at most: the upper levels of a million rows' trees."""
_SAFE = "EXTRA"
"""Unlike with FULL, the end of a rollback journal is durable too."""
WAIT = 60.0
"""Seconds to wait for another process's change."""
_ROOMS = "CREATE TABLE rooms (name TEXT PRIMARY KEY, statements INTEGER NOT NULL)"


class CatalogueError(StoreError):
    """The catalogue cannot be reached or changed now: its folder vanished, is full, or is kept locked."""


class DamagedCatalogueError(sqlite3.DatabaseError):
    """The catalogue is not what was written."""


def _nothing(rows: sqlite3.Connection, fresh: bool) -> None:
    """Do nothing more when a catalogue is opened."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one room in a catalogue.

    Attributes:
        name: of them all.
        statements: make them. Each is executed once in a file; later versions of the program append to them.
        opened: called with every file that is opened to be written, within a transaction, and whether it is new.
        old: names of the files that an earlier version kept them in; taken over and deleted, until 0.2.
    """

    name: str
    statements: tuple[str, ...]
    opened: Callable[[sqlite3.Connection, bool], None] = _nothing
    old: tuple[str, ...] = ()


class Connection(sqlite3.Connection):
    """A connection whose errors are sqlite's own also where a damaged schema's names are no text."""

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*statement)
        except UnicodeDecodeError as error:
            raise DamagedCatalogueError(f"its schema is no text: {error}") from error


@dataclass(slots=True)
class _Opened:
    """An open file: a connection for changes and one for reading, and which file it is; none in memory."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection
    inode: int | None


class Catalogue:
    """Transactions on the catalogue of a folder. What a change wrote is durable at its end.

    Reading waits for no change. A damaged file is set aside as `….damaged`; what can be read of it is taken over.

    Args:
        path: of the file, made where it is not there; None keeps everything in memory.
        tables: that it holds.
        wait: seconds to wait for another process's change.

    Raises:
        StoreError: it cannot be opened. One that cannot be written is opened to be read.

    Attributes:
        read_only: why nothing can be written; None where it can.
        made_again: how often a damaged file was replaced.
        notes: what was put in order at opening, in words.
    """

    def __init__(self, path: Path | None, tables: Tables, wait: float = WAIT) -> None:
        # The process may go to another folder, and sqlite's addresses are whole ones.
        self.path = None if path is None else path.absolute()
        self._tables, self._wait = tables, wait
        self._process, self._inherited = os.getpid(), list[_Opened | None]()
        self.read_only: str | None = None
        self.made_again = 0
        self.notes: list[str] = []
        # Guard the writer and the reader. Where both are held, the first is taken first.
        self._changing = threading.RLock()
        self._reading = self._changing if path is None else threading.RLock()
        self._changer: int | None = None
        self._closed = False
        self._here: _Opened | None = self._attach()

    def read(self, ask: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        """Return what is read. Within a change, its thread sees what it changed; a damaged file is made again first.

        Raises:
            CatalogueError: the folder vanished, or the file cannot be read.
        """
        for last in (False, True):
            here = self._current()
            try:
                if self._changer == threading.get_ident():
                    return ask(here.writer)
                with self._reading:
                    return ask(here.reader)
            except sqlite3.Error as error:
                self._mend(here, error, last)
        raise AssertionError("unreachable")

    @contextmanager
    def change(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Do everything within or, after an exception, nothing; no other thread or process changes it meanwhile.

        Args:
            durable: whether a power cut may not take it back.

        Raises:
            CatalogueError: it cannot be changed. If it was damaged, it has been made again: see `retried`.
        """
        with self._changing:
            if self._changer is not None and self._here is not None:
                yield self._here.writer
                return
            here = self._begin(durable)
            self._changer = threading.get_ident()
            try:
                yield here.writer
                here.writer.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    here.writer.execute("ROLLBACK")
                self._changer = None
                if isinstance(error, sqlite3.Error):
                    self._mend(here, error)
                    raise CatalogueError(f"{self.path} was not to be changed: {error}") from error
                raise
            finally:
                self._changer = None

    def retried(self, act: Callable[[], _Answer]) -> _Answer:
        """Do something that changes the catalogue, and do it again if the catalogue was made again meanwhile."""
        before = self.made_again
        try:
            return act()
        except CatalogueError:
            if self.made_again == before:
                raise
            return act()

    def version(self) -> tuple[int, int]:
        """Return what is another value after every change by any process."""
        question = "PRAGMA data_version" if self.path is not None else "SELECT total_changes()"
        return self.read(lambda rows: (id(rows), int(rows.execute(question).fetchone()[0])))

    def check_writable(self) -> None:
        """Raise CatalogueError where it can only be read."""
        if self.read_only is not None:
            raise CatalogueError(f"{self.read_only}: nothing can be changed in it")

    def checkpoint(self) -> None:
        """Bring the journal into the file, outside a change."""
        with self._changing, suppress(sqlite3.Error):
            self._current().writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close it; may be called more than once."""
        with self._changing, self._reading:
            self._closed = True
            self._drop()

    def _begin(self, durable: bool) -> _Opened:
        """Begin a change of the file that is in its place, and return it."""
        while True:
            self.check_writable()
            here = self._current()
            try:
                here.writer.execute(f"PRAGMA synchronous = {_SAFE if durable else 'NORMAL'}")
                here.writer.execute("BEGIN IMMEDIATE")
                if here.inode == _inode(self.path):
                    return here
                # Another process has made it again.
                here.writer.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._mend(here, error)
                raise CatalogueError(f"{self.path} was not to be changed: {error}") from error

    def _current(self) -> _Opened:
        """Return the file that is in its place, opened again if it is another.

        Raises:
            CatalogueError: it is closed, its folder has vanished, or it cannot be opened again.
        """
        if self._process != os.getpid():
            # The parent's connections are the parent's.
            self._inherited.append(self._here)
            self._process, self._here = os.getpid(), None
        here = self._here
        if self._closed:
            raise CatalogueError(f"{self.path}: the store is closed")
        if here is not None and (self.path is None or self.read_only or here.inode == _inode(self.path)):
            return here
        if self.path is not None and not self.path.parent.is_dir():
            raise CatalogueError(f"{self.path.parent} has vanished: bring it back, or open the store again")
        with self._changing:
            return self._attach_again(here) if self._here is here or self._here is None else self._here

    def _mend(self, here: _Opened, error: sqlite3.Error, last: bool = False) -> None:
        """Make the file again after an error if it is damaged; raise CatalogueError if it is not."""
        with self._changing:
            if self._here is not here and not last:
                # Another thread has.
                return
            if last or not is_damage(error) or self.path is None or self.read_only:
                raise CatalogueError(f"{self.path} does not answer: {error}") from error
            self._attach_again(here, damaged=True)

    def _attach_again(self, here: _Opened | None, damaged: bool = False) -> _Opened:
        with self._reading:
            self._drop()
            self._here = self._attach(here.inode if here is not None and damaged else None, again=True)
            return self._here

    def _drop(self) -> None:
        if self._here is not None:
            for connection in {self._here.reader, self._here.writer}:
                # A file that went bad cannot be checkpointed.
                with suppress(sqlite3.Error):
                    connection.close()
            self._here = None

    def _attach(self, damaged: int | None = None, again: bool = False) -> _Opened:
        """Open the file, or make it again if it is damaged.

        Args:
            damaged: inode of a file that is known to be.
            again: raise the error where it cannot be written, instead of opening it to be read.
        """
        if self.path is None:
            with ExitStack() as opened:
                memory = self._connect(opened, ":memory:")
                self._prepare(memory, ())
                opened.pop_all()
                return _Opened(memory, memory, None)
        try:
            with self._locked(self.path.with_name(LOCK)):
                try:
                    if damaged is not None and _inode(self.path) == damaged:
                        raise DamagedCatalogueError("it is damaged")
                    return self._open(self.path, None)
                except sqlite3.Error as error:
                    # A file that may be written, and says of itself that it may not, is damaged in its first bytes.
                    locked_by_itself = _code(error) == sqlite3.SQLITE_READONLY and os.access(self.path, os.W_OK)
                    if not (is_damage(error) or locked_by_itself):
                        raise
                    old = _set_aside(self.path)
                    self.made_again += 1
                    self.notes.append(f"made the catalogue again ({error})")
                    _LOG.warning("%s is damaged (%s) and is made again", self.path, error)
                    return self._open(self.path, old)
        except (OSError, sqlite3.Error) as error:
            busy = isinstance(error, TimeoutError) or _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if again or busy:
                raise CatalogueError(f"{self.path} cannot be opened: {error}") from error
            return self._open_to_read(self.path, error)

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        """Hold the lock of a folder, so that one process at a time opens, makes or replaces the file."""
        if path.is_symlink() or (path.exists() and not path.is_file()):
            # No process can have locked it.
            clear(path)
            self.notes.append(f"{path.name} was no file and was made again")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with hold_lock(descriptor, path, seconds=self._wait):
                yield
        finally:
            os.close(descriptor)

    def _open(self, path: Path, old: Path | None) -> _Opened:
        """Open the file and check it; `old` is one whose rows are taken over."""
        if not _is_plain(path):
            raise DamagedCatalogueError("it is not a plain file")
        if not path.exists():
            # A journal must never meet another file.
            for each in _files(path):
                clear(each)
        # Made here so that nobody else may ever read it; sqlite gives its companions the same rights.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        with ExitStack() as opened:
            writer = self._connect(opened, f"{path.as_uri()}?mode=rw")
            set_journal(writer, path)
            if writer.execute("PRAGMA integrity_check(1)").fetchone() != ("ok",):
                raise DamagedCatalogueError("a page is damaged")
            before = [path.with_name(name) for name in self._tables.old]
            self._prepare(writer, [each for each in before if each.exists()] if old is None else [old])
            for each in before:
                for file in _files(each):
                    clear(file)
            reader = self._connect(opened, f"{path.as_uri()}?mode=rw")
            reader.execute("PRAGMA query_only = 1")
            here = _Opened(writer, reader, path.stat().st_ino)
            opened.pop_all()
            return here

    def _open_to_read(self, path: Path, reason: Exception) -> _Opened:
        """Open a file that cannot be written; without a journal nobody changes it, so no lock is needed."""
        text = getattr(reason, "strerror", None) or str(reason)
        if not path.is_file() or path.is_symlink():
            raise StoreError(f"{path} cannot be opened: {text}") from reason
        unlogged = "" if path.with_name(path.name + COMPANIONS[0]).exists() else "&immutable=1"
        try:
            with ExitStack() as opened:
                reader = self._connect(opened, f"{path.as_uri()}?mode=ro{unlogged}")
                reader.execute("SELECT 1 FROM rooms").fetchone()
                opened.pop_all()
        except sqlite3.Error as error:
            raise StoreError(f"{path} can neither be written ({text}) nor read: {error}") from error
        self.read_only = f"{path.parent} cannot be written: {text}"
        self.notes.append(self.read_only)
        _LOG.warning("%s; what is there is read", self.read_only)
        return _Opened(reader, reader, path.stat().st_ino)

    def _connect(self, opened: ExitStack, address: str) -> sqlite3.Connection:
        """Return a connection that `opened` closes, for all threads: the caller locks."""
        connection = sqlite3.connect(
            address, timeout=self._wait, isolation_level=None, check_same_thread=False, factory=Connection, uri=True
        )
        opened.callback(connection.close)
        # Damaged text is text too: its row's checksum tells.
        connection.text_factory = lambda data: data.decode("utf-8", "replace")
        for setting in (
            f"cache_size = -{_CACHE // 1024}", "cell_size_check = 1", "trusted_schema = 0", "foreign_keys = 1",
            f"synchronous = {_SAFE}",
        ):  # fmt: skip
            connection.execute(f"PRAGMA {setting}")
        return connection

    def _prepare(self, rows: sqlite3.Connection, old: Sequence[Path]) -> None:
        """Make the tables as far as the file lacks them, and take over the rows of old files."""
        rows.execute("BEGIN IMMEDIATE")
        fresh = rows.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None
        if fresh:
            rows.execute(f"PRAGMA application_id = {_APPLICATION}")
            rows.execute(_ROOMS)
        elif rows.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
            raise DamagedCatalogueError("its mark is another")
        tables = self._tables
        found = rows.execute("SELECT statements FROM rooms WHERE name = ?", (tables.name,)).fetchone()
        (done,) = (0,) if found is None else found
        if done > len(tables.statements):
            raise StoreError(f"{self.path} was written by a later version: upgrade, or give the store another folder")
        for statement in tables.statements[done:]:
            rows.execute(statement)
        rows.execute("INSERT OR REPLACE INTO rooms VALUES (?, ?)", (tables.name, len(tables.statements)))
        for each in old:
            _take_over(rows, each)
        tables.opened(rows, fresh)
        rows.execute("COMMIT")


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether an error means that the file itself is bad, rather than that it is busy or cannot be written."""
    if isinstance(error, DamagedCatalogueError | sqlite3.IntegrityError | sqlite3.InterfaceError):
        return True
    code = _code(error)
    if code is None:
        return not isinstance(error, sqlite3.ProgrammingError)
    damage = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
    return code in damage or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_SHORT_READ


def _code(error: Exception) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _inode(path: Path | None) -> int | None:
    try:
        return None if path is None else os.stat(path).st_ino
    except OSError:
        return None


def _files(path: Path) -> list[Path]:
    return [path.with_name(path.name + ending) for ending in ("", *COMPANIONS)]


def _is_plain(path: Path) -> bool:
    """Return whether none of a sqlite file's files is a link, a folder or a pipe, on which sqlite would wait."""
    there = [each for each in _files(path) if os.path.lexists(each)]
    return all(stat.S_ISREG(each.lstat().st_mode) for each in there)


def _set_aside(path: Path) -> Path | None:
    """Rename a damaged file, in place of one renamed before, and return it; None where there is nothing to read."""
    aside = path.with_name(path.name + ".damaged")
    plain = _is_plain(path) and path.exists()
    for each, kept in zip(_files(path), _files(aside), strict=True):
        clear(kept)
        if plain and each.exists() and not each.name.endswith("-shm"):
            os.rename(each, kept)
        clear(each)
    return aside if plain else None


def _take_over(rows: sqlite3.Connection, path: Path) -> None:
    """Copy what can be read of a damaged file; those who read rows check them."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, factory=Connection)) as old:
        old.text_factory = lambda data: data.decode("utf-8", "replace")
        for (table,) in rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            if table == "rooms":
                continue
            columns = [row[1] for row in rows.execute(f"PRAGMA table_info({table})")]
            places = ", ".join("?" for _ in columns)
            with suppress(sqlite3.Error):
                for row in old.execute(f"SELECT {', '.join(columns)} FROM {table}"):
                    with suppress(sqlite3.Error):
                        rows.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)

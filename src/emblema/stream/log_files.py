"""Names, owners and leftovers of log files: `NAME~<32 digits>.log` is a saved stream's, without a name none was saved.

Beside it lies `NAME~<32 digits>.postings`, a state of the posting lists. It is replaced by another file, never changed.

Whoever appends to a log holds its lock. A log that nobody holds, and no saved stream of its name says it needs, is what
a crash or a later save left, and is deleted. Which log a saved stream needs changes under the folder's lock alone.
"""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from emblema.errors import StoreError, StreamError
from emblema.store.files import TEMPORARY, hold_lock, make_folder, sync_folder
from emblema.stream.log import LogCounts, StreamLog
from emblema.stream.state import NAME, StreamState, read_state

LOG_NAME = re.compile(rf"({NAME.pattern})?~[0-9a-f]{{32}}\.log")
POSTINGS_NAME = re.compile(rf"{NAME.pattern}~[0-9a-f]{{32}}\.postings")
LOCK = "lock"
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


def new_log(folder: Path, name: str, widths: Sequence[Sequence[int]], counts: LogCounts) -> StreamLog:
    """Return a new log that this process owns, readable by the user alone.

    Args:
        name: of the saved stream; empty if it was not saved.

    Raises:
        StoreError: it cannot be written.
    """
    path = folder / f"{name}~{secrets.token_hex(16)}.log"
    try:
        make_folder(folder, mode=0o700)
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            # Another process took it for a leftover before it was locked.
            os.close(descriptor)
        sync_folder(folder)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        return StreamLog.begin(path, descriptor, widths, counts)
    except StoreError:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise


def open_log(
    folder: Path, state: StreamState, widths: Sequence[Sequence[int]], counts: LogCounts, held: bool = True
) -> StreamLog:
    """Return the log of a saved stream; it is for reading alone while another stream owns it.

    Args:
        held: whether the folder's lock is held; if not, it is for reading alone.

    Raises:
        StreamError: there is no such file.
        StoreError: it is another stream's, ends too early, or cannot be read.
        ValueError, KeyError, TypeError: the state is damaged.
    """
    name, identity = state.facts["file"], bytes.fromhex(state.facts["identity"])
    if LOG_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no log")
    path = folder / name
    try:
        descriptor, writable = _open(path, held)
    except FileNotFoundError as error:
        raise StreamError(f"{path} is gone, and the stream's frames with it: load the stream from a copy") from error
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
    log = StreamLog(path, descriptor, identity, widths, counts)
    log.writable = writable
    try:
        log.restore(state)
    except BaseException:
        log.close()
        raise
    return log


def _open(path: Path, owning: bool) -> tuple[int, bool]:
    """Return a descriptor, and whether it may be written to."""
    if not owning:
        return os.open(path, os.O_RDONLY | _FLAGS), False
    try:
        descriptor = os.open(path, os.O_RDWR | _FLAGS)
    except PermissionError:
        return os.open(path, os.O_RDONLY | _FLAGS), False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return descriptor, False
    return descriptor, True


def rename_log(log: StreamLog, name: str) -> None:
    """Give a log to a saved stream.

    Raises:
        StoreError: it cannot be renamed.
    """
    path = log.path.with_name(f"{name}~{log.path.name.rpartition('~')[2]}")
    try:
        os.rename(log.path, path)
        log.path = path
        sync_folder(path.parent)
    except OSError as error:
        raise StoreError(f"{log.path} cannot be renamed: {error.strerror or error}") from error


def log_owner(log: StreamLog) -> str:
    """Return the name of the saved stream that a log is of; empty for none."""
    return log.path.name.rpartition("~")[0]


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of saved streams.

    Raises:
        OSError: there is no such folder, it cannot be written to, or others hold its lock for too long.
    """
    path = folder / LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600)
    try:
        with hold_lock(descriptor, path):
            yield
    finally:
        os.close(descriptor)


def new_postings_path(folder: Path, name: str) -> Path:
    """Return where a state of a saved stream's posting lists may be written; nothing is there."""
    return folder / f"{name}~{secrets.token_hex(16)}.postings"


def read_postings(folder: Path, name: str) -> StreamState:
    """Return a state of posting lists.

    Args:
        name: of its file.

    Raises:
        StreamError: the file is gone.
        StoreError: it is damaged.
        ValueError: this is no such name.
    """
    if POSTINGS_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no file of postings")
    path = folder / name
    if not path.exists():
        raise StreamError(f"{path} is gone, and frames cannot be found without it: load the stream from a copy")
    return read_state(path)


def delete_leftovers(folder: Path, name: str, *keep: Path) -> None:
    """Delete what nobody needs: files of a saved stream but some, logs of no saved stream, and files half written.

    The folder's lock is held. What another stream appends to, and what cannot be deleted, stays for the next time.
    """
    with suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            path, owner = folder / entry, entry.rpartition("~")[0]
            if LOG_NAME.fullmatch(entry) and owner in ("", name) and path not in keep:
                _delete_unheld(path)
            listed = POSTINGS_NAME.fullmatch(entry) is not None and owner == name and path not in keep
            if listed or (entry.startswith(".") and entry.endswith(TEMPORARY)):
                path.unlink(missing_ok=True)
        sync_folder(folder)


def _delete_unheld(path: Path) -> None:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        finally:
            os.close(descriptor)

"""Files that several processes share: whole writes, and locks between processes."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

TEMPORARY = ".temporary"
"""Ends the name of a file that is being written; a dot begins it."""

LOCK_SECONDS = 60.0
"""How long `hold_lock` waits for other processes."""


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those that it lies in, where they are missing. New ones outlast a power cut.

    Raises:
        OSError: it cannot be made, or there is a file of that name.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_folder(path.parent)
    path.mkdir(mode, exist_ok=True)
    # A folder that may be written but not listed cannot be opened.
    with suppress(PermissionError):
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_whole(path: Path, buffers: Iterable[bytes | memoryview]) -> None:
    """Write a file, readable by its owner alone, that replaces an earlier one whole or not at all.

    It outlasts a power cut once this returns.

    Raises:
        OSError: it cannot be written. The earlier file is as it was, but for an error of the last step, which makes the
            name durable: then either file may be there.
    """
    with written(path, buffers) as name_it:
        name_it()


@contextmanager
def written(
    path: Path, buffers: Iterable[bytes | memoryview], folder: Path | None = None
) -> Iterator[Callable[[], None]]:
    """Write a file without its name, and yield what gives it that, as `write_whole` does; after an error it is gone.

    Args:
        path: of the file.
        buffers: its bytes.
        folder: where it is until then; beside the path by default.

    Raises:
        OSError: it cannot be written.
    """
    descriptor, name = tempfile.mkstemp(dir=folder or path.parent, prefix=".", suffix=TEMPORARY)

    def name_it() -> None:
        os.replace(name, path)
        sync_folder(path.parent)

    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(buffers)
            file.flush()
            os.fsync(file.fileno())
        yield name_it
    except BaseException:
        with suppress(OSError):
            delete_durably(Path(name))
        raise


def write_once(path: Path, data: bytes) -> bytes:
    """Write a file unless it is there, and return what is there: of several who begin at once, the first one's data.

    Raises:
        OSError: it cannot be written or read.
    """
    if not path.exists():
        made = path.with_name(f".{path.name}.{token_hex(8)}")
        try:
            write_whole(made, [data])
            with suppress(FileExistsError):
                os.link(made, path)
        finally:
            made.unlink(missing_ok=True)
        sync_folder(path.parent)
    return path.read_bytes()


def delete_durably(path: Path) -> None:
    """Delete a file, which no power cut brings back once this returns; also where it was deleted just before.

    Raises:
        OSError: it cannot be deleted, or may come back.
    """
    path.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        sync_folder(path.parent)


def clear(path: Path) -> None:
    """Clear a path for another file: delete a file or link there, rename a folder."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if not path.is_dir():
            raise
        path.rename(path.with_name(f"{path.name}.aside-{token_hex(4)}"))


@contextmanager
def hold_lock(descriptor: int, path: Path, *, shared: bool = False, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of an open file; it falls when the process ends.

    Args:
        descriptor: of the file. Opening the file a second time makes a second holder, in this process too.
        path: of the file, for the error.
        shared: hold it together with others that hold it shared.
        seconds: how long to wait for others.

    Raises:
        TimeoutError: others keep it for longer.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has kept {path} for {seconds:.0f} s") from None
            time.sleep(0.001)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

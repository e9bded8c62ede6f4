"""Files that several processes share: whole writes, and locks between processes."""

import fcntl
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_SECONDS = 60.0
"""How long `hold_lock` waits for other processes."""


def write_whole(path: Path, buffers: Iterable[bytes | memoryview]) -> None:
    """Write a file, readable by its owner alone, that replaces an earlier one whole or not at all.

    It outlasts a power cut once this returns.

    Raises:
        OSError: it cannot be written; what was there before is as it was.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".temporary")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(buffers)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def hold_lock(descriptor: int, path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of an open file; it falls when the process ends.

    Args:
        descriptor: of the file. Opening the file a second time makes a second holder, in this process too.
        path: of the file, for the error.
        shared: hold it together with others that hold it shared.

    Raises:
        TimeoutError: others keep it for `LOCK_SECONDS`.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process has kept {path} for {LOCK_SECONDS:.0f} s") from None
            time.sleep(0.001)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

"""Locks between processes, on a file that is there for nothing else."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT = 60.0
"""Seconds to wait for other processes."""


@contextmanager
def flocked(descriptor: int, path: Path, *, shared: bool = False, seconds: float = WAIT) -> Iterator[None]:
    """Hold an open file's lock: alone, or beside others that hold it shared. It falls with the process.

    Args:
        descriptor: of the file; whoever else opens the file anew is another holder, in this process too.
        path: of the file, for the error.
        shared: beside others.
        seconds: to wait for it.

    Raises:
        TimeoutError: others keep it.
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

"""Writing a file so that it is there whole or not at all."""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def write_whole(path: Path, buffers: Iterable[bytes | memoryview]) -> None:
    """Write a file that only its owner may read, in place of an earlier one; it outlasts a power cut when this returns.

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

"""Where media come from: a path, bytes, a file object, an address. Opens them for the process that decodes."""

import inspect
import io
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from emblema.errors import MediaError
from emblema.media.download import fetch
from emblema.media.limits import MediaLimits

Source = str | os.PathLike[str] | bytes | BinaryIO

_ADDRESS = re.compile(r"^(data:|[a-z][a-z0-9+.-]+://)", re.IGNORECASE)


def describe(source: object) -> str:
    """Return a short name of a source, for messages."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"{len(source)} bytes of data"
    if isinstance(source, str | os.PathLike):
        text = os.fsdecode(source)
        return repr(text if len(text) <= 120 else text[:80] + "…" + text[-30:])
    return f"an object of type {type(source).__name__}"


def is_address(source: object) -> bool:
    """Return whether a source is written as a URL rather than as a path."""
    return isinstance(source, str) and _ADDRESS.match(source) is not None


def open_source(source: Source, limits: MediaLimits) -> BinaryIO:
    """Open a file over the source, not empty and within the limits; the caller closes it.

    Raises:
        MediaError: the file is missing, a folder, no regular file, empty, unreadable or too large, or an address
            that `fetch` refuses.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        _check_size(len(source), describe(source), limits.file_bytes)
        return _in_memory(source)
    if is_address(source):
        return _in_memory(fetch(str(source), limits))
    if hasattr(source, "read") and not isinstance(source, str | os.PathLike):
        return open_source(read_object(source, limits), limits)
    if not isinstance(source, str | os.PathLike):
        raise MediaError(f"Cannot read {describe(source)}: give a path, bytes, a file object, or a URL.")
    return _open_file(source, limits)


def read_source(source: Source, limits: MediaLimits) -> bytes:
    """Read the bytes of the source; errors as `open_source`."""
    if isinstance(source, bytes):
        _check_size(len(source), describe(source), limits.file_bytes)
        return source
    with open_source(source, limits) as stream:
        try:
            return stream.read()
        except OSError as error:
            raise MediaError(f"Cannot read {describe(source)}: {error.strerror or error}.") from error


def read_object(file: Any, limits: MediaLimits) -> bytes:
    """Return the content of a file object, from its start where it has one, and one byte more than is allowed at most.

    Raises:
        MediaError: it cannot be read, or does not give bytes.
    """
    name = describe(file)
    try:
        if getattr(file, "seekable", lambda: False)():
            file.seek(0)
        data = file.read(limits.file_bytes + 1)
    except (OSError, ValueError, TypeError, io.UnsupportedOperation) as error:
        raise MediaError(f"Cannot read {name}: {error}.") from error
    if inspect.isawaitable(data):
        if inspect.iscoroutine(data):
            data.close()
        raise MediaError(f"{name} is read by awaiting: give the bytes that `await file.read()` returns.")
    if isinstance(data, str):
        raise MediaError(f"{name} gives text: open the file in binary mode, as open(path, 'rb').")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise MediaError(f"{name} gives a {type(data).__name__}, not bytes.")
    return bytes(data)


def _in_memory(data: bytes | bytearray | memoryview) -> BinaryIO:
    """Return a file in memory, where the system has such; else one without a name."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = os.fdopen(os.memfd_create("media"), "w+b")
    else:
        file = tempfile.TemporaryFile()  # noqa: SIM115
    file.write(data)
    file.flush()
    file.seek(0)
    return cast(BinaryIO, file)


def _open_file(source: str | os.PathLike[str], limits: MediaLimits) -> BinaryIO:
    name = describe(source)
    try:
        path = Path(os.fsdecode(source))
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise MediaError(f"{name} is a folder: give a file.")
        if not stat.S_ISREG(status.st_mode):
            raise MediaError(f"{name} is not a regular file.")
        _check_size(status.st_size, name, limits.file_bytes)
        return path.open("rb")
    except FileNotFoundError as error:
        raise MediaError(f"There is no file {name}.") from error
    except (OSError, ValueError) as error:
        raise MediaError(f"Cannot open {name}: {getattr(error, 'strerror', None) or error}.") from error


def _check_size(size: int, name: str, limit: int) -> None:
    if size == 0:
        raise MediaError(f"{name} is empty." if not name.startswith("0 bytes") else "The data is empty.")
    if size > limit:
        raise MediaError(f"{name} is {size} bytes large; the limit file_bytes is {limit}.")

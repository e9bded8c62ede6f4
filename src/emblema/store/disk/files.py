"""Files and folders by descriptor, so that no link is followed."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def clear(path: Path) -> None:
    """Make place for a file of the store: a file or link goes, a folder is somebody's and is set aside."""
    try:
        path.unlink()
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        if not path.is_dir():
            raise
        path.rename(path.with_name(f"{path.name}.aside-{secrets.token_hex(4)}"))


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder that is no link."""
    descriptor = os.open(path, _OPEN_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Make what a folder lists durable."""
    with open_folder(path) as folder:
        os.fsync(folder)


def files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The names in a folder with their status; none where there is no folder."""
    try:
        entries = os.scandir(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    with entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)

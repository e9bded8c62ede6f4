"""A file while it is written: under a name of its own, locked by its writer, and gone unless it is put in its place."""

import fcntl
import os
import secrets
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class Temporary:
    """A new file in a folder. Leaving the context without `place` deletes it.

    Its lock falls with the writer's process, so that whoever finds the file knows whether somebody still writes to it.

    Args:
        folder: where it is made.
        bytes: that it will have; it has this length at once.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, folder: Path, bytes: int) -> None:
        self.bytes = bytes
        while True:
            self._path = folder / secrets.token_hex(16)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            self.file = open(descriptor, "wb", buffering=2**20)  # noqa: SIM115
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.ftruncate(descriptor, bytes)
                status = os.fstat(descriptor)
            except BaseException:
                self.discard()
                raise
            self.inode = status.st_ino
            if status.st_nlink:
                return
            # Somebody who tidied up took it for a dead writer's before it was locked.
            self.discard()

    def place(self, folder: int, name: str) -> None:
        """Make it the file `name` of an open folder, contents and name durable when this returns."""
        os.rename(self._path, name, dst_dir_fd=folder)
        os.fsync(folder)
        self.discard()

    def finish(self, accessed: float | None = None) -> None:
        """Its contents are written: make them durable; they do not change any more.

        Args:
            accessed: Unix time that its modification time is set to.

        Raises:
            OSError: they did not all reach the disk.
        """
        self.file.flush()
        if accessed is not None:
            os.utime(self.file.fileno(), ns=(round(accessed * 1e9), round(accessed * 1e9)))
        os.fsync(self.file.fileno())

    def discard(self) -> None:
        """Delete it unless it has been put in its place; may be called more than once."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        # A full disk makes closing fail again on what could not be written; the file is deleted by then.
        with suppress(OSError):
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    @staticmethod
    def abandon(path: Path) -> bool:
        """Delete a file whose writer is no more; False where it is still being written."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True

"""Records in a file, a line each, appended as they are made, so that a killed run goes on."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from emblema.errors import EmblemaError


class Keyed(Protocol):
    """A record: a dataclass with a key."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> str: ...


R = TypeVar("R", bound=Keyed)
T = TypeVar("T")


class RecordFile(Generic[R]):
    """A file of records that is read whole and appended to. One process writes it.

    Args:
        path: of the file, made where it is not there.
        read: the record of a line; raises ValueError, TypeError or KeyError where it is none.

    Raises:
        EmblemaError: the file cannot be written, or holds something else than records.
    """

    def __init__(self, path: Path, read: Callable[[str], R]) -> None:
        self.path = path
        self.held: dict[str, R] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise EmblemaError(f"{path}: it cannot be written ({error.strerror}); give another place") from error
        for record in self._read(read):
            self.held[record.key] = record

    def _read(self, read: Callable[[str], R]) -> Iterator[R]:
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            # A run was killed while it wrote: what it left of a line goes.
            self._file.truncate(sum(len(line.encode()) for line in lines[:-1]))
            lines.pop()
        try:
            yield from parsed(self.path, lines, read)
        except EmblemaError:
            self._file.close()
            raise

    def add(self, records: Iterable[R]) -> None:
        """Keep records, written before this returns."""
        for record in records:
            self.held[record.key] = record
            self._file.write(json.dumps(asdict(record)) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def parsed(path: Path, lines: Iterable[str], read: Callable[[str], T]) -> Iterator[T]:
    """What the lines of a file say.

    Raises:
        EmblemaError: one of them is no record.
    """
    for number, line in enumerate(lines, 1):
        try:
            yield read(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EmblemaError(
                f"{path}, line {number}: this is no record of the bench; remove the file to begin anew"
            ) from error


def records_in(path: Path, read: Callable[[str], T]) -> list[T]:
    """The records of a file that another run writes, or wrote; a line that is under way is left out. None are in a
    file that is not there.

    Raises:
        EmblemaError: the file cannot be read, or holds something else than records.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error}); give a run's own file") from error
    return list(parsed(path, (line for line in lines if line.endswith("\n")), read))

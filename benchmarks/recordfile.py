"""Records in a file, a line each, appended as they are made, so that a run that was killed goes on."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from benchmarks.table import Table
from emblema.errors import EmblemaError

VERSION = 1
"""Part of every key: records that an older benchmark made in another way are made again."""


class KeyedRecord(Protocol):
    """A dataclass that knows which record it is."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> str: ...


R = TypeVar("R", bound=KeyedRecord)


class RecordFile(Generic[R]):
    """A file of records of one kind, read whole and appended to. One process writes it.

    Args:
        path: of the file, made where it is not there.
        kind: the records' class, which raises ValueError or TypeError where its fields are not right.

    Raises:
        EmblemaError: the file cannot be written, or holds something else than records.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            self._file = path.open("ab")
        except OSError as error:
            raise EmblemaError(f"{path}: it cannot be written ({error.strerror}); give another place") from error
        if lines and not lines[-1].endswith(b"\n"):
            # A run was killed while it wrote: what it left of a line goes.
            self._file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        self.held: dict[str, R] = {}
        read = TypeAdapter(kind).validate_json
        for number, line in enumerate(lines, 1):
            try:
                record = read(line)
            except (ValidationError, TypeError) as error:
                self._file.close()
                told = f"{path}, line {number}: this is no record of the benchmark; remove the file to begin again"
                raise EmblemaError(told) from error
            self.held[record.key] = record

    def add(self, records: Iterable[R]) -> None:
        """Keep records, written before this returns."""
        for record in records:
            self.held[record.key] = record
            self._file.write(json.dumps(asdict(record)).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


def digest(*parts: object) -> str:
    """Return a key, 32 hex digits, of all that a record's figures depend on, as plain data."""
    text = json.dumps([VERSION, *parts], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table that was measured, under the digest of what it depends on."""

    key: str
    table: Table

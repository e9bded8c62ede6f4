"""Records in a file, a line each, appended as they are made, so that a run that was killed goes on."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from benchmarks.intervals import Interval
from benchmarks.table import Bar, Cell, Plot, Table
from emblema.errors import EmblemaError
from emblema.eval.metrics import Share

VERSION = 1
"""Part of every key: records that an older benchmark made in another way are made again."""


class KeyedRecord(Protocol):
    """A dataclass that says which record it is, and is read from a line again."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def key(self) -> str: ...

    @classmethod
    def read(cls, line: str) -> Self: ...


R = TypeVar("R", bound=KeyedRecord)


class RecordFile(Generic[R]):
    """A file of records of one kind, read whole and appended to. One process writes it.

    Args:
        path: of the file, made where it is not there.
        kind: the records' class; its `read` raises ValueError, TypeError or KeyError where a line is no record.

    Raises:
        EmblemaError: the file cannot be written, or holds something else than records.
    """

    def __init__(self, path: Path, kind: type[R]) -> None:
        self.path = path
        self.held: dict[str, R] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise EmblemaError(f"{path}: it cannot be written ({error.strerror}); give another place") from error
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            # A run was killed while it wrote: what it left of a line goes.
            self._file.truncate(sum(len(line.encode()) for line in lines[:-1]))
            lines.pop()
        try:
            self.held = {record.key: record for record in _parsed(path, lines, kind.read)}
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


def records_in(path: Path, kind: type[R]) -> dict[str, R]:
    """Return the records by key of a file that another run writes, or wrote; none of a file that is not there.

    A last line without its end is left out.

    Raises:
        EmblemaError: the file cannot be read, or holds something else than records.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise EmblemaError(f"{path}: it cannot be read ({error}); give a run's own file") from error
    whole = (line for line in lines if line.endswith("\n"))
    return {record.key: record for record in _parsed(path, whole, kind.read)}


def digest(*parts: object) -> str:
    """Return a key, 32 hex digits, of all that a record's figures depend on, as plain data."""
    text = json.dumps([VERSION, *parts], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def fields_of(line: str, kind: type[Any]) -> dict[str, Any]:
    """Return the fields of a line, which are those of a dataclass, lists as tuples.

    Raises:
        ValueError: the line has other fields.
    """
    found = json.loads(line)
    if not isinstance(found, dict) or found.keys() != {field.name for field in fields(kind)}:
        raise ValueError("no record")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table that was measured, under the digest of what it depends on."""

    key: str
    table: Table

    @classmethod
    def read(cls, line: str) -> Self:
        """Return the record of a line.

        Raises:
            ValueError, TypeError, KeyError: it is none.
        """
        found = fields_of(line, cls)
        table = found["table"]
        rows = tuple(tuple(_cell(cell) for cell in row) for row in table["rows"])
        plots = tuple(Plot(**{**plot, "only": plot["only"] and tuple(plot["only"])}) for plot in table["plots"])
        bars = tuple(Bar(**bar) for bar in table["bars"])
        made = Table(**{**table, "columns": tuple(table["columns"]), "rows": rows, "plots": plots, "bars": bars})
        return cls(found["key"], made)


def recorded_table(tables: RecordFile[TableRecord], key: str, measure: Callable[[], Table]) -> Table:
    """Return the table of a key; it is measured where it is not on record."""
    if key not in tables.held:
        tables.add([TableRecord(key, measure())])
    return tables.held[key].table


def _cell(cell: Any) -> Cell:
    if not isinstance(cell, dict):
        found: Cell = cell
        return found
    return Interval(**cell) if "low" in cell else Share(**cell)


def _parsed(path: Path, lines: Iterable[str], read: Callable[[str], R]) -> Iterator[R]:
    for number, line in enumerate(lines, 1):
        try:
            yield read(line)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise EmblemaError(
                f"{path}, line {number}: this is no record of the benchmark; remove the file to begin again"
            ) from error

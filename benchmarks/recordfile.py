"""Records in a file, a line each, appended as they are made, so that a run that was killed goes on."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from math import nan
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, Union, get_args, get_origin, get_type_hints

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
            self.held = {record.key: record for record in _records(path, lines, kind)}
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
    return {record.key: record for record in _records(path, whole, kind)}


def digest(*parts: object) -> str:
    """Return a key, 32 hex digits, of all that a record's figures depend on, as plain data."""
    text = json.dumps([VERSION, *parts], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def parsed(kind: Any, data: Any) -> Any:
    """Return plain data, as JSON has it, as the type that it was made of: dataclasses, tuples, mappings and unions.

    A field with a default may be missing: older files do not have it.

    Raises:
        ValueError, TypeError: it is something else.
    """
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if not isinstance(data, dict) or not _needed(kind) <= data.keys() <= hints.keys():
            raise ValueError(f"no {kind}")
        return kind(**{name: parsed(hint, data[name]) for name, hint in hints.items() if name in data})
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return next((parsed(choice, data) for choice in inner if _fits(choice, data)), data)
    if origin is tuple:
        each = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(parsed(part, value) for part, value in zip(each, data, strict=True))
    if origin in (dict, Mapping):
        return {name: parsed(inner[1], value) for name, value in data.items()}
    return nan if kind is float and data is None else data


def _fits(kind: Any, data: Any) -> bool:
    """Return whether a choice of a union is the one that some data was made of, where that is a list or an object."""
    if isinstance(kind, type) and is_dataclass(kind):
        return isinstance(data, dict) and data.keys() == _hints(kind).keys()
    return isinstance(data, list) and get_origin(kind) is tuple


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _needed(kind: Any) -> frozenset[str]:
    """Return names of a dataclass's fields without a default."""
    return frozenset(
        field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING
    )


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table that was measured, under the digest of what it depends on."""

    key: str
    table: Table


def recorded_table(tables: RecordFile[TableRecord], key: str, measure: Callable[[], Table]) -> Table:
    """Return the table of a key; it is measured where it is not on record."""
    if key not in tables.held:
        tables.add([TableRecord(key, measure())])
    return tables.held[key].table


def _records(path: Path, lines: Iterable[str], kind: type[R]) -> Iterator[R]:
    for number, line in enumerate(lines, 1):
        try:
            yield parsed(kind, json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise EmblemaError(
                f"{path}, line {number}: this is no record of the benchmark; remove the file to begin again"
            ) from error

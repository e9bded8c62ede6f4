"""Records of a data set's file: lines of jsonl, elements of a JSON document, rows of parquet.

Fields are checked as they are read. An error names the file, the record and what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from emblema.errors import EmblemaError


class DataError(EmblemaError):
    """A data set's file is missing, broken, incomplete or outside the limits."""

    def __init__(self, path: Path, message: str, where: str = "") -> None:
        super().__init__(f"{path}, {where}: {message}" if where else f"{path}: {message}")


@dataclass(frozen=True, slots=True)
class DataLimits:
    """Bounds on a data set from outside.

    Attributes:
        file_bytes: size of a file of records that is read piece by piece (jsonl, parquet).
        document_bytes: size of a JSON document, which is read whole.
        line_bytes: length of a line of jsonl.
        records: records of a file.
        media: pieces of media of one item.
        characters: text of one item.
        cell_bytes: a picture inside a parquet file.
    """

    file_bytes: int = 8 * 2**30
    document_bytes: int = 256 * 2**20
    line_bytes: int = 16 * 2**20
    records: int = 1_000_000
    media: int = 4_096
    characters: int = 4_000_000
    cell_bytes: int = 64 * 2**20


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The fields of one object, and where it is, as messages say it: `line 3`, `row 3`, `record 3, questions[2]`."""

    path: Path
    where: str
    fields: Mapping[str, Any]

    def wrong(self, message: str) -> DataError:
        """Return the error to raise about this record."""
        return DataError(self.path, f"{message}; correct the record or leave it out", self.where)

    def has(self, field: str) -> bool:
        """Return whether a field is there and not null."""
        return self.fields.get(field) is not None

    def value(self, field: str) -> Any:
        """Return a field of any kind."""
        if field not in self.fields:
            raise self.wrong(f"missing {field!r}")
        return self.fields[field]

    def text(self, field: str, default: str | None = None) -> str:
        """Return a string; a number is taken as its digits, as ids are written both ways."""
        if default is not None and not self.has(field):
            return default
        value = self.value(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self._of(field, value, str, "a string")

    def number(self, field: str) -> int:
        """Return a whole number of 0 or more."""
        value = self.value(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._not(field, value, "a whole number of 0 or more")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """Return true or false."""
        return self._of(field, self.fields.get(field, default), bool, "true or false")

    def texts(self, field: str, needed: bool = True) -> list[str]:
        """Return a list of strings; an empty one where there is no such field and it is not needed."""
        values = self._of(field, self.value(field) if needed or self.has(field) else [], list, "a list of strings")
        if not all(isinstance(value, str) for value in values):
            raise self._not(field, values, "a list of strings")
        return list(values)

    def values(self, field: str) -> list[Any]:
        """Return a list of anything."""
        return self._of(field, self.value(field), list, "a list")

    def object(self, field: str) -> DataRecord:
        """Return an object inside this one."""
        return self._inside(field, self.value(field))

    def objects(self, field: str) -> list[DataRecord]:
        """Return a list of objects inside this one."""
        return [self._inside(f"{field}[{place}]", value) for place, value in enumerate(self.values(field))]

    def _inside(self, field: str, value: Any) -> DataRecord:
        found = self._of(field, value, dict, "an object")
        return DataRecord(self.path, f"{self.where}, {field}" if self.where else field, found)

    def _of(self, field: str, value: Any, kind: type[T], what: str) -> T:
        if not isinstance(value, kind):
            raise self._not(field, value, what)
        return value

    def _not(self, field: str, value: Any, what: str) -> DataError:
        return self.wrong(f"{field!r} is {repr(value)[:60]}, not {what}")


def records(path: Path, limits: DataLimits) -> Iterator[DataRecord]:
    """Yield the records of a file: a line or a row each, the elements of a list, or the members of an object.

    Raises:
        DataError: the file is missing, broken, of another kind, or outside the limits.
    """
    readers = {".jsonl": _lines, ".json": _elements, ".parquet": _rows}
    if path.suffix not in readers:
        raise DataError(path, f"its name ends in {path.suffix or 'nothing'}: give one of {', '.join(readers)}")
    for count, record in enumerate(readers[path.suffix](path, limits), start=1):
        if count > limits.records:
            raise record.wrong(f"more than {limits.records} records, which is the limit")
        yield record


def document(path: Path, limits: DataLimits) -> Any:
    """Return what a JSON document holds.

    Raises:
        DataError: it is missing, broken or larger than the limit.
    """
    _check_size(path, limits.document_bytes)
    return _decoded(path, path.read_bytes(), 0)


def _elements(path: Path, limits: DataLimits) -> Iterator[DataRecord]:
    found = document(path, limits)
    if not isinstance(found, list | dict):
        raise DataError(path, "it holds neither a list nor an object of records")
    for place, value in enumerate(found.values() if isinstance(found, dict) else found, start=1):
        yield _object(path, value, f"record {place}")


def _lines(path: Path, limits: DataLimits) -> Iterator[DataRecord]:
    _check_size(path, limits.file_bytes)
    with path.open("rb") as file:
        place = 0
        while line := file.readline(limits.line_bytes + 1):
            place += 1
            if len(line) > limits.line_bytes:
                raise DataError(path, f"longer than {limits.line_bytes} bytes, which is the limit", f"line {place}")
            if line.strip():
                yield _object(path, _decoded(path, line, place), f"line {place}")


def _rows(path: Path, limits: DataLimits) -> Iterator[DataRecord]:
    _check_size(path, limits.file_bytes)
    try:
        from pyarrow import ArrowException  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError(path, "reading parquet needs pyarrow: pip install pyarrow, or convert it to jsonl") from error
    try:
        with ParquetFile(path) as table:
            rows = (row for batch in table.iter_batches(batch_size=16) for row in batch.to_pylist())
            for place, row in enumerate(rows, start=1):
                yield DataRecord(path, f"row {place}", row)
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(path, f"it cannot be read as parquet ({str(error).splitlines()[0]})") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _decoded(path: Path, data: bytes, line: int) -> Any:
    """Return what JSON says, of one line of a file or, where `line` is 0, of a whole one."""
    try:
        return _DECODER.decode(data.decode("utf-8-sig" if line < 2 else "utf-8"))
    except json.JSONDecodeError as error:
        wrong = f"broken JSON: {error.msg.lower()} at column {error.colno}"
        raise DataError(path, wrong, f"line {line or error.lineno}") from error
    except UnicodeDecodeError as error:
        place = line or data.count(b"\n", 0, error.start) + 1
        raise DataError(path, "it is not UTF-8", f"line {place}") from error
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DataError(path, f"broken JSON: {reason}", f"line {line}" if line else "") from error


def _object(path: Path, value: Any, where: str) -> DataRecord:
    if not isinstance(value, dict):
        raise DataError(path, f"it is {repr(value)[:60]}, not an object with fields", where)
    return DataRecord(path, where, value)


def _check_size(path: Path, limit: int) -> None:
    try:
        size = path.stat().st_size if path.is_file() else None
    except (OSError, ValueError) as error:
        raise DataError(path, f"it cannot be opened ({error})") from error
    if size is None:
        raise DataError(path, "there is no such file")
    if size > limit:
        raise DataError(path, f"it is {size} bytes large, beyond the limit of {limit}")

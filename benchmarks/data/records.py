"""Records of a data set's file, with their lines: jsonl, a JSON document, parquet where pyarrow is installed.

Fields are checked as they are read; errors name the file and the line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from emblema.errors import EmblemaError


class DataError(EmblemaError):
    """A data set's file is missing, broken, incomplete or outside the limits; the message names file and line."""

    def __init__(self, path: Path, message: str, place: int = 0, unit: str = "line") -> None:
        where = f"{path}, {unit} {place}" if place else f"{path}"
        super().__init__(f"{where}: {message}")
        self.path, self.place = path, place


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


SUFFIXES = (".jsonl", ".json", ".parquet")
_SPACE = re.compile(r"[ \t\n\r]*")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataRecord:
    """The fields of one object, and where it begins: a line of a text file, a row of a table.

    name: how messages call the object, for one inside another: `questions[2]`.
    """

    path: Path
    place: int
    fields: Mapping[str, Any]
    unit: str = "line"
    name: str = ""

    def wrong(self, message: str) -> DataError:
        """Return the error to raise about this record."""
        return DataError(self.path, f"{self.name}: {message}" if self.name else message, self.place, self.unit)

    def has(self, field: str) -> bool:
        """Return whether a field is there and not null."""
        return self.fields.get(field) is not None

    def need(self, *fields: str) -> None:
        """Raise one error that names every field that is missing."""
        missing = [field for field in fields if field not in self.fields]
        if missing:
            raise self.wrong(f"missing {', '.join(repr(field) for field in missing)}")

    def text(self, field: str, default: str | None = None) -> str:
        """Return a string; a number is taken as its digits, as ids are written both ways."""
        value = self.fields.get(field)
        if value is None and default is not None:
            return default
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self._of(field, value, str, "a string")

    def number(self, field: str) -> int:
        """Return a whole number of 0 or more."""
        value = self.fields.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._not(field, value, "a whole number of 0 or more")
        return value

    def flag(self, field: str, default: bool) -> bool:
        """Return true or false."""
        value = self.fields.get(field, default)
        return self._of(field, value, bool, "true or false")

    def texts(self, field: str) -> list[str]:
        """Return a list of strings."""
        values = self._of(field, self.fields.get(field), list, "a list of strings")
        for value in values:
            if not isinstance(value, str):
                raise self._not(field, values, "a list of strings")
        return list(values)

    def values(self, field: str) -> list[Any]:
        """Return a list of anything."""
        return list(self._of(field, self.fields.get(field), list, "a list"))

    def object(self, field: str) -> DataRecord:
        """Return an object inside this one."""
        return self._inside(field, self.fields.get(field))

    def objects(self, field: str) -> list[DataRecord]:
        """Return a list of objects inside this one."""
        return [self._inside(f"{field}[{place}]", value) for place, value in enumerate(self.values(field))]

    def _inside(self, field: str, value: Any) -> DataRecord:
        found = self._of(field, value, dict, "an object")
        return DataRecord(self.path, self.place, found, self.unit, f"{self.name}.{field}" if self.name else field)

    def _of(self, field: str, value: Any, kind: type[T], what: str) -> T:
        if not isinstance(value, kind):
            raise self._not(field, value, what)
        return value

    def _not(self, field: str, value: Any, what: str) -> DataError:
        if field not in self.fields and "[" not in field:
            return self.wrong(f"missing {field!r}")
        return self.wrong(f"{field!r} is {repr(value)[:60]}, not {what}")


def records(path: Path, limits: DataLimits, key: str | None = None) -> Iterator[DataRecord]:
    """Yield the records of a file: a line each, the elements of a list, or the objects that are members of an object.

    Args:
        key: in a JSON document, the member that holds the list; without it the document itself is the list.

    Raises:
        DataError: the file is missing, broken, of another kind, or outside the limits; it names the line.
    """
    size = _size(path)
    if path.suffix not in SUFFIXES:
        raise DataError(path, f"its name ends in {path.suffix or 'nothing'}: give one of {', '.join(SUFFIXES)}")
    if size > (limits.document_bytes if path.suffix == ".json" else limits.file_bytes):
        raise DataError(path, f"it is {size} bytes large, beyond the limit")
    read = {".jsonl": _lines, ".parquet": _rows}.get(path.suffix)
    found = _elements(path, key) if read is None else read(path, limits)
    for count, record in enumerate(found, start=1):
        if count > limits.records:
            raise record.wrong(f"more than {limits.records} records, which is the limit")
        yield record


def member(path: Path, key: str) -> DataRecord:
    """Return the document's members around `key`'s list: an object with everything but the list."""
    text = _text(path)
    try:
        found = {name: value for name, value, _ in _walk(text, 0) if name != key}
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    return DataRecord(path, 1, {str(name): value for name, value in found.items()})


def document(path: Path, limits: DataLimits) -> DataRecord:
    """Return a JSON document that is one object."""
    if _size(path) > limits.document_bytes:
        raise DataError(path, "it is larger than the limit")
    return member(path, "")


def _lines(path: Path, limits: DataLimits) -> Iterator[DataRecord]:
    with path.open("rb") as file:
        place = 0
        while line := file.readline(limits.line_bytes + 1):
            place += 1
            if len(line) > limits.line_bytes:
                raise DataError(path, f"longer than {limits.line_bytes} bytes, which is the limit", place)
            try:
                text = line.decode("utf-8-sig" if place == 1 else "utf-8").strip()
                value = _DECODER.decode(text) if text else None
            except (ValueError, RecursionError) as error:
                raise _broken(path, error, place) from error
            if text:
                yield _object(path, value, place)


def _elements(path: Path, key: str | None) -> Iterator[DataRecord]:
    text = _text(path)
    try:
        start = 0
        if key is not None:
            places = {name: place for name, _, place in _walk(text, 0)}
            if key not in places:
                raise DataError(path, f"missing {key!r}", 1)
            start = places[key]
        found = list(_walk(text, start, whole=key is None))
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    line, counted = 1, 0
    for _, value, place in found:
        line, counted = line + text.count("\n", counted, place), place
        yield _object(path, value, line)


def _rows(path: Path, limits: DataLimits) -> Iterator[DataRecord]:
    try:
        from pyarrow import ArrowException  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError(path, "reading parquet needs pyarrow: pip install pyarrow, or convert it to jsonl") from error
    try:
        with ParquetFile(path) as table:
            place = 0
            for batch in table.iter_batches(batch_size=16):
                for row in batch.to_pylist():
                    place += 1
                    yield DataRecord(path, place, row, "row")
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(path, f"it cannot be read as parquet ({str(error).splitlines()[0]})") from error


def _walk(text: str, start: int, whole: bool = True) -> Iterator[tuple[str | int, Any, int]]:
    """Yield (name or index, value, offset) of each element of the list or object at an offset.

    Raises:
        ValueError: as the standard decoder; also where there is neither a list nor an object.
    """

    def skip(place: int) -> int:
        found = _SPACE.match(text, place)
        return found.end() if found else place

    def take(place: int, sign: str) -> int:
        if text[place : place + 1] != sign:
            raise json.JSONDecodeError(f"expected {sign!r}", text, place)
        return skip(place + 1)

    place = skip(start)
    opening = text[place : place + 1]
    if opening not in ("[", "{") or not opening:
        raise json.JSONDecodeError("expected a list or an object", text, place)
    closing = "]" if opening == "[" else "}"
    place = skip(place + 1)
    count = 0
    while text[place : place + 1] != closing or count:
        name: str | int = count
        if opening == "{":
            if text[place : place + 1] != '"':
                raise json.JSONDecodeError("expected a name in double quotes", text, place)
            name, place = _DECODER.raw_decode(text, place)
            place = take(skip(place), ":")
        value, end = _DECODER.raw_decode(text, place)
        yield name, value, place
        count += 1
        place = skip(end)
        if text[place : place + 1] == closing:
            break
        place = take(place, ",")
    if whole and skip(place + 1) != len(text):
        raise json.JSONDecodeError("extra data", text, skip(place + 1))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def _object(path: Path, value: Any, place: int) -> DataRecord:
    if not isinstance(value, dict):
        raise DataError(path, f"a record is {repr(value)[:60]}, not an object", place)
    return DataRecord(path, place, value)


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(path, "it is not UTF-8", data.count(b"\n", 0, error.start) + 1) from error


def _size(path: Path) -> int:
    try:
        if path.is_file():
            return path.stat().st_size
    except (OSError, ValueError) as error:
        raise DataError(path, f"it cannot be opened ({error})") from error
    raise DataError(path, "it is a folder: give a file" if path.is_dir() else "there is no such file")


def _broken(path: Path, error: Exception, place: int = 0) -> DataError:
    if isinstance(error, json.JSONDecodeError):
        return DataError(path, f"broken JSON: {error.msg.lower()} at column {error.colno}", place or error.lineno)
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return DataError(path, f"broken JSON: {reason}", place or 1)

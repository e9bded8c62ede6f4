"""Records of a file, one by one with their lines: jsonl, a JSON document, parquet where pyarrow is installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data.limits import DataError, DataLimits
from benchmarks.data.record import Record

SUFFIXES = (".jsonl", ".json", ".parquet")
_SPACE = re.compile(r"[ \t\n\r]*")


def records(path: Path, limits: DataLimits, key: str | None = None) -> Iterator[Record]:
    """The records of a file: a line each, the elements of a list, or the members of an object whose values are objects.

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


def member(path: Path, key: str) -> Record:
    """The document's members around `key`'s list: an object with everything but the list."""
    text = _text(path)
    try:
        found = {name: value for name, value, _ in _walk(text, 0) if name != key}
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    return Record(path, 1, {str(name): value for name, value in found.items()})


def document(path: Path, limits: DataLimits) -> Record:
    """A JSON document that is one object."""
    if _size(path) > limits.document_bytes:
        raise DataError(path, "it is larger than the limit")
    return member(path, "")


def _lines(path: Path, limits: DataLimits) -> Iterator[Record]:
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


def _elements(path: Path, key: str | None) -> Iterator[Record]:
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


def _rows(path: Path, limits: DataLimits) -> Iterator[Record]:
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
                    yield Record(path, place, row, "row")
    except (ArrowException, OSError, ValueError) as error:
        raise DataError(path, f"it cannot be read as parquet ({str(error).splitlines()[0]})") from error


def _walk(text: str, start: int, whole: bool = True) -> Iterator[tuple[str | int, Any, int]]:
    """(name or index, value, offset) of each element of the list or object at an offset.

    Raises:
        ValueError: as the standard decoder; also where neither a list nor an object stands.
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


def _object(path: Path, value: Any, place: int) -> Record:
    if not isinstance(value, dict):
        raise DataError(path, f"a record is {repr(value)[:60]}, not an object", place)
    return Record(path, place, value)


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

"""A run's figures in a file: JSON in which rows are a table that names its columns once, and a row is a line.

A list of objects that is named `rows` is written as `{"columns": […], "rows": [[…], …]}`. A column is a name or, where
its cells are objects with the same names, a name with those: `["intervals", ["accuracy", "eta"]]`; the cells are lists
then. Where a row has nothing in a column, its cell is null. A column whose cells mostly repeat from row to row has them
beside it, `{"column": …, "runs": [[cell, times], …]}`, and no cells in the rows.

A list of plain values that mostly repeat is written as `{"runs": [[value, times], …]}`, and a list of fractions as the
integers that they are times a power of ten, `{"decimals": 2, "values": […]}`, where that is shorter.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from emblema.eval.figures import environment, plain

DIGITS = 5
"""Significant digits of figures in rows."""
WIDTH = 120
"""Characters up to which anything is one line."""
SHARE_OF_RUNS = 0.25
"""Runs over values up to which a list is written as runs."""


def write_rows(found: Mapping[str, Any], path: Path) -> Path:
    """Write figures with the environment that they were made in; returns the path. A NaN is written as null.

    The `rows` of the run keep `DIGITS` digits.
    """
    made = plain({"environment": environment(), **found})
    made = _packed({name: rounded(part) if name == "rows" else part for name, part in made.items()})
    path.write_text(_text(made) + "\n", encoding="utf-8")
    return path


def read_rows(path: Path) -> dict[str, Any]:
    """Return figures as they were written, with None where a row had nothing.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else than figures.
    """
    found = _unpacked(json.loads(path.read_text(encoding="utf-8")))
    if not isinstance(found, dict):
        raise ValueError("it holds no object")
    return found


def as_kept(value: float) -> float:
    """Return a figure with the `DIGITS` that rows keep of it."""
    return float(f"{value:.{DIGITS}g}")


def rounded(value: Any) -> Any:
    """Return plain data with figures of `DIGITS` digits."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return as_kept(value) if isinstance(value, float) else value


def _packed(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        return {inner: _packed(part, inner) for inner, part in value.items()}
    if not isinstance(value, list):
        return value
    if name == "rows" and value and all(isinstance(row, dict) for row in value):
        return _table(value)
    if any(isinstance(part, dict | list) for part in value):
        return [_packed(part) for part in value]
    runs = _runs(value)
    return _decimals(value) if runs is None else {"runs": runs}


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: list[Any] = []
    kept: list[list[Any]] = []
    for column in _columns(rows):
        cells = [_cell(row, column) for row in rows]
        runs = _runs(cells)
        columns.append(column if runs is None else {"column": column, "runs": runs})
        if runs is None:
            kept.append(cells)
    return {"columns": columns, "rows": list(map(list, zip(*kept, strict=True))) or [[] for _ in rows]}


def _runs(values: Sequence[Any]) -> list[list[Any]] | None:
    """Return each value with how many times it is there in a row, or None where that is too many of them."""
    # As they are written: True equals 1, and 1 equals 1.0.
    groups = (list(group) for _, group in groupby(values, _line))
    runs = [[group[0], len(group)] for group in groups]
    return runs if len(runs) < SHARE_OF_RUNS * len(values) else None


def _decimals(values: list[Any]) -> Any:
    if not values or not all(isinstance(value, float) for value in values):
        return values
    exponents = [Decimal(repr(value)).normalize().as_tuple().exponent for value in values]
    decimals = max(0, *(-int(exponent) for exponent in exponents))
    packed = {"decimals": decimals, "values": [int(Decimal(repr(value)).scaleb(decimals)) for value in values]}
    same = _line(list(_fractions(packed))) == _line(values)
    return packed if same and len(_line(packed)) < len(_line(values)) else values


def _fractions(packed: Mapping[str, Any]) -> Iterator[float]:
    return (value / 10 ** packed["decimals"] for value in packed["values"])


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    columns: list[Any] = []
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row[name] for row in rows if row.get(name) is not None]
        alike = all(isinstance(cell, dict) and cell and cell.keys() == cells[0].keys() for cell in cells)
        columns.append([name, _columns(cells)] if cells and alike else name)
    return columns


def _cell(row: Mapping[str, Any], column: Any) -> Any:
    if isinstance(column, str):
        return _packed(row.get(column), column)
    name, columns = column
    held = row.get(name)
    return None if held is None else [_cell(held, part) for part in columns]


def _unpacked(value: Any, name: str = "") -> Any:
    if isinstance(value, list):
        return [_unpacked(part) for part in value]
    if not isinstance(value, dict):
        return value
    if name == "rows" and value.keys() == {"columns", "rows"}:
        return _rows(value["columns"], value["rows"])
    if value.keys() == {"runs"}:
        return list(_repeated(value["runs"]))
    if value.keys() == {"decimals", "values"}:
        return list(_fractions(value))
    return {inner: _unpacked(part, inner) for inner, part in value.items()}


def _rows(columns: Sequence[Any], rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    names = [column["column"] if isinstance(column, dict) else column for column in columns]
    places = [place for place, column in enumerate(columns) if isinstance(column, dict)]
    found = []
    for row, *repeated in zip(rows, *(_repeated(columns[place]["runs"]) for place in places), strict=True):
        cells = list(row)
        for place, cell in zip(places, repeated, strict=True):
            cells.insert(place, cell)
        found.append(_row(names, cells))
    return found


def _repeated(runs: Iterable[Any]) -> Iterator[Any]:
    return (value for value, times in runs for _ in range(times))


def _row(columns: Iterable[Any], cells: Iterable[Any]) -> dict[str, Any]:
    row = {}
    for column, cell in zip(columns, cells, strict=True):
        if isinstance(column, str):
            row[column] = _unpacked(cell, column)
        else:
            name, inner = column
            row[name] = None if cell is None else _row(inner, cell)
    return row


def _text(value: Any) -> str:
    """Return JSON without blanks; what is long and holds objects has its parts in lines of their own, a row is one."""
    line = _line(value)
    parted = "{" in line or (isinstance(value, list) and all(isinstance(part, list) for part in value))
    if len(line) <= WIDTH or not parted:
        return line
    if isinstance(value, dict):
        first, last = "{}"
        table = value.keys() == {"columns", "rows"} and isinstance(value["rows"], list)
        parts = _table_texts(value) if table else [f"{_line(name)}:{_text(part)}" for name, part in value.items()]
    else:
        first, last = "[]"
        parts = [_text(part) for part in value]
    return f"{first}\n" + ",\n".join(parts) + f"\n{last}"


def _table_texts(table: Mapping[str, Any]) -> Iterator[str]:
    columns, rows = table["columns"], table["rows"]
    whole = len(_line(columns)) <= WIDTH
    yield '"columns":' + (_line(columns) if whole else "[\n" + ",\n".join(map(_line, columns)) + "\n]")
    texts = (_text(row) if '"columns":' in _line(row) else _line(row) for row in rows)
    yield '"rows":[\n' + ",\n".join(texts) + "\n]"


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)

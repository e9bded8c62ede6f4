"""Files of figures: what is written is read again, each name of a column is there once, and a row is a line."""

import json
from math import nan
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import Interval
from benchmarks.rowfile import read_rows, write_rows
from benchmarks.table import Bar, Table, cell_text
from emblema.eval.metrics import Share

NAMES = st.text("abc", min_size=1, max_size=3)
CELLS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(0, 9), max_size=3))
OBJECTS = st.recursive(
    st.dictionaries(NAMES, CELLS, min_size=1, max_size=4),
    lambda inner: st.dictionaries(NAMES, inner | CELLS, min_size=1, max_size=4),
    max_leaves=8,
)
WHERE = {"environment": {"cores": 2}}


def uniform(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that all have the same names, with None where a row has nothing."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in names} for row in rows]


@given(st.lists(OBJECTS, max_size=5))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.json"
    found = {**WHERE, "asked": rows, "rows": [{"within": [{"rows": rows}], "mixed": part} for part in rows]}
    write_rows(found, path)
    found["rows"] = [{"within": [{"rows": uniform(rows)}], "mixed": part} for part in rows]
    assert read_rows(path) == found
    once = path.read_bytes()
    assert write_rows(read_rows(path), path).read_bytes() == once


def test_rows_have_five_digits_and_none_for_what_is_no_number(tmp_path: Path) -> None:
    rows = [{"eta": 1 / 3, "intervals": {"eta": [nan, 2e7 / 3]}}, {"eta": nan, "flips": 0.0}]
    path = write_rows({**WHERE, "found": [2 / 3, nan], "tables": [{"rows": rows}], "rows": rows}, tmp_path / "f.json")
    found = read_rows(path)
    assert found["environment"] == WHERE["environment"] and found["found"] == [2 / 3, None]
    assert found["rows"] == [
        {"eta": 0.33333, "intervals": {"eta": [None, 6666700.0]}, "flips": None},
        {"eta": None, "intervals": None, "flips": 0.0},
    ]
    assert found["tables"][0]["rows"][0] == {"eta": 1 / 3, "intervals": {"eta": [None, 2e7 / 3]}, "flips": None}


def test_a_row_is_a_line_and_columns_are_named_once(tmp_path: Path) -> None:
    rows = [
        {"strategy": f"patch-{rank}", "question": "what? " * 30, "kl": [0.0] * 9, "intervals": {"eta": [0.0, 1.0]}}
        for rank in range(1, 30)
    ]
    path = write_rows({**WHERE, "rows": [{"model": "one", "rows": rows}]}, tmp_path / "f.json")
    text = path.read_text(encoding="utf-8")
    assert all(sum(f'"{row["strategy"]}"' in line for line in text.splitlines()) == 1 for row in rows)
    assert len(text.splitlines()) < len(rows) + 30 and text.count('"strategy"') == 1
    json.loads(text, parse_constant=pytest.fail)


def test_a_table_is_the_same_words_before_and_after(tmp_path: Path) -> None:
    # Half way between two words in the file, and not in the run.
    cells = (1.21549995, Interval(12.3499999, 1.0, nan), Share(100.4999999, 3), 7, "word", None)
    table = Table("t", "T", "", tuple("abcdef"), (cells,), (), (Bar("b", 1.21549995, 2.0), Bar("none", None, 1.0)))
    written = read_rows(write_rows({**WHERE, "rows": [table.data()]}, tmp_path / "f.json"))["rows"]
    assert written != [table.data()]
    assert written == [table.kept().data()]
    assert [*map(cell_text, table.kept().rows[0])] != [*map(cell_text, cells)]


@given(st.lists(st.tuples(st.sampled_from([0, 1, 1.0, True, None, "shown"]), st.integers(1, 30)), max_size=5))
def test_values_that_repeat_are_written_as_runs(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[Any, int]]
) -> None:
    values = [value for value, times in runs for _ in range(times)]
    path = write_rows({**WHERE, "rows": [{"shown": values}]}, tmp_path_factory.mktemp("runs") / "f.json")
    (row,) = read_rows(path)["rows"]
    assert [(type(value), value) for value in row["shown"]] == [(type(value), value) for value in values]
    if len(values) > 4 * len(runs) > 0:
        assert '"runs"' in path.read_text(encoding="utf-8")


def test_a_column_that_repeats_stands_beside_the_rows(tmp_path: Path) -> None:
    rows = [{"number": n, "model": "one", "stage": {"name": "s", "sizes": [n > 4]}, "same": 1.0} for n in range(10)]
    path = write_rows({**WHERE, "rows": rows}, tmp_path / "f.json")
    assert read_rows(path)["rows"] == rows
    assert json.loads(path.read_text(encoding="utf-8"))["rows"] == {
        "columns": [
            "number",
            {"column": "model", "runs": [["one", 10]]},
            {"column": ["stage", ["name", "sizes"]], "runs": [[["s", [False]], 5], [["s", [True]], 5]]},
            {"column": "same", "runs": [[1.0, 10]]},
        ],
        "rows": [[number] for number in range(10)],
    }


def test_rows_of_nothing_but_columns_that_repeat_are_read_again(tmp_path: Path) -> None:
    rows = [{"model": "one"} for _ in range(9)]
    assert read_rows(write_rows({**WHERE, "rows": rows}, tmp_path / "f.json"))["rows"] == rows


FRACTIONS = st.integers(-(10**9), 10**9).flatmap(lambda n: st.sampled_from([n / 10**d for d in (0, 2, 5, 12, 25)]))


@given(st.lists(st.one_of(FRACTIONS, st.floats(allow_nan=False, allow_infinity=False)), max_size=9))
def test_fractions_are_read_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    path = write_rows({**WHERE, "found": values}, tmp_path_factory.mktemp("fractions") / "f.json")
    assert [value.hex() for value in read_rows(path)["found"]] == [value.hex() for value in values]


def test_fractions_are_written_as_integers_where_that_is_shorter(tmp_path: Path) -> None:
    found = {"times": [0.0123, 0.2518, -1.0] * 9, "few": [0.5, 1.5], "wide": [1e-9, 1e9] * 9}
    path = write_rows({**WHERE, **found}, tmp_path / "f.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["times"] == {"decimals": 4, "values": [123, 2518, -10000] * 9}
    assert (kept["few"], kept["wide"]) == (found["few"], found["wide"])
    assert read_rows(path)["times"] == found["times"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"rows":{"columns":["a","b"],"rows":[[1]]}}',
        '{"rows":{"columns":["a",{"column":"b","runs":[[0,2]]}],"rows":[[1]]}}',
        "\ud800",
    ],
)
def test_what_is_no_file_of_figures_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ValueError, match=r"."):
        read_rows(path)

import json
from math import nan
from pathlib import Path

import pytest

from benchmarks.figures import read_figures, write_figures


def test_rows_are_plain_json_a_row_a_line_with_five_digits(tmp_path: Path) -> None:
    rows = [{"a": 1 / 3, "b": nan}, {"a": 2, "b": [0.1234567]}]
    path = write_figures({"asked": {"seed": 3}, "rows": rows}, tmp_path / "f.json")
    found = json.loads(path.read_text())
    assert found["rows"] == [{"a": 0.33333, "b": None}, {"a": 2, "b": [0.12346]}]
    assert '{"a": 2, "b": [0.12346]}' in path.read_text().splitlines()
    assert read_figures(path) == found and found["environment"]["cores"]


def test_a_list_is_not_figures(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text("[]")
    with pytest.raises(ValueError, match="no object"):
        read_figures(tmp_path / "f.json")

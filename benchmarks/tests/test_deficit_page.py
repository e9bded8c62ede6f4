"""The page of the deficit shows the figures that are kept, and no others."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import read_figures

RESULTS = Path(__file__).parents[2] / "docs" / "results"
MODELS = ("reference", "reference-mla")
ROWS: list[dict[str, Any]] = read_figures(RESULTS / "deficit.json")["rows"]
PAGE = (RESULTS / "deficit.md").read_text(encoding="utf-8").splitlines()


def cell(figures: dict[str, float]) -> str:
    """A figure as the page shows it: three digits, and its interval where that is more than a point."""
    value, low, high = (f"{figures[name]:.3g}" for name in ("value", "low", "high"))
    return value if value == low == high else f"{value} [{low}, {high}]"


@pytest.mark.parametrize("part", dict.fromkeys(row["part"] for row in ROWS))
def test_a_table_of_the_page_is_made_of_its_figures(part: str) -> None:
    own = [row for row in ROWS if row["part"] == part]
    lines = [f"| {row['figure']} | {row['kamera']} | {' | '.join(cell(row[name]) for name in MODELS)} |" for row in own]
    start = PAGE.index(lines[0])
    assert PAGE[start : start + len(lines) + 1] == [*lines, ""]


def test_the_page_has_no_other_tables() -> None:
    tables = len(dict.fromkeys(row["part"] for row in ROWS))
    assert sum(line.startswith("|") for line in PAGE) == len(ROWS) + 2 * tables

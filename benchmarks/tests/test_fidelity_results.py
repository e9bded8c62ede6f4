"""The page of results is made from files alone, beside the papers' words, and is held to a fresh sample."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.fidelity.papers import statements
from benchmarks.fidelity.results import FIGURES_FILE, departures, page_blocks, verdict
from benchmarks.tasks.registry import TASKS
from emblema.errors import EmblemaError


def test_statements_name_tasks_that_exist() -> None:
    assert all(one.cells for one in statements())
    assert {task for one in statements() for cell in one.cells for task in cell.tasks} <= {*TASKS, "pooled"}


def test_a_bar_is_met_only_by_a_whole_interval_and_enough_flips() -> None:
    row = {"eta": 0.96, "flip_recovery": 1.0, "flips": 99, "intervals": {"eta": [0.94, 0.97]}}
    assert (verdict(row, "eta", 0.95), verdict(row, "flip_recovery", 0.95)) == ("met in the mean", "too few flips")
    row |= {"flips": 100, "intervals": {"eta": [0.951, 0.97], "flip_recovery": [0.9, 1.0]}}
    assert (verdict(row, "eta", 0.95), verdict(row, "flip_recovery", 0.95)) == ("met", "met in the mean")
    assert verdict(row | {"eta": 0.94}, "eta", 0.96) == "missed"


def figures(value: float, half: float, items: int, name: str = "eta") -> dict[str, Any]:
    found = {name: value, "intervals": {name: [value - half, value + half]}}
    return {**found, "items": items, "n": 10 * items, "flips": 4 * items}


@pytest.mark.parametrize(
    ("committed", "fresh", "departs"),
    [
        # A hundredth of the items spreads ten times as far: the bound is 2 * hypot(0.02, 0.2).
        (figures(0.95, 0.02, 400), figures(0.56, 0.0, 4), False),
        (figures(0.95, 0.02, 400), figures(0.54, 0.0, 4), True),
        (figures(1.0, 0.0, 100), figures(1.0, 0.0, 4), False),
        # Eta is held to a sample in which five answers changed, as are 500 of 400 items' for four items.
        (figures(0.95, 0.02, 400) | {"flips": 500}, figures(-3.0, 0.0, 4), True),
        (figures(0.95, 0.02, 400) | {"flips": 499}, figures(-3.0, 0.0, 4), False),
        (figures(0.9, 0.02, 400, "accuracy") | {"flips": 0}, figures(0.2, 0.0, 4, "accuracy"), True),
    ],
)
def test_a_sample_departs_by_more_than_its_size_allows(
    committed: dict[str, Any], fresh: dict[str, Any], departs: bool
) -> None:
    assert len(departures(committed, fresh)) == departs


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows": [{"model": "m"}]}'])
def test_broken_figures_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FIGURES_FILE).write_text(text)
    for folder in (tmp_path, tmp_path / "empty"):
        with pytest.raises(EmblemaError, match="cannot be read"):
            page_blocks(folder)

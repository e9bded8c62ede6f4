"""The page of results is made from files alone, beside the papers' words, and is held to a fresh sample."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.fidelity.papers import STATEMENTS
from benchmarks.fidelity.report import run, wanted_of
from benchmarks.fidelity.results import FIGURES_FILE, check_page, collect, departures, page, sample, write_page
from benchmarks.fidelity.tables import FigureBar, bars_table, verdict
from benchmarks.figures import read_figures
from benchmarks.tasks.registry import TASKS
from emblema.engine.engine import Engine
from emblema.errors import EmblemaError

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.load("reference")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Path:
    place = tmp_path_factory.mktemp("results")
    wanted = wanted_of(["patch-25%", "patch@6%", "oracle-query@6%"], "slid", 6, 1)
    run(["reference"], ["two-page"], wanted, lambda name: engine, place / "one.json", place / "report", QUIET)
    collect([place / "one.json"], place / FIGURES_FILE)
    return place


def test_the_page_says_what_was_measured_and_what_is_stated(folder: Path) -> None:
    text = page(folder)
    rows = read_figures(folder / FIGURES_FILE)["rows"]
    blind = next(row for row in rows if row["strategy"] == "blind")
    assert f"{blind['multi_hop_accuracy']:.3f}" in text
    assert "| ours | reference |" in text
    assert all(f"> {one.words}" in text for one in STATEMENTS)
    assert "Not measured here." in text


def test_statements_name_tasks_that_exist() -> None:
    known = {*TASKS, "pooled"}
    assert {task for one in STATEMENTS for cell in one.cells for task in cell.tasks} <= known
    assert all(one.cells for one in STATEMENTS)


def test_a_page_that_is_not_what_the_files_make_is_refused(folder: Path, tmp_path: Path) -> None:
    out = write_page(folder, tmp_path / "results.md")
    check_page(folder, out)
    out.write_text(out.read_text().replace("0.", "1.", 1))
    with pytest.raises(EmblemaError, match="is not what"):
        check_page(folder, out)
    with pytest.raises(EmblemaError, match="is not what"):
        check_page(folder, tmp_path / "nowhere.md")


def test_a_small_sample_holds_and_changed_figures_do_not(folder: Path, engine: Engine, tmp_path: Path) -> None:
    said = list(sample(folder, 3, lambda name: engine, QUIET))
    assert said == ["reference, two-page, slid: 3 items hold"]
    changed = read_figures(folder / FIGURES_FILE)
    for row in changed["rows"]:
        if row["strategy"] == "patch-25%":
            row["eta"], row["intervals"]["eta"] = 0.2, [0.18, 0.22]
    (tmp_path / FIGURES_FILE).write_text(json.dumps(changed))
    with pytest.raises(EmblemaError, match="patch-25%: eta is .* committed 0.200"):
        list(sample(tmp_path, 3, lambda name: engine, QUIET))


def pooled(strategy: str, **held: Any) -> dict[str, Any]:
    return {"model": "one", "setting": "slid", "task": "pooled", "strategy": strategy, "n": 500, **held}


def test_a_bar_is_met_only_by_a_whole_interval_and_enough_flips() -> None:
    eta, flips = FigureBar("patch-25%", "eta", 0.95), FigureBar("patch-25%", "flip_recovery", 0.95)
    row = pooled("patch-25%", eta=0.96, flip_recovery=1.0, flips=99, intervals={"eta": [0.94, 0.97]})
    assert (verdict(row, eta), verdict(row, flips)) == ("met in the mean", "too few flips")
    row |= {"flips": 100, "intervals": {"eta": [0.951, 0.97], "flip_recovery": [0.9, 1.0]}}
    assert (verdict(row, eta), verdict(row, flips)) == ("met", "met in the mean")
    assert verdict(row | {"eta": 0.94}, FigureBar("patch-25%", "eta", 0.96)) == "missed"
    assert "| met |" in bars_table([row]) and bars_table([row | {"task": "maps"}]) == ""


def figures(value: float, half: float, items: int) -> dict[str, Any]:
    found = {"eta": value, "intervals": {"eta": [value - half, value + half]}}
    return {**found, "items": items, "n": 10 * items, "flips": 4 * items}


def test_a_sample_may_spread_as_its_size_allows() -> None:
    committed = figures(0.95, 0.02, 400)
    # A hundredth of the items spreads ten times as far: the bound is 2 * hypot(0.02, 0.2).
    assert departures(committed, figures(0.56, 0.0, 4)) == []
    assert len(departures(committed, figures(0.54, 0.0, 4))) == 1
    assert departures(figures(1.0, 0.0, 100), figures(1.0, 0.0, 4)) == []


def test_eta_is_held_only_to_samples_with_changed_answers() -> None:
    committed, fresh = figures(0.95, 0.02, 400), figures(-3.0, 0.0, 4)
    assert len(departures(committed | {"flips": 500}, fresh)) == 1, "five changed answers in four items"
    assert departures(committed | {"flips": 499}, fresh) == []
    accuracy = {"accuracy": 0.9, "intervals": {"accuracy": [0.88, 0.92]}, "flips": 0}
    assert len(departures(committed | accuracy, fresh | {"accuracy": 0.2})) == 1


def test_the_committed_page_is_what_its_figures_make() -> None:
    root = Path(__file__).parents[2]
    check_page(root / "docs" / "results", root / "docs" / "results.md")

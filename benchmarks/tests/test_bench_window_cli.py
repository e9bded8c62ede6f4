"""`python -m benchmarks window` as a person runs it."""

from pathlib import Path

import pytest

from benchmarks.rowfile import read_rows
from benchmarks.tests.running import benchmarks, refused
from tests.e2e import commands

LITTLE = ("--steps", "5", "--pictures", "4", "--items", "1", "--seed", "5", "--plain")


def test_the_trace_is_measured_and_written(tmp_path: Path) -> None:
    report = tmp_path / "pages"
    where = ("--only", " agent,", "--report", str(report))
    done = benchmarks("window", *LITTLE, *where)
    assert done.returncode == 0, done.stderr
    assert "auto's rows over new rows, all counted" in done.stdout and "window.md" in done.stdout
    found = read_rows(report / "window.json")
    assert found["asked"] == {
        "items": 1, "seed": 5, "steps": 5, "window": 4, "look_back": 8, "listed": 5, "changing": False, "gone": 0.1,
        "side": 8,
    }  # fmt: skip
    (model,) = found["rows"]
    assert model["model"] == "reference"
    names = [table["name"] for table in model["tables"]]
    assert names == ["trace-agent", "trace-questions", "trace-rows"]
    assert [row["arm"] for row in model["tables"][0]["rows"]] == ["full", "auto", "prefix", "blind"]
    assert [bar["bound"] for bar in model["bars"]] == [0.99, 1.25]
    pictures = {path.name for path in report.glob("*.png")}
    assert pictures == {"reference-agent-steps.png", "reference-agent-agreement.png"}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--only", "speed"), "--only 'speed'"),
        (("--pictures", "40"), "a window of 40 pictures"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in refused("window", "--report", str(tmp_path / "pages"), *options)


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert f"--report {file}" in refused("window", *LITTLE, "--report", str(file))


@pytest.mark.slow
def test_everything_is_measured(tmp_path: Path) -> None:
    done = commands.benchmarks("window", *LITTLE, "--report", str(tmp_path), timeout=900)
    assert done.returncode == 0, done.stderr
    (model,) = read_rows(tmp_path / "window.json")["rows"]
    names = {table["name"] for table in model["tables"]}
    assert {"trace-agent", "trace-novelty", "orbit", "survivors", "recall", "divergence"} <= names

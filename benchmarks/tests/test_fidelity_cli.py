"""`python -m benchmarks fidelity` and `results` as a person runs them."""

from pathlib import Path

import pytest

from benchmarks.figures import read_figures
from benchmarks.tests.running import benchmarks, refused


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the figures of a small run."""
    place = tmp_path_factory.mktemp("figures")
    named = "patch-25%,mpic-8,patch@6%,mpic@6%"
    what = ("--model", "reference-mla", "--tasks", "two-page,album", "--strategies", named)
    how = ("--setting", "both", "--items", "2", "--seed", "3", "--plain")
    where = ("--json", str(place / "small.json"), "--report", str(place / "report"))
    done = benchmarks("fidelity", *what, *how, *where)
    assert done.returncode == 0, done.stderr
    return place


def test_fidelity_writes_rows_a_page_and_plots(measured: Path) -> None:
    found = read_figures(measured / "small.json")
    seen = {(row["task"], row["setting"], row["strategy"]) for row in found["rows"]}
    assert {(task, setting, "patch-25%") for task in ("two-page", "album") for setting in ("visible", "slid")} <= seen
    assert {row["model"] for row in found["rows"]} == {"reference-mla"}
    text = (measured / "report" / "report.md").read_text()
    pictures = [path.name for path in (measured / "report").glob("*.png")]
    assert pictures and all(name in text for name in pictures)


def test_results_writes_a_page_that_holds(measured: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    where = ("--figures", str(measured), "--out", str(out), "--plain")
    done = benchmarks("results", *where, "--runs", str(measured / "small.json"))
    assert done.returncode == 0, done.stderr
    assert "## Beside the papers" in out.read_text()
    done = benchmarks("results", *where, "--check", "--items", "1")
    assert done.returncode == 0, done.stderr
    assert "reference-mla, two-page, slid: 1 items hold" in done.stdout
    out.write_text(out.read_text() + "0.99")
    assert "is not what" in refused("results", *where, "--check")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--tasks", "chess"), "unknown task 'chess'"),
        (("--items", "0"), "0 items"),
        (("--tasks", "mm-niah:/nowhere/file.jsonl"), "/nowhere/file.jsonl"),
    ],
)
def test_bad_input_is_one_clear_line(given: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert said in refused("fidelity", *given, "--report", str(tmp_path / "report"))


def test_a_report_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert f"--report {tmp_path / 'file'}" in refused("fidelity", "--report", str(tmp_path / "file"))

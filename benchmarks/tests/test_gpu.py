"""`python -m benchmarks gpu`: every step runs on a CPU with tiny sizes; what fails is told, and the others are done."""

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cost.subject import CostSubject
from benchmarks.cost.timing import Pace
from benchmarks.gpu import suite
from benchmarks.gpu.run import QUICK, STEPS, GpuOptions, GpuRun
from benchmarks.gpu.suite import suite_table
from benchmarks.gpu.tiers import tiers_table
from benchmarks.tests.running import benchmarks
from emblema.models.load import load_model

QUIET = Console(quiet=True)
QUICKEST = tuple(step for step in STEPS if step != "suite")


def run(folder: Path, steps: tuple[str, ...], minutes: float = 5.0) -> GpuRun:
    return GpuRun(GpuOptions("reference", "cpu", "float32", minutes, 0, steps, QUICK), folder, QUIET)


def test_every_step_is_done_without_optional_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("av", "faiss", "pypdfium2", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    _, found = run(tmp_path, QUICKEST).run()
    assert [(record.step, record.failure) for record in found] == [(step, "") for step in QUICKEST]
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert [table["name"] for table in written["tables"]] == list(QUICKEST)
    page = (tmp_path / "gpu.md").read_text()
    assert "matplotlib is not installed" in page and "suite was not begun" in page and ".png" not in page


def test_a_step_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **named: object) -> None:
        raise RuntimeError("out of memory\nmore of it")

    with monkeypatch.context() as patched:
        patched.setattr("benchmarks.gpu.run.rates_table", fail)
        first = run(tmp_path, ("rates", "place"))
        patched.setattr(first, "_subject", None)
        patched.setattr(GpuRun, "subject", property(fail))
        _, found = first.run()
    assert [record.failure for record in found] == ["RuntimeError: out of memory"] * 2
    assert "rates could not be done: RuntimeError: out of memory." in (tmp_path / "gpu.md").read_text()
    _, found = run(tmp_path, ("rates",)).run()
    assert [(record.step, record.failure) for record in found][0] == ("rates", "")
    assert sum(record.table is not None for record in found) == 1


def test_no_step_is_begun_after_the_time(tmp_path: Path) -> None:
    _, found = run(tmp_path, ("rates", "link"), minutes=0.0).run()
    assert all("no time left" in record.failure and record.table is None for record in found)


def test_chunks_come_from_every_tier(tmp_path: Path) -> None:
    subject = CostSubject("reference", load_model("reference", device="cpu")[0], 0)
    rows = tiers_table(subject, tmp_path, 96, 2, "patch-32", Pace(1, 0.0)).records
    assert len(rows) == 4 and rows[0]["hidden"] is None and all(row["load alone ms"] for row in rows[1:])


@pytest.mark.slow
def test_failing_tests_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_some.py").write_text("def test_good(): pass\ndef test_bad(): assert 0\n")
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    for workers in (0, 2):
        table = suite_table("cpu", ("test_some.py",), 60.0, tmp_path, workers)
        assert dict(table.rows) == {"failed": 1, "passed": 1} and not table.bars[0].holds
        assert (tmp_path / suite.FAILING).read_text() == "test_some.py::test_bad\n"


@pytest.mark.slow
def test_failing_tests_are_listed_though_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import time\ndef test_bad(): assert 0\ndef test_long(): time.sleep(600)\n"
    (tmp_path / "test_some.py").write_text(text)
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    table = suite_table("cpu", ("test_some.py",), 30.0, tmp_path)
    assert table.bars[0].value is None and not table.bars[0].holds
    assert (tmp_path / suite.FAILING).read_text() == "test_some.py::test_bad\n"


@pytest.mark.slow
def test_the_whole_script_on_a_cpu(tmp_path: Path) -> None:
    done = benchmarks("gpu", "--device", "cpu", "--shape", "reference", "--quick", "--plain", "--report", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [step["step"] for step in json.loads((tmp_path / "gpu.json").read_text())["steps"]] == list(STEPS)

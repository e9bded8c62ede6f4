"""`python -m benchmarks gpu`: every step runs on a CPU with tiny sizes; what fails is told, and the others are done."""

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cost.stages import QUICK, RunOptions
from benchmarks.gpu.run import GpuRun


def run(folder: Path, steps: tuple[str, ...], minutes: float = 5.0) -> GpuRun:
    options = RunOptions("reference", "cpu", "float32", 0, steps, QUICK, minutes)
    return GpuRun(options, folder, Console(quiet=True))


def test_every_step_is_done_without_optional_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("av", "faiss", "pypdfium2", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    _, found = run(tmp_path, tuple(GpuRun.stages)).run()
    assert [(record.stage, record.failure) for record in found] == [(step, "") for step in GpuRun.stages]
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert [table["name"] for table in written["tables"]] == list(GpuRun.stages)
    page = (tmp_path / "gpu.md").read_text()
    assert "matplotlib is not installed" in page and ".png" not in page


def test_a_step_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **named: object) -> None:
        raise RuntimeError("out of memory\nmore of it")

    with monkeypatch.context() as patched:
        patched.setattr("benchmarks.cost.run.rates_table", fail)
        _, found = run(tmp_path, ("rates",)).run()
    assert [record.failure for record in found] == ["RuntimeError: out of memory"]
    assert "rates could not be done: RuntimeError: out of memory." in (tmp_path / "gpu.md").read_text()
    _, (record,) = run(tmp_path, ("rates",)).run()
    assert record.table is not None and not record.failure
    _, found = run(tmp_path, ("link",), minutes=0.0).run()
    assert "no time left" in found[-1].failure and "jitter was not begun." in (tmp_path / "gpu.md").read_text()

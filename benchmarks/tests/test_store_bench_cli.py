"""`python -m benchmarks store` as a person runs it."""

import json
from pathlib import Path

import pytest

from benchmarks.tests.running import benchmarks, refused
from tests.e2e import commands


def test_two_parts_are_measured_and_written(tmp_path: Path) -> None:
    figures, pages, disk = tmp_path / "out" / "store.json", tmp_path / "pages", tmp_path / "disk"
    where = ("--json", str(figures), "--report", str(pages), "--disk", str(disk))
    done = benchmarks("store", "--quick", "--only", "throughput, index", "--plain", "--seed", "5", *where)
    assert done.returncode == 0, done.stderr
    assert "verifies every byte" in " ".join(done.stdout.split()) and "seed: 5" in done.stdout
    found = json.loads(figures.read_text())
    assert len(found["throughput"]) == 2 and found["overlap"] == []
    assert sorted(path.name for path in pages.iterdir()) == ["store-index.png", "store-throughput.png", "store.md"]
    assert not list(disk.iterdir())


def test_an_unknown_part_is_refused() -> None:
    assert "unknown part 'speed'" in refused("store", "--only", "speed")


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert f"--report {file}" in refused("store", "--quick", "--report", str(file))


@pytest.mark.slow
def test_everything_is_measured_quickly(tmp_path: Path) -> None:
    done = commands.benchmarks("store", "--quick", "--plain", "--json", str(tmp_path / "store.json"), timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "store.json").read_text())
    assert f"seed: {found['seed']}" in done.stdout
    assert all(found[part] for part in ("throughput", "overlap", "index", "hits", "novelty", "sharing", "compression"))

"""`python -m benchmarks fidelity` and `results` as a person runs them."""

import json
from itertools import product
from pathlib import Path

from benchmarks.fidelity.results import FIGURES_FILE
from benchmarks.figures import read_figures
from benchmarks.tests.running import benchmarks, refused


def test_figures_become_a_page_that_holds(tmp_path: Path) -> None:
    small, out = tmp_path / "small.json", tmp_path / "results.md"
    what = ("--model", "reference-mla", "--tasks", "two-page,album", "--strategies", "patch-25%,patch@6%,mpic@6%")
    done = benchmarks("fidelity", *what, "--items", "2", "--seed", "3", "--plain", "--json", str(small))
    assert done.returncode == 0, done.stderr
    assert "reference-mla, two-page, slid" in done.stdout
    rows = {(row["model"], row["task"], row["setting"], row["strategy"]) for row in read_figures(small)["rows"]}
    assert rows >= set(product(["reference-mla"], ["two-page", "album"], ["visible", "slid"], ["patch-25%"]))
    where = ("--figures", str(tmp_path), "--out", str(out), "--plain")
    done = benchmarks("results", *where, "--runs", str(small))
    assert done.returncode == 0, done.stderr
    assert "### Kamera, section 6, figure 7" in out.read_text()
    done = benchmarks("results", *where, "--check", "--items", "1")
    assert done.returncode == 0, done.stderr
    assert "reference-mla, two-page, slid: 1 items hold" in done.stdout
    changed = read_figures(tmp_path / FIGURES_FILE)
    for row in changed["rows"]:
        row["accuracy"], row["intervals"]["accuracy"] = 0.0, [0.0, 0.0]
    (tmp_path / FIGURES_FILE).write_text(json.dumps(changed))
    assert "is not what its figures make" in refused("results", *where, "--check")
    assert benchmarks("results", *where).returncode == 0
    assert "full: accuracy is 1.000 on " in refused("results", *where, "--check", "--items", "1")

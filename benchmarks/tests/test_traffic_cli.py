"""`python -m benchmarks traffic` as a person runs it."""

from pathlib import Path

import pytest

from benchmarks.rowfile import read_rows
from benchmarks.tests.running import benchmarks, refused

LITTLE = ("--requests", "4", "--pages", "8", "--shown", "4", "--seed", "5", "--plain")


def test_a_little_traffic_is_measured_and_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = (*LITTLE, "--only", "rag,agent,talks", "--methods", "prefix,query-12%,auto", "--report", str(tmp_path))
    done = benchmarks("traffic", *asked)
    assert done.returncode == 0, done.stderr
    found = read_rows(tmp_path / "traffic.json")
    assert "--seed 5 --only rag,agent,talks" in found["command"] and len(found["source"]["digest"]) == 12
    runs = {(row["stage"]["name"], row["method"]): row for row in found["rows"]}
    assert len(runs) == 12
    for (stage, method), row in runs.items():
        full = runs[stage, "full"]
        assert len(row["ttft"]) == 4 and all(
            0 < ttft <= wall for ttft, wall in zip(row["ttft"], row["wall"], strict=True)
        )
        if method in ("full", "prefix"):
            assert row["agrees"] == [1] * 4 and row["ran"] == pytest.approx(row["computed"])
        if method == "full":
            assert row["computed"] == full["prompt"]
    listing = (tmp_path / "traffic.records.jsonl").read_text()
    again = benchmarks("traffic", *asked)
    assert again.returncode == 0 and (tmp_path / "traffic.records.jsonl").read_text() == listing
    assert "4 requests:" not in again.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--only", "speed"), "--only 'speed'"),
        (("--methods", "magic"), "unknown strategy 'magic'"),
        (("--shown", "40"), "40 of 30 pages"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], told: str, tmp_path: Path) -> None:
    assert told in refused("traffic", "--report", str(tmp_path / "pages"), *options)

"""The commands of the benchmarks as a person runs them."""

import json
import os
from pathlib import Path

import pytest

from benchmarks.tests.running import benchmarks, refused
from tests.e2e import commands

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")


def test_streams_are_written(tmp_path: Path) -> None:
    options = "--kind live --frames 12 --items 2 --times 3 --seed 4 --out"
    done = benchmarks("videos", *options.split(), str(tmp_path / "deep"))
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "deep" / "streams.json").read_text())
    assert [{each["end_time"] for each in entry["conversations"]} for entry in entries] == [{8.0, 16.0, 24.0}] * 2


REFUSED = (
    ("videos --kind soap --out .", "unknown kind of stream 'soap'"),
    ("reference --task chess", "unknown task 'chess'"),
    ("fidelity --tasks zebra", "unknown task 'zebra'"),
    ("fidelity --tasks ,", "no tasks"),
    ("fidelity --strategies zebra", "unknown strategy 'zebra'"),
    ("fidelity --strategies mpic@0%", "above 0"),
    ("fidelity --items 0", "0 items"),
    ("fidelity --setting hidden", "unknown setting"),
    ("fidelity --model ,", "no models"),
    ("load --stages speed", "--only 'speed'"),
    ("load --methods magic", "magic"),
    ("load --stages rag --shown 40", "40 of 30 pages"),
    ("load --rates -1", "requests a second"),
    ("load --rates 1", "rates are of servers"),
    ("window --only speed", "--only 'speed'"),
    ("window --pictures 40", "a window of 40"),
    ("window --pictures x", "numbers"),
    ("stream --lengths 8,x", "8,x"),
    ("stream --kinds soap", "soap"),
    ("stream --arms moziac", "moziac"),
    ("cost --shape gpt", "'gpt'"),
    ("cost --device cuda:9", "'cuda:9'"),
    ("cost --dtype int8", "'int8'"),
    ("cost --only speed", "'speed'"),
    ("store --only speed", "--only 'speed'"),
)


@pytest.mark.parametrize(("line", "told"), REFUSED)
def test_what_cannot_be_measured_is_refused_in_one_line(
    line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if line.startswith("fidelity"):
        monkeypatch.setattr("emblema.cli.screen.load_engine", lambda *given, **named: pytest.fail("loaded"))
    assert told in refused(*line.split())


@pytest.mark.nightly
def test_reference_writes_its_figures(tmp_path: Path) -> None:
    done = commands.benchmarks("reference", "--episodes", "3", "--seed", "9", "--model", MODEL, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "re-prefill, multi-hop, slid" in done.stdout
    assert json.loads((tmp_path / "reference-maps-9.json").read_text())["episodes"] == 3

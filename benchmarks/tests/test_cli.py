"""The commands of the benchmarks as a person runs them."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.tests.running import benchmarks, refused
from tests.e2e import commands

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")


def test_episodes_are_written(tmp_path: Path) -> None:
    options = ["--task", "maps", "--seed", "4", "--items", "2"]
    done = commands.benchmarks("episodes", *options, "--out", str(tmp_path / "deep"))
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "deep" / "episodes.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for page in json.loads(lines[0])["pages"]:
        with Image.open(tmp_path / "deep" / page["file"]) as picture:
            picture.load()


def test_streams_are_written(tmp_path: Path) -> None:
    options = ["--kind", "live", "--frames", "12", "--items", "2", "--times", "3", "--seed", "4"]
    done = benchmarks("videos", *options, "--out", str(tmp_path / "deep"))
    assert done.returncode == 0, done.stderr
    entries = json.loads((tmp_path / "deep" / "streams.json").read_text())
    assert len(entries) == 2
    for entry in entries:
        assert (tmp_path / "deep" / entry["video_path"]).stat().st_size > 0
        assert {each["end_time"] for each in entry["conversations"]} == {8.0, 16.0, 24.0}


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "unknown task 'chess'" in refused("episodes", "--task", "chess", "--out", str(tmp_path))
    assert "unknown kind of stream 'soap'" in refused("videos", "--kind", "soap", "--out", str(tmp_path))
    assert "unknown task 'chess'" in refused("reference", "--task", "chess", "--out", str(tmp_path))


@pytest.mark.slow
def test_reference_writes_its_figures(tmp_path: Path) -> None:
    done = commands.benchmarks("reference", "--episodes", "3", "--seed", "9", "--model", MODEL, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "re-prefill, multi-hop, slid" in done.stdout
    assert json.loads((tmp_path / "reference-maps-9.json").read_text())["episodes"] == 3

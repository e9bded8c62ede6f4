"""Every command as a person runs it: a whole process, its output and its exit code."""

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from PIL import Image

from emblema import __version__
from tests.e2e.commands import SOURCE, emblema, refused

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
DEMO = Path(str(files("emblema"))) / "assets" / "demo"


def test_version() -> None:
    done = emblema("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"emblema {__version__}")


def test_help_names_every_command() -> None:
    done = emblema("--help")
    assert done.returncode == 0
    for name in ("demo", "ask", "check", "models", "strategies"):
        assert name in done.stdout


BARE = """
import typer
app = typer.Typer()
app.command("one")(lambda: None)
app.command("two")(lambda: None)
app(["--help"])
"""
"""A program of two commands that do nothing, by the library that ours is made with."""


@pytest.mark.nightly
def test_help_takes_little_more_than_the_library_that_prints_it() -> None:
    assert processor_seconds("-m", "emblema.cli", "--help") < 1.5 * processor_seconds("-c", BARE)


@pytest.mark.nightly
def test_help_is_quick() -> None:
    assert processor_seconds("-m", "emblema.cli", "--help") < 0.5


def test_the_package_is_imported_quickly() -> None:
    assert processor_seconds("-c", "import emblema") < 0.5


def processor_seconds(*arguments: str) -> float:
    """Return the processor seconds of a Python process, the least of three; a busy machine hardly changes them."""
    environment = os.environ | {"PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "COLUMNS": "110"}
    took = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, check=True)
        after = os.times()
        took.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(took)


@pytest.mark.parametrize("command", ["demo", "ask", "check", "models", "strategies", "policy", "store", "stream"])
def test_every_command_has_help(command: str) -> None:
    done = emblema(*command.split(), "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_the_command_line_alone_imports_nothing_heavy() -> None:
    heavy = "'torch', 'transformers', 'matplotlib', 'numpy'"
    script = f"import sys, emblema.cli.app; print([name for name in ({heavy}) if name in sys.modules])"
    environment = os.environ | {"PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_strategies() -> None:
    done = emblema("strategies")
    assert done.returncode == 0
    for name in ("full", "prefix", "blind", "patch-M", "auto"):
        assert name in done.stdout


@pytest.mark.slow
def test_what_is_missing_is_one_line(tmp_path: Path) -> None:
    assert "nowhere.png" in refused("ask", "--image", "nowhere.png", "what ?")
    assert "nowhere.mp4" in refused("ask", "--video", "nowhere.mp4", "what ?")
    assert "no such folder" in refused("store", "ls", "--store", str(tmp_path / "nothing"))


@pytest.mark.nightly
def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    assert str(tmp_path) in refused("ask", "--model", str(tmp_path), "what ?")
    assert "nobody/nothing" in refused("check", "nobody/nothing", "--out", str(tmp_path))


@pytest.mark.nightly
def test_a_process_ends_well_while_its_forming_thread_does() -> None:
    for _ in range(3):
        done = emblema("ask", "--image", str(DEMO / "map-01.png"), "what colour is under the tent ?", "--model", MODEL)
        assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_the_demo_shows_measures_and_draws(tmp_path: Path) -> None:
    done = emblema("demo", "--model", MODEL, "--rounds", "1", "--plain", where=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "prefix, exact by construction, answered as full did on all 18 requests" in done.stdout
    assert "\x1b" not in done.stdout
    found = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert len(found["requests"]) == 72
    assert min(one["prompt_tokens"] for one in found["requests"] if one["strategy"] == "full") >= 1500
    with Image.open(tmp_path / "demo" / "demo.png") as picture:
        assert min(picture.size) > 600

"""The documentation: its Python runs, and the site builds without a warning."""

import re
import shutil
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

from emblema.link.strategies.registry import strategies
from emblema.stream.methods import METHODS

ROOT = Path(__file__).parents[2]
DEMO = Path(str(files("emblema"))) / "assets" / "demo"
TOPICS = ("index", "policy", "store", "store-format", "stream", "vllm", "window")
PAGES = [
    *(ROOT / "docs" / f"{topic}.md" for topic in TOPICS),
    *sorted((ROOT / "docs").glob("how-to/*.md")),
    *sorted((ROOT / "docs").glob("concepts/*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("legend-1.png", "legend-2.png", "legend-3.png", "map-01.png", "map-02.png", "clip.mp4"):
        shutil.copy(DEMO / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
    if page.stem == "stream":
        assert "'index'" in capsys.readouterr().out
    # Blocks for a server elsewhere are not run, but they are Python.
    for block in re.findall(r"```py\n(.*?)```", page.read_text(), re.DOTALL):
        compile(block, page.name, "exec")


def test_the_page_on_streams_names_every_method() -> None:
    page = (ROOT / "docs" / "stream.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(METHODS)


def test_the_page_on_strategies_names_every_strategy() -> None:
    page = (ROOT / "docs" / "concepts" / "plans-and-strategies.md").read_text()
    named = set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (.*?) \|", page, re.MULTILINE))))
    assert named == {name for usage in strategies() for name in usage.split(" | ")}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="make docs installs mkdocs")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()

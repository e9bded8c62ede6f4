"""The README: what it shows runs, what it links to is there."""

import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_first_screen_shows_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", "\n".join(README.splitlines()[:25])))


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("legend-3.png", "map-01.png", "clip.mp4"):
        shutil.copy(Path(str(files("emblema"))) / "assets" / "demo" / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "patch-25%" in printed and printed.count("meadow") == 6 and "orange" in printed


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_every_strategy_is_in_the_table() -> None:
    from emblema.link.strategies.registry import strategies

    named = set(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "concepts" / "plans-and-strategies.md").read_text()))
    assert {part for usage in strategies() for part in usage.split(" | ")} <= named

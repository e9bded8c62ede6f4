"""The README: what it shows runs, what it links to is there."""

import re
from pathlib import Path

import pytest

from tests.docs.shown import run_blocks

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_first_screen_shows_the_two_commands() -> None:
    assert {"make demo", "make test"} <= set(re.findall(r"make \w+", "\n".join(README.splitlines()[:25])))


def test_its_python_prints_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = list(run_blocks(ROOT / "README.md", tmp_path, monkeypatch, capsys))
    for printed, shown in outputs:
        assert printed == shown
    full, blind, auto = (line.split() for line in outputs[0][0].splitlines())
    assert full[1] == auto[1] != blind[1], "blind reuse is wrong, ours is not"
    assert int(full[2].replace(",", "")) > 50 * int(auto[2])


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

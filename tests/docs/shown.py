"""The Python of a page, run as a reader would, and what the page says that it prints."""

import re
import shutil
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

DEMO = Path(str(files("emblema"))) / "assets" / "demo"
SHOWN = re.compile(r"```python\n(.*?)```(?:\n\nPrints[^\n]*:\n\n```text\n(.*?)```)?", re.DOTALL)
"""A block of Python, and what the page says that it prints."""
VARIES = re.compile(r"\d[\d,.]* (?=(?:ms|s|seconds)\b)|\b[0-9a-f]{8}\b")
"""Times, and the short ids of chunks."""


def run_blocks(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[tuple[str, str]]:
    """Run a page's blocks in a folder with the demo's pictures; yield what each printed and what the page shows.

    Times and ids are masked in both.
    """
    for path in DEMO.iterdir():
        shutil.copy(path, folder)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for number, (block, shown) in enumerate(SHOWN.findall(page.read_text()), 1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
        yield VARIES.sub("# ", capsys.readouterr().out), VARIES.sub("# ", shown)

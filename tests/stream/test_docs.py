"""The page on streams: what it shows runs."""

import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from emblema.stream.methods import METHODS

PAGE = (Path(__file__).parents[2] / "docs" / "stream.md").read_text()


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(Path(str(files("emblema"))) / "assets" / "demo" / "clip.mp4", tmp_path)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "stream.md", "exec"), {})
    assert "'index'" in capsys.readouterr().out


def test_it_names_every_method() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(METHODS)

"""Input that is wrong: one line, exit code 2, and nothing is loaded for it."""

import os
from importlib.resources import files
from pathlib import Path

from tests.cli.running import refused

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
DEMO = Path(str(files("emblema"))) / "assets" / "demo"


def test_an_unreadable_picture_is_one_line(tmp_path: Path) -> None:
    broken, empty, cut = (tmp_path / name for name in ("broken.png", "empty.png", "cut.png"))
    broken.write_text("this is no picture\nat all")
    empty.touch()
    cut.write_bytes((DEMO / "legend-1.png").read_bytes()[:900])
    for path in (broken, empty, cut):
        assert path.name in refused("ask", "--image", str(path), "what ?")


def test_an_unknown_strategy_or_a_knob_out_of_range_is_one_line() -> None:
    assert "unknown strategy 'magic'" in refused("ask", "--strategy", "magic", "what ?")
    assert "rank" in refused("ask", "--strategy", "patch-0", "what ?")
    assert "share" in refused("ask", "--strategy", "patch-101%", "what ?")


def test_other_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "empty" in refused("ask", "  ")
    assert "it comes last" in refused("ask", "what ?", str(DEMO / "map-01.png"))
    assert "no file 'nowhere.png'" in refused("ask", "nowhere.png", "what ?")
    assert "--slide 1" in refused("ask", "--slide", "1", "what ?")
    assert "two or more" in refused("check", MODEL, "--image", str(DEMO / "map-01.png"))
    assert "--ranks" in refused("check", MODEL, "--ranks", "4,x")
    options = ["--image", "nowhere.png", "--image", "nowhere.png", "--out", str(tmp_path / "check")]
    assert "nowhere.png" in refused("check", MODEL, *options)
    (tmp_path / "file").touch()
    assert "--out" in refused("demo", "--out", str(tmp_path / "file"))

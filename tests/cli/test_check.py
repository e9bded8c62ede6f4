"""`emblema check`."""

import json
import os
from importlib.resources import files
from pathlib import Path

import pytest

from emblema.cli.check import ranks_of
from emblema.errors import StrategyError
from tests.cli.running import Command

MODEL = os.environ.get("EMBLEMA_TEST_MODEL", "reference")
DEMO = Path(str(files("emblema"))) / "assets" / "demo"


def test_ranks() -> None:
    assert ranks_of("4, 16,64") == (4, 16, 64)
    for wrong in ("", "4,x", "-3", "4;5", "0", "99999999"):
        with pytest.raises(StrategyError):
            ranks_of(wrong)


@pytest.mark.slow
def test_check_writes_its_report(run: Command, tmp_path: Path) -> None:
    options = ["--ranks", "2,8", "--orders", "1", "--answer-tokens", "2", "--out", str(tmp_path)]
    done = run("check", MODEL, *options)
    assert done.returncode == 0, done.stderr
    assert "On these pictures" in done.stdout
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["verdict"].split()[0] == "On"
    own = ["--image", str(DEMO / "map-01.png"), "--image", str(DEMO / "map-02.png")]
    kept = ["--store", str(tmp_path / "kept")]
    assert run("check", MODEL, *options, *own, "--question", "what colour is red ?", *kept).returncode == 0
    told = json.loads(run("policy", *kept, "--json").stdout)
    assert {(one["kind"], one["lane"]) for one in told} == {("image", lane) for lane in ("patch", "query")}
    shown = run("policy", *kept, "--plain").stdout
    assert all(one["plateau"] is None or f"rank {one['plateau']}" in shown for one in told)

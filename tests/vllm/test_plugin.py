"""Which vLLM the plugin takes, when it is imported, and its settings."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from emblema.errors import EmblemaError
from emblema.served.settings import PluginSettings
from emblema.vllm.plugin import check_version


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "lacks"),
        ({"store": "x", "shop": 1}, "shop"),
        ({"store": "x", "strategy": "no-such"}, "unknown strategy"),
        ({"store": "x", "capture": 1}, "true or false"),
        ({"store": "x", "memory": 0}, "bytes"),
        ({"store": "x", "canary": 0.05}, "embedded engine"),
        ({"store": "x", "measured": 7}, "fingerprint"),
        ({"store": "x", "least_rows": -1}, "number of rows"),
        ({"store": "x", "weigh": False}, "least_rows"),
    ],
)
def test_settings_name_what_is_wrong(given: dict[str, object], words: str) -> None:
    with pytest.raises(EmblemaError, match=words):
        PluginSettings.read(given)


@pytest.mark.slow
def test_nothing_imports_vllm_unless_the_plugin_is_used() -> None:
    names = "kv_worker, pages, planner, plugin, serving"
    shared = "model_spec, request_plan, spans, staging"
    code = (
        f"import sys; import emblema, emblema.cli; from emblema.vllm import {names}; "
        f"from emblema.served import {shared}; from emblema.serve.front import app; "
        "assert 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    "part",
    [
        "EmblemaConnector",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("EmblemaEncoderConnector", "EmblemaWorker")),
    ],
)
def test_another_vllm_is_refused_in_one_line_though_its_modules_have_moved(tmp_path: Path, part: str) -> None:
    (tmp_path / "vllm.py").write_text("__version__ = '0.34.1'")
    code = f"from emblema.vllm.plugin import register; register(); import emblema.vllm; emblema.vllm.{part}"
    path = os.pathsep.join((str(tmp_path), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and last.startswith("emblema.errors.EmblemaError: This is vLLM 0.34.1"), done.stderr


def test_the_tested_vllm_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    known = (("0.32.0", True), ("0.32.1+cpu", True), ("0.33.0", True))
    for found, taken in (*known, ("0.320.0", False), ("0.31.9", False), ("0.34.0", False)):
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=found))
        with nullcontext() if taken else pytest.raises(EmblemaError, match=re.escape(found)):
            check_version()

"""What the plugin does without vLLM: pages of any layout, settings, command lines."""

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from typer.testing import CliRunner

from benchmarks.models import model_folder, served_folder
from emblema.cli.app import app
from emblema.errors import EmblemaError
from emblema.kv.layout import LayerLayout, LayerRows
from emblema.models.load import bundled_folder
from emblema.vllm.pages import Pages
from emblema.vllm.plugin import PluginSettings, check_version
from emblema.vllm.serving import command, transfer_config

BLOCKS, SIZE = 5, 4


def pages_in(order: torch.Tensor, layout: LayerLayout, dtype: torch.dtype, first: bool) -> Pages:
    """Pages whose features lie in some order, with room to spare."""
    shape = (BLOCKS, len(order) + 3)
    cache = torch.randn(shape if first else shape[::-1]).to(dtype)

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for row, slot in enumerate(slots.tolist()):
            block, inside = divmod(slot, SIZE)
            numbers = torch.full((len(order),), float("nan"))
            half = SIZE * layout.keys[0] * layout.keys[1]
            for part, start in ((keys, 0), (values, half)):
                width = part[row].numel()
                numbers[start + inside * width : start + (inside + 1) * width] = part[row].flatten().float()
            known = ~numbers.isnan()
            page = cache[block] if first else cache[:, block]
            page[order[known]] = numbers[known].to(dtype)

    return Pages([(cache, 0 if first else 1)], [write], [layout], SIZE)


@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16]), st.booleans())
def test_rows_are_found_in_whatever_layout(seed: int, dtype: torch.dtype, first: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    layout = LayerLayout((2, 6), (2, 4), None)
    order = torch.randperm(SIZE * 20, generator=generator)
    pages = pages_in(order, layout, dtype, first)
    slots = pages.slots([3, 1, 4], 10)
    rows = LayerRows(torch.randn(2, 10, 6).to(dtype), torch.randn(2, 10, 4).to(dtype))
    pages.write(0, slots, rows)
    found = pages.read(0, slots[2:7])
    assert torch.equal(found.keys, rows.keys[:, 2:7]) and torch.equal(found.values, rows.values[:, 2:7])


def test_measuring_leaves_the_page_as_it_was_and_refuses_what_it_cannot_read() -> None:
    layout = LayerLayout((1, 2), (1, 2), None)
    cache = torch.arange(BLOCKS * SIZE * 4.0).reshape(BLOCKS, -1)
    before = cache.clone()

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        cache[0] = torch.cat([keys.flatten(), values.flatten()])

    Pages([(cache, 0)], [write], [layout], SIZE)
    assert torch.equal(cache, before)
    with pytest.raises(EmblemaError, match="give back"):
        Pages([(cache, 0)], [lambda keys, values, slots: cache[0].copy_(keys.sum())], [layout], SIZE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "lacks"),
        ({"store": "x", "shop": 1}, "shop"),
        ({"store": "x", "strategy": "no-such"}, "unknown strategy"),
        ({"store": "x", "capture": 1}, "true or false"),
        ({"store": "x", "memory": 0}, "bytes"),
    ],
)
def test_settings_name_what_is_wrong(given: dict[str, object], words: str) -> None:
    with pytest.raises(EmblemaError, match=words):
        PluginSettings.read(given)


def test_the_transfer_config_is_what_the_connector_reads(tmp_path: Path) -> None:
    config = transfer_config(tmp_path, "mpic-8", capture=False)
    assert PluginSettings.read(config["kv_connector_extra_config"]) == PluginSettings(tmp_path, "mpic-8", False)  # type: ignore[arg-type]


def test_the_server_s_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: None)
    with pytest.raises(EmblemaError, match="not installed"):
        command("reference", tmp_path)
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    line = command("reference", tmp_path, more=["--port", "1"])
    assert "--no-async-scheduling" in line and line[-2:] == ["--port", "1"]
    assert "--kv-transfer-config" not in command("reference", None)


def test_vllm_serve_hands_other_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    options = ["--store", str(tmp_path / "kept"), "--strategy", "patch-25%", "--dry-run", "--port", "8123"]
    done = CliRunner().invoke(app, ["vllm-serve", "reference", *options, "--dtype", "float32"])
    assert done.exit_code == 0, done.output
    line = shlex.split(done.output)
    assert line[-4:] == ["--port", "8123", "--dtype", "float32"]
    config = json.loads(line[line.index("--kv-transfer-config") + 1])
    assert config["kv_connector_extra_config"]["strategy"] == "patch-25%"
    refused = CliRunner().invoke(app, ["vllm-serve", "reference", "--store", str(tmp_path), "--strategy", "magic"])
    assert refused.exit_code != 0


def test_nothing_imports_vllm_unless_the_plugin_is_used() -> None:
    names = "kv_worker, model_spec, pages, planner, plugin, request_plan, retrieving, serving, spans, step_metadata"
    code = (
        f"import sys; import emblema, emblema.cli; from emblema.vllm import {names}; assert 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("part", ["EmblemaConnector", "EmblemaEncoderConnector", "LinkingScheduler"])
def test_another_vllm_is_refused_in_one_line_though_its_modules_have_moved(tmp_path: Path, part: str) -> None:
    (tmp_path / "vllm.py").write_text("__version__ = '0.33.1'")
    code = f"from emblema.vllm.plugin import register; register(); import emblema.vllm; emblema.vllm.{part}"
    path = os.pathsep.join((str(tmp_path), *sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120
    )
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode and last.startswith("emblema.errors.EmblemaError: This is vLLM 0.33.1"), done.stderr


def test_the_tested_vllm_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, taken in (("0.32.0", True), ("0.32.1+cpu", True), ("0.320.0", False), ("0.31.9", False)):
        monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__=found))
        with nullcontext() if taken else pytest.raises(EmblemaError, match=re.escape(found)):
            check_version()


def test_a_bundled_name_is_served_from_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    for name, source in (("org/model", "org/model"), ("reference", str(bundled_folder("reference")))):
        line = command(name, tmp_path)
        assert line[line.index("--model") + 1] == source and line[line.index("--served-model-name") + 1] == name


def test_a_copy_has_the_names_of_published_checkpoints(tmp_path: Path) -> None:
    folder = served_folder(tmp_path)
    assert served_folder(tmp_path) == folder and list(tmp_path.iterdir()) == [folder]
    kept, source = (load_file(path / "model.safetensors") for path in (folder, model_folder("reference-mha")))
    assert len(kept) == len(source) and all(torch.equal(kept[_published(key)], source[key]) for key in source)


def _published(key: str) -> str:
    return re.sub(r"^vision_tower[.]", "vision_tower.vision_model.", key)

"""The command line and the environment of SGLang's server with the plugin, and what is refused before it starts."""

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from emblema.errors import EmblemaError
from emblema.sglang import plugin, serving
from emblema.sglang.plugin import OPTIONS, check_version, register, settings_of
from emblema.sglang.serving import check_installed, check_listeners, command, environment, listening


def test_options_go_to_the_plugin_by_the_environment(tmp_path: Path) -> None:
    made = environment({"SGLANG_PLUGINS": "other"}, tmp_path, "mpic-8", capture=False)
    settings = settings_of(made)
    assert settings is not None and (settings.store, settings.strategy, settings.capture) == (tmp_path, "mpic-8", False)
    assert made["SGLANG_PLUGINS"] == "other,emblema"
    assert "SGLANG_PLUGINS" not in environment({}, tmp_path)


def test_nothing_is_compiled_on_a_cpu_when_the_first_picture_comes(tmp_path: Path) -> None:
    on_cpu = not torch.cuda.is_available()
    assert environment({}, tmp_path).get("TORCH_COMPILE_DISABLE") == ("1" if on_cpu else None)
    assert "TORCH_COMPILE_DISABLE" not in environment({"TORCH_COMPILE_DISABLE": "0"}, tmp_path)
    assert "--skip-server-warmup" in command("reference")


def test_what_the_caller_gives_is_left_as_it_is() -> None:
    line = command("reference", ["--dtype=bfloat16", "--port", "8000"])
    assert "--dtype" not in line and line[-3:] == ["--dtype=bfloat16", "--port", "8000"]
    assert "--context-length" in line and "--context-length" not in command("some/model")


@pytest.mark.parametrize(
    "given, told",
    [("{", "no JSON"), ("[]", "no JSON object"), ('{"store": "a", "colour": 1}', "EMBLEMA_SGLANG has 'colour'"),
     ('{"strategy": "auto"}', 'lacks "store"')],
)  # fmt: skip
def test_wrong_options_are_named(given: str, told: str) -> None:
    with pytest.raises(EmblemaError, match=re.escape(told)) as raised:
        settings_of({OPTIONS: given})
    assert "\n" not in str(raised.value)


def test_without_options_nothing_is_hooked_or_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(OPTIONS, raising=False)
    monkeypatch.setitem(sys.modules, "sglang", None)
    register()


@pytest.mark.parametrize("found", ["0.5.22", "0.6.0", "0.5.230"])
def test_another_sglang_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch, found: str, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sglang.version", SimpleNamespace(__version__=found))
    monkeypatch.setenv(OPTIONS, json.dumps({"store": str(tmp_path)}))
    for refused in (check_version, register):
        with pytest.raises(EmblemaError, match=re.escape(f"This is SGLang {found}")) as raised:
            refused()
        assert "\n" not in str(raised.value)
    monkeypatch.setattr(serving, "version", lambda name: found)
    with pytest.raises(EmblemaError, match=re.escape(found)):
        check_installed()


def test_the_tested_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sglang.version", SimpleNamespace(__version__=f"{plugin.TESTED}+cpu"))
    check_version()
    assert version("emblema")


@pytest.mark.parametrize("options", [["--tokenizer_worker_num=2"], ["--grpc-port", "1"], ["--use-ray"]])
def test_other_listeners_are_refused(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(EmblemaError, match="ask for no key"):
        check_listeners(options, {})
    (tmp_path / "given.yaml").write_text("grpc-port: 1")
    with pytest.raises(EmblemaError, match="--grpc-port"):
        check_listeners(["--config", str(tmp_path / "given.yaml")], {})
    with pytest.raises(EmblemaError, match="SGLANG_GRPC_PORT"):
        check_listeners([], {"SGLANG_GRPC_PORT": "1"})
    check_listeners(["--dtype", "float32"], {"SGLANG_RUST_SERVER": "0"})


def test_the_engine_s_key_is_on_no_command_line(tmp_path: Path) -> None:
    given = tmp_path / "given.yaml"
    given.write_text("dtype: float32")
    line = listening(["--config", str(given), "--mem-fraction-static", "0.3"], tmp_path, 8_123, "secret")
    place = tmp_path / "options.yaml"
    assert line[:2] == ["--mem-fraction-static", "0.3"] and line[-2:] == ["--config", str(place)]
    assert line[2:6] == ["--host", "127.0.0.1", "--port", "8123"] and "secret" not in " ".join(line)
    assert place.read_text() == "dtype: float32\napi-key: secret\n" and place.stat().st_mode & 0o77 == 0
    with pytest.raises(EmblemaError, match="cannot be read"):
        listening(["--config", str(tmp_path / "none")], tmp_path, 1, "")

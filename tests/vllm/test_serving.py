"""The command line of a server, and the models that it names."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from emblema.cli.app import app
from emblema.errors import EmblemaError
from emblema.models.names import bundled_folder
from emblema.serve.beside.command_line import value_of
from emblema.serve.keys import KeyRing
from emblema.serve.starting import listen_at
from emblema.served.settings import PluginSettings
from emblema.vllm.serving import SERVICE, check_start, command, environment, transfer_config


def test_the_transfer_config_is_what_the_connector_reads(tmp_path: Path) -> None:
    config = transfer_config(tmp_path, "mpic-8", capture=False)
    assert PluginSettings.read(config["kv_connector_extra_config"]) == PluginSettings(tmp_path, "mpic-8", False)  # type: ignore[arg-type]


def test_the_server_s_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: None)
    with pytest.raises(EmblemaError, match="not installed"):
        command("reference", tmp_path)
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    line = command("reference", tmp_path, more=["--port", "1"])
    assert line[line.index("--worker-cls") + 1] == "emblema.vllm.EmblemaWorker" and line[-2:] == ["--port", "1"]
    assert "--kv-transfer-config" not in command("reference", None)


@pytest.mark.parametrize("option", ["--kv-transfer-config={}", "--kv_transfer_config.kv_role", "--worker-cls"])
def test_options_that_the_command_gives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    with pytest.raises(EmblemaError, match="leave it out"):
        command("reference", tmp_path, more=["--port", "1", option, "x"])
    assert option in command("reference", None, more=[option, "x"]), "plain vLLM"


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


def test_what_the_caller_gives_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    plain = command("reference", tmp_path)
    for option in ("--host", "--enable-prompt-tokens-details", "--dtype", "--max-model-len", "--enforce-eager"):
        assert plain.count(option) == 1
    given = ["--host=::1", "--max_model_len", "1024", "--no-enforce-eager", "--no-enable-prompt-tokens-details"]
    line = command("reference", tmp_path, more=given)
    assert line[-5:] == given and value_of(line, "--host") == "::1" and value_of(line, "--max-model-len") == "1024"
    assert not {"--host", "--max-model-len", "--enforce-eager", "--enable-prompt-tokens-details"} & set(line)
    assert "--dtype" in line and "--dtype" not in command("org/model", tmp_path)
    assert value_of(["--host"], "--host") is None
    assert "--host" not in command("reference", tmp_path, more=["--config", "vllm.yaml"])


def test_the_list_of_plugins_is_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"vllm.general_plugins": ["other", "emblema"], "vllm.endpoint_plugins": ["theirs"]}

    def found(group: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name) for name in points.get(group, [])]

    monkeypatch.setattr("emblema.vllm.serving.entry_points", found)
    assert environment({})["VLLM_PLUGINS"] == "emblema,emblema_service,other"
    assert environment({"VLLM_PLUGINS": "mine"})["VLLM_PLUGINS"] == "emblema,emblema_service,mine"
    assert environment({"VLLM_PLUGINS": ""})["VLLM_PLUGINS"] == "emblema,emblema_service"


def test_what_a_server_would_refuse_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emblema.vllm.serving.entry_points", lambda group: [])
    with pytest.raises(EmblemaError, match="install it again"):
        check_start(tmp_path, [], {})
    monkeypatch.setattr("emblema.vllm.serving.entry_points", lambda group: [SimpleNamespace(name=SERVICE)])
    check_start(tmp_path, ["--host", "127.0.0.1", "--port", "0"], {})
    others = ["--host", "0.0.0.0", "--port", "0"]
    with pytest.raises(EmblemaError, match="emblema keys add"):
        check_start(tmp_path, others, {})
    check_start(tmp_path, [*others, "--api-key", "x"], {})
    check_start(tmp_path, others, {"VLLM_API_KEY": "x"})
    KeyRing(tmp_path / "serve").add("one")
    check_start(tmp_path, others, {})
    with pytest.raises(EmblemaError, match="--api-key"):
        check_start(tmp_path, [*others, "--api-key", "x"], {})


def test_a_port_that_is_taken_is_refused_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.entry_points", lambda group: [SimpleNamespace(name=SERVICE)])
    with listen_at("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(EmblemaError, match=f"127.0.0.1:{port} cannot be listened at"):
            check_start(tmp_path, ["--port", str(port)], {})
        monkeypatch.setattr("emblema.vllm.serving.PORT", port)
        with pytest.raises(EmblemaError, match=f"127.0.0.1:{port} cannot be listened at"):
            check_start(tmp_path, [], {})
        check_start(tmp_path, ["--uds", "socket"], {})
        check_start(tmp_path, ["--config", "file.yaml"], {})


def test_a_bundled_name_is_served_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    for name, source in (("org/model", "org/model"), ("reference", str(bundled_folder("reference")))):
        line = command(name, tmp_path)
        assert line[line.index("--model") + 1] == source and line[line.index("--served-model-name") + 1] == name

"""The command line of a server, and the models that it names."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from emblema.cli.app import app
from emblema.errors import EmblemaError
from emblema.models.names import bundled_folder
from emblema.serve.keys import KeyRing
from emblema.serve.starting import listen_at
from emblema.served.settings import PluginSettings
from emblema.vllm.serving import check_installed, check_torchvision, command, environment, transfer_config


def test_the_transfer_config_is_what_the_connector_reads(tmp_path: Path) -> None:
    config = transfer_config(tmp_path, "mpic-8", capture=False)
    assert PluginSettings.read(config["kv_connector_extra_config"]) == PluginSettings(tmp_path, "mpic-8", False)  # type: ignore[arg-type]


def test_a_torchvision_of_another_torch_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("emblema.vllm.serving.import_module", broken)
    monkeypatch.setattr("emblema.vllm.serving.version", {"torch": "2.13.0+cpu", "torchvision": "0.28.0"}.__getitem__)
    with pytest.raises(EmblemaError, match=r"torchvision 0\.28\.0 does not fit torch 2\.13\.0\+cpu .* from one index"):
        check_torchvision()
    monkeypatch.setattr("emblema.vllm.serving.import_module", lambda name: None)
    check_torchvision()


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
    options += ["--least-rows", "96"]
    done = CliRunner().invoke(app, ["vllm-serve", "reference", *options, "--dtype", "float32"])
    assert done.exit_code == 0, done.output
    line = shlex.split(done.output)
    assert line[-4:-1] == ["--dtype", "float32", "--uds"] and "8123" not in line, "the port is the service's"
    config = json.loads(line[line.index("--kv-transfer-config") + 1])
    assert config["kv_connector_extra_config"]["strategy"] == "patch-25%"
    assert config["kv_connector_extra_config"]["least_rows"] == 96
    refused = CliRunner().invoke(app, ["vllm-serve", "reference", "--store", str(tmp_path), "--strategy", "magic"])
    assert refused.exit_code != 0


def test_what_the_caller_gives_is_not_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    plain = command("reference", tmp_path)
    for option in ("--enable-prompt-tokens-details", "--dtype", "--max-model-len", "--enforce-eager"):
        assert plain.count(option) == 1
    given = ["--dtype=bfloat16", "--max_model_len", "1024", "--no-enforce-eager", "--no-enable-prompt-tokens-details"]
    line = command("reference", tmp_path, more=given)
    assert line[-5:] == given
    assert not {"--dtype", "--max-model-len", "--enforce-eager", "--enable-prompt-tokens-details"} & set(line)
    assert "--gpu-memory-utilization" in line and "--dtype" not in command("org/model", tmp_path)
    assert "--dtype" not in command("reference", tmp_path, more=["--config", "vllm.yaml"])


def test_the_environment_has_the_plugin_and_no_key() -> None:
    given = {"VLLM_API_KEY": "secret", "HOME": "/"}
    assert environment(given) == {"HOME": "/"}, "without a list vLLM loads all plugins"
    assert environment(given | {"VLLM_PLUGINS": "mine"})["VLLM_PLUGINS"] == "emblema,mine"
    assert environment({"VLLM_PLUGINS": ""})["VLLM_PLUGINS"] == "emblema"


def test_a_package_that_does_not_name_its_plugin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    monkeypatch.setattr("emblema.vllm.serving.entry_points", lambda group: [])
    with pytest.raises(EmblemaError, match="install it again"):
        check_installed()


def test_what_a_server_would_refuse_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    started: list[bool] = []
    monkeypatch.setattr("emblema.serve.front.process.EngineProcess.__enter__", started.append)

    def refused(*options: str, **variables: str) -> str:
        done = CliRunner().invoke(app, ["vllm-serve", "reference", "--store", str(tmp_path), *options], env=variables)
        assert isinstance(done.exception, EmblemaError) and not started, done.output
        return str(done.exception)

    with listen_at("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        assert f"127.0.0.1:{port} cannot be listened at" in refused("--port", str(port))
    assert "emblema keys add" in refused("--host", "0.0.0.0", "--port", "0")
    KeyRing(tmp_path / "serve").add("one")
    assert "--api-key" in refused("--host", "0.0.0.0", "--port", "0", "--api_key=x")
    assert "--api-key" in refused("--port", "0", VLLM_API_KEY="x")
    assert "--uds is not taken" in refused("--uds", "socket")


def test_a_bundled_name_is_served_from_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emblema.vllm.serving.find_spec", lambda name: object())
    for name, source in (("org/model", "org/model"), ("reference", str(bundled_folder("reference")))):
        line = command(name, tmp_path)
        assert line[line.index("--model") + 1] == source and line[line.index("--served-model-name") + 1] == name

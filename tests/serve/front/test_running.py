"""The service in front of an engine as it starts: what it waits for is told, and it takes https."""

import asyncio
import logging
import os
import re
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import trustme
from typer.testing import CliRunner

from emblema.cli.app import app
from emblema.errors import EmblemaError
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.front import Front
from emblema.serve.front.running import _tell_ready
from emblema.serve.settings import ServeSettings
from emblema.serve.starting import listen_at
from tests.attached import attached
from tests.serve.front.engine_double import EngineDouble, listening


def test_what_an_engine_lacks_is_told_once_and_its_address_when_it_is_ready(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emblema.serve.front.running._LOOKING_SECONDS", 0.01)
    caplog.set_level(logging.INFO, "emblema.serve")
    double = EngineDouble()
    double.status = 503

    async def ready(address: str) -> None:
        front = Front(ServeSettings.read(store=tmp_path), EngineClient(address))
        with listen_at("127.0.0.1", 0) as socket:
            telling = asyncio.create_task(_tell_ready(socket, front))
            while not caplog.records:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            assert not telling.done() and "ready" not in capsys.readouterr().out
            double.status = 200
            await asyncio.wait_for(telling, 10)
            assert f"ready on http://127.0.0.1:{socket.getsockname()[1]}" in capsys.readouterr().out
        await front.close()

    with listening(double.app) as address:
        asyncio.run(ready(address))
    [told] = [record.getMessage() for record in caplog.records if record.name == "emblema.serve"]
    assert told == "waiting for the engine: the engine is not ready: its /health says 503"


def test_a_command_serves_https_in_front_of_an_engine_that_asks_for_a_key(tmp_path: Path) -> None:
    authority, double = trustme.CA(), EngineDouble()
    file = tmp_path / "both.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    line = [sys.executable, "-m", "emblema.cli", "serve", "--store", str(tmp_path), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "EMBLEMA_ENGINE_KEY": "engine-secret"}
    with listening(double.app) as address:
        options = ["--engine", address, "--set", f"ssl_certfile={file}"]
        process = subprocess.Popen(attached([*line, *options]), stdout=subprocess.PIPE, text=True, env=environment)
        try:
            assert process.stdout is not None
            found = re.fullmatch(r"ready on (https://\S+)\n", process.stdout.readline())
            trusting = ssl.create_default_context()
            authority.configure_trust(trusting)
            assert found is not None
            assert httpx.get(f"{found[1]}/v1/models", verify=trusting).json()["data"][0]["id"] == "reference"
        finally:
            process.terminate()
            assert process.wait(60) == 0
    assert double.asked and all(headers["authorization"] == "Bearer engine-secret" for headers in double.asked)


def test_what_cannot_be_served_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("none")
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    none, both = (["--set", f"ssl_certfile={tmp_path / name}.pem"] for name in ("none", "both"))
    engine = ["--engine", "http://127.0.0.1:1"]
    for options, said in (
        ([*engine, *none], "is no certificate"),
        (["reference", *none], "is no certificate"),
        (["reference", "--set", "ssl_keyfile=key.pem"], "give both"),
        (["reference", "--replicas", "2", *both], "not for --replicas"),
        (["reference", *engine], "leave MODEL"),
        (["--strategy", "blind", *engine], "--strategy"),
    ):
        done = CliRunner().invoke(app, ["serve", "--store", str(tmp_path), "--port", "0", *options])
        assert isinstance(done.exception, EmblemaError) and said in str(done.exception), done.output

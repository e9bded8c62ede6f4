"""The page on the service: its commands and its Python do what they say, against a server that runs."""

import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from tests.serve.servers import Running

PAGE = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
DEMO = Path(str(files("emblema"))) / "assets" / "demo"


def test_the_page_runs(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("legend-3.png", "map-01.png"):
        shutil.copy(DEMO / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    # The commands about both engines are run by `test_clients`.
    shell = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0]
    upload, question = re.split(r"\n(?=curl)", shell.replace("http://127.0.0.1:8000", server.address).strip())
    id = json.loads(subprocess.run(upload, shell=True, capture_output=True, check=True).stdout)["id"]
    asked = question.replace("file-…", id)
    reply = json.loads(subprocess.run(asked, shell=True, capture_output=True, check=True).stdout)
    assert reply["choices"][0]["message"]["content"]
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code.replace("http://127.0.0.1:8000", server.address), "serve.md", "exec"), names)
    first, cached, version, looked_up = capsys.readouterr().out.splitlines()
    assert first.startswith("meadow ")
    answer, taken, held = cached.split()
    assert answer == "meadow" and int(taken) >= int(held) > 0
    assert version == "2 ['legend', 'map', 'note']" and looked_up == "meadow []"


def test_the_interface_is_described_in_openapi(server: Running) -> None:
    with server.http() as http:
        validate(http.get("/openapi.json").json())


def test_the_page_names_every_route(server: Running) -> None:
    with server.http() as http:
        paths = http.get("/openapi.json").json()["paths"]
    for path in paths:
        assert path in PAGE or path.startswith("/v1/models/"), path

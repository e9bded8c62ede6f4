"""The page on the service: its commands and its Python do what they say, against a server that runs."""

import io
import json
import logging
import re
import shutil
import subprocess
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path

import pytest
from openapi_spec_validator import validate

from emblema.link.lanes import Lane
from emblema.link.miss_log import summarize
from tests.serve.sent import settled
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


def test_the_browser_page_keeps_to_itself(server: Running) -> None:
    with server.http() as http:
        page = http.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in re.findall(r"script-src [^;]*", page.headers["content-security-policy"])[0]
        listing = http.get("/page/demo/demo.json").json()
        for name in (*listing["legends"], *listing["maps"]):
            assert http.get(f"/page/demo/{name}").content == (DEMO / name).read_bytes()
        assert http.get(f"/page/demo/{listing['clip']}").status_code == 404
        for script in re.findall(r"from \"(\./[a-z]+\.mjs)\"", http.get("/page/app.mjs").text):
            assert http.get(f"/page/{script}").headers["content-type"].startswith("text/javascript")


def test_a_reply_and_the_log_tell_the_rows_of_every_picture(server: Running) -> None:
    log = io.StringIO()
    handler, logger = logging.StreamHandler(log), logging.getLogger("emblema.serve")
    logger.addHandler(handler)
    last_level = logger.level
    logger.setLevel(logging.INFO)
    with server.http() as http, ExitStack() as last:
        last.callback(logger.setLevel, last_level)
        last.callback(logger.removeHandler, handler)
        form = {"file": ("map.png", (DEMO / "map-01.png").read_bytes())}
        id = http.post("/v1/files", data={"purpose": "user_data"}, files=form).json()["id"]
        settled(http, f"/v1/files/{id}")
        content = [
            {"type": "file", "file": {"file_id": id}},
            {"type": "text", "text": "what colour is under the moon ?"},
        ]
        body = {"model": "reference", "messages": [{"role": "user", "content": content}]}
        reply = http.post("/v1/chat/completions", json=body | {"strategy": "auto"}).json()
        full = http.post("/v1/chat/completions", json=body | {"strategy": "full"}).json()
    [[rows, lane]] = reply["emblema"]["parts"]
    assert 64 <= rows < reply["usage"]["prompt_tokens"] and lane == Lane.LEADING, lane
    assert full["emblema"]["parts"] == []
    missed = [0, rows, "strategy", "messages[0].content[0]: full"]
    assert reply["emblema"]["misses"] == [] and full["emblema"]["misses"] == [missed]
    told = summarize(io.BytesIO(log.getvalue().encode()))
    assert told.requests == 2 and told.rows == sum(each["usage"]["prompt_tokens"] for each in (reply, full))
    assert told.missed == {"strategy": rows} and "moon" not in log.getvalue()

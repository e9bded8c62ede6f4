"""What is deployed beside the server: its dashboard asks for metrics that there are, its containers run what there is.

No container is built here: their files are read, and what they run is run without one.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

from emblema.serve.keys import KeyRing
from emblema.serve.settings import ServeSettings
from tests.cli.running import emblema
from tests.serve.conftest import QUESTION, asked, data_url
from tests.serve.processes import Process, process
from tests.serve.servers import Running
from tests.serve.test_files import settled
from tests.store.remote.servers import RedisServer

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_the_dashboard_asks_for_metrics_that_there_are(server: Running, client: OpenAI, pngs: list[bytes]) -> None:
    client.chat.completions.create(model="reference", messages=asked(pngs), max_tokens=4)  # type: ignore[arg-type]
    with server.http() as http:
        text = http.get("/metrics").text
    known = set(re.findall(r"^(emblema_\w+?)(?:\{| )", text, re.MULTILINE))
    known |= set(re.findall(r"^# TYPE (emblema_canary_kl) gauge", text, re.MULTILINE))
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked_for = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expression in asked_for for name in re.findall(r"emblema_\w+", expression)}
    assert len(names) > 10 and names <= known, names - known
    labels = {"requests_total": "status", "queries_total": "lane", "hits_total": "lane", "prompt_rows_total": "source"}
    for name, label in {**labels, "store_bytes": "tier", "store_events_total": "event"}.items():
        assert re.search(rf'^emblema_{name}{{.*\b{label}="', text, re.MULTILINE), name
    assert "tenant" not in text
    # Everything that is told is shown.
    counted = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in known if not name.endswith("_created")}
    assert counted - {re.sub(r"_bucket$", "", name) for name in names} == set()


@pytest.mark.slow
def test_lanes_that_clients_spell_do_not_grow_without_end(server: Running, client: OpenAI) -> None:
    for number in range(1, 100):
        client.chat.completions.create(
            model="reference", messages=[{"role": "user", "content": "?"}], max_tokens=1,
            extra_body={"strategy": f"query-{number}%"},
        )  # fmt: skip
    with server.http() as http:
        lanes = set(re.findall(r'emblema_queries_total{lane="([^"]+)"', http.get("/metrics").text))
    assert len(lanes) <= 65 and "other" in lanes


def settings_of(variables: dict[str, Any]) -> set[str]:
    return {name.removeprefix("EMBLEMA_").lower() for name in variables if name.startswith("EMBLEMA_")}


def container_steps() -> list[tuple[str, str]]:
    """The instructions of the Containerfile."""
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line and line[0] != "#")]


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for kind, rest in container_steps() if kind == "ENV" for word in rest.split())


def test_the_containers_set_what_there_is() -> None:
    known, steps = set(ServeSettings.model_fields), container_steps()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["emblema"]
    assert settings_of(service["environment"]) <= known and "redis" in compose["services"]
    assert service["environment"]["EMBLEMA_REDIS"].startswith("redis://redis:")
    assert set(service["depends_on"]) <= set(compose["services"])
    assert all("healthcheck" in compose["services"][name] for name in service["depends_on"])
    assert {volume.split(":")[0] for volume in service["volumes"]} == set(compose["volumes"])
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
    assert [word for word, _ in steps][0] == "FROM"
    assert {word for word, _ in steps} <= {
        "FROM", "RUN", "COPY", "ARG", "USER", "ENV", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    assert settings_of(variables()) == {"host", "port", "store"} and settings_of(variables()) <= known
    assert {"emblema", "serve"} <= {json.loads(rest)[0] for kind, rest in steps if kind in ("ENTRYPOINT", "CMD")}
    published, folder = service["ports"][0].rpartition(":")[2], service["volumes"][0].split(":")[1]
    assert published == variables()["EMBLEMA_PORT"] == next(rest for kind, rest in steps if kind == "EXPOSE")
    assert folder == variables()["EMBLEMA_STORE"] == next(rest for kind, rest in steps if kind == "VOLUME")


def test_the_container_installs_what_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for kind, rest in container_steps():
        if kind == "COPY":
            assert all((ROOT / name).exists() for name in rest.split()[:-1])
    (extras,) = re.findall(r"/source\[(.*?)\]", (DEPLOY / "Containerfile").read_text())
    assert {"serve", "redis"} <= set(extras.split(",")) <= set(project["optional-dependencies"])
    assert "emblema" in project["scripts"] and project["readme"] == "README.md"


@pytest.mark.parametrize("page", [DEPLOY / "Containerfile", ROOT / "docs" / "serve.md"], ids=lambda page: page.name)
def test_the_commands_that_make_a_container_s_key_do(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (said,) = re.findall(r"(?:docker compose|podman run) .*?emblema (keys .*)", page.read_text())
    monkeypatch.setenv("EMBLEMA_STORE", str(tmp_path))
    done = emblema(*shlex.split(said))
    assert done.returncode == 0 and KeyRing(tmp_path / "serve").tenant(done.stdout.strip()) is not None, done.stderr


@pytest.mark.nightly
def test_what_the_container_copies_builds_and_its_check_answers(tmp_path: Path) -> None:
    for kind, rest in container_steps():
        if kind == "COPY":
            *names, target = rest.split()
            for name in names:
                there = tmp_path / target.lstrip("/")
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, there)
                else:
                    there.mkdir(exist_ok=True)
                    shutil.copy(ROOT / name, there)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheel")]
    done = subprocess.run(build, cwd=tmp_path / "source", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    assert wheel.stat().st_size > 10**6, "the models and the page are in it"
    (command,) = (json.loads(rest.partition("CMD ")[2]) for kind, rest in container_steps() if kind == "HEALTHCHECK")
    store = tmp_path / "data"
    KeyRing(store / "serve").add("alice")
    with process(store, "--host", variables()["EMBLEMA_HOST"]) as server:
        check = [sys.executable, *command[1:-1], command[-1].replace("http://127.0.0.1:8000", server.address)]
        assert check[-1] != command[-1] and subprocess.run(check, timeout=60).returncode == 0
        server.end()
    assert subprocess.run(check, timeout=60, stderr=subprocess.DEVNULL).returncode != 0


@pytest.mark.nightly
def test_servers_on_stores_of_their_own_share_rows_through_redis(tmp_path: Path, pngs: list[bytes]) -> None:
    redis = RedisServer(tmp_path)
    kept = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    pictures = [{"type": "image_url", "image_url": {"url": data_url(png)}} | kept for png in pngs[:2]]
    messages: Any = [{"role": "user", "content": [*pictures, {"type": "text", "text": QUESTION}]}]

    def asked_of(server: Process) -> tuple[str | None, int]:
        """The reply, and the rows that were prefilled to keep its pictures."""
        reply = server.client.chat.completions.create(
            model="reference", messages=messages, extra_body={"strategy": "full"}
        )
        return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cache_write_tokens  # type: ignore

    try:
        with process(tmp_path / "one", "--set", f"redis={redis.url}") as one:
            for png in pngs[:2]:
                settled(one.client, one.client.files.create(file=("p.png", png), purpose="user_data").id)
            said, made = asked_of(one)
            assert made == 0 and one.end() in (0, -15)
        with process(tmp_path / "two", "--set", f"redis={redis.url}") as two:
            assert asked_of(two) == (said, 0), "what the first server made of its files is found, and not made again"
            text = httpx.get(f"{two.address}/metrics").text
            assert 'emblema_store_events_total{event="remote_failures"} 0.0' in text
            assert float(re.findall(r'events_total{event="loads"} (\S+)', text)[0]) >= 2
            redis.stop()
            assert asked_of(two) == (said, 0), "without Redis it answers all the same"
        with process(tmp_path / "three") as three:
            answer, made = asked_of(three)
            assert answer == said and made > 0, "a store alone has nothing"
    finally:
        redis.stop()

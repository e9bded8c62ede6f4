"""What is deployed beside the server: its dashboard asks for metrics that there are, its containers set settings."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from openai import OpenAI

from emblema.serve.settings import ServeSettings
from tests.serve.conftest import asked
from tests.serve.servers import Running

DEPLOY = Path(__file__).parents[2] / "deploy"


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


def test_the_containers_set_what_there_is() -> None:
    known = set(ServeSettings.model_fields)
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["emblema"]
    assert settings_of(service["environment"]) <= known and "redis" in compose["services"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve().is_file()
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert [word for word, _ in steps][0] == "FROM"
    assert {word for word, _ in steps} <= {
        "FROM", "RUN", "COPY", "ARG", "USER", "ENV", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD",
    }  # fmt: skip
    variables = dict(word.split("=", 1) for kind, rest in steps if kind == "ENV" for word in rest.split())
    assert settings_of(variables) == {"host", "port", "store"} and settings_of(variables) <= known
    assert {"emblema", "serve"} <= {json.loads(rest)[0] for kind, rest in steps if kind in ("ENTRYPOINT", "CMD")}
    published = service["ports"][0].rpartition(":")[2]
    assert published == variables["EMBLEMA_PORT"] == next(rest for kind, rest in steps if kind == "EXPOSE")

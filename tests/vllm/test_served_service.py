"""`emblema vllm-serve` as users start it: what other forms of requests name, and that tenants never meet."""

import ast
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from emblema.link.miss_log import summarize
from emblema.link.miss_reasons import MissReason
from emblema.serve.keys import KeyRing
from tests.serve.conftest import QUESTION, asked, data_url, pngs
from tests.serve.engines import ServedEngine, served
from tests.serve.sent import png_of

__all__ = ["pngs"]
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "vllm.md"
TEXT = {"type": "text", "text": QUESTION}
BLIND = {"model": "reference", "temperature": 0, "max_tokens": 4, "strategy": "blind"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, bench: Any) -> Iterator[ServedEngine]:
    bench.close()
    # A busy machine measures that linking hardly pays.
    options = ("--no-enable-prefix-caching", "--least-rows", "64")
    with served("vllm-serve", tmp_path_factory.mktemp("service"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def http(server: ServedEngine) -> Iterator[dict[str, httpx.Client]]:
    """A client of each of three tenants."""
    ring = KeyRing(server.store / "serve")
    keys = {tenant: ring.add(tenant) for tenant in ("one", "two", "three")}
    clients = {
        tenant: httpx.Client(base_url=server.address, timeout=60, headers={"authorization": f"Bearer {key}"})
        for tenant, key in keys.items()
    }
    yield clients
    for client in clients.values():
        client.close()


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def linking(client: httpx.Client, messages: Any) -> dict[str, Any]:
    return post(client, "/v1/chat/completions", BLIND | {"messages": messages})["kv_transfer_params"]["emblema"]


def until_linked(client: httpx.Client, messages: Any) -> dict[str, Any]:
    until = time.monotonic() + 60
    while (told := linking(client, messages))["linked_tokens"] < told["media_tokens"]:
        assert time.monotonic() < until, told
        time.sleep(0.1)
    return told


def counted(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def upload(client: httpx.Client, png: bytes) -> str:
    answer = client.post("/v1/files", files={"file": ("a.png", png)}, data={"purpose": "user_data"})
    id: str = answer.json()["id"]
    return id


def test_the_log_says_what_is_linked(server: ServedEngine) -> None:
    lines = [line for line in server.log.read_text(errors="replace").splitlines() if "is linked by lanes" in line]
    assert len(lines) == 1 and "is linked by lanes leading, patch, query; auto links" in lines[0]
    assert "where each run of rows that is taken saves" in lines[0] or "auto links never" in lines[0]


@pytest.mark.parametrize("options", ["blind", {"strategi": 1}, {"margin": 7}])
def test_wrong_options_are_refused_everywhere(server: ServedEngine, options: Any) -> None:
    """These tests come before there are keys, with which completions are not offered."""
    turns = [{"role": "user", "content": "a"}]
    bodies = {"chat/completions": {"messages": turns}, "completions": {"prompt": "a"}, "responses": {"input": "a"}}
    with server.http() as client:
        for path, body in bodies.items():
            given = {"model": "reference", "max_tokens": 1, "kv_transfer_params": {"emblema": options}}
            answer = client.post(f"/v1/{path}", json=given | body)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "emblema", answer.text


def test_the_last_event_of_a_response_says_what_was_done(server: ServedEngine, pngs: list[bytes]) -> None:
    picture = {"type": "input_image", "image_url": data_url(pngs[0]), "detail": "auto"}
    turn = {"role": "user", "content": [picture, {"type": "input_text", "text": QUESTION}]}
    given = {"model": "reference", "temperature": 0, "input": [turn], "stream": True, "max_output_tokens": 4}
    with server.http() as client:
        lines = client.post("/v1/responses", json=given).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    (last,) = (event for event in events if event["type"] == "response.completed")
    report = last["response"]["kv_transfer_params"]["emblema"]
    assert report["strategy"] == "plain" and report["media_tokens"] > 0 and report["remark"]


def test_the_second_request_of_the_how_to_is_linked(server: ServedEngine, capsys: pytest.CaptureFixture[str]) -> None:
    key = KeyRing(server.store / "serve").add("newcomer")
    [code] = re.findall(r"```py\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    code = code.replace("http://127.0.0.1:8000", server.address).replace('"none"', repr(key))
    exec(compile(code, HOW_TO.name, "exec"), {})
    lines = [line.strip().split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    first, second = (ast.literal_eval(told)["emblema"] for _, told in lines)
    assert first["strategy"] == "plain" and "not stored yet" in first["remark"]
    assert second["linked_tokens"] > second["media_tokens"] / 2 > 600, str(second)


def test_nothing_is_linked_across_tenants(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    one, two = http["one"], http["two"]
    words = post(one, "/v1/chat/completions", BLIND | {"messages": asked(pngs)})
    mine = until_linked(one, asked(pngs))
    before = counted(one, "vllm:emblema_encodings_total")
    reply = post(two, "/v1/chat/completions", BLIND | {"messages": asked(pngs)})
    told = reply["kv_transfer_params"]["emblema"]
    assert told["linked_tokens"] == 0 and not told["stored"]
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert reply["choices"] == words["choices"]
    assert counted(two, "vllm:emblema_encodings_total") == before, "and no encoding of another's is handed over"
    # A name cannot be borrowed either, nor another's salt.
    borrowed: Any = asked(pngs)
    for part in borrowed[0]["content"][:-1]:
        part["uuid"] = "name"
    assert linking(http["three"], borrowed)["linked_tokens"] == 0
    assert two.post("/v1/chat/completions", json={"messages": borrowed, "cache_salt": "x"}).status_code == 400
    # What is one's own is found.
    assert until_linked(two, asked(pngs))["linked_tokens"] == mine["linked_tokens"]


def test_the_three_forms_of_requests_take_ids(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    client = http["one"]
    ids = [upload(client, png) for png in pngs]
    chat = [*({"type": "file", "file": {"file_id": id}} for id in ids), TEXT]
    until_linked(client, [{"role": "user", "content": chat}])
    more: dict[str, Any] = {"model": "reference", "temperature": 0, "strategy": "blind"}
    replied = post(client, "/v1/chat/completions", more | {"messages": [{"role": "user", "content": chat}]})
    pictures = [{"type": "input_image", "file_id": id} for id in ids]
    turn = {"role": "user", "content": [*pictures, {"type": "input_text", "text": QUESTION}]}
    responded = post(client, "/v1/responses", more | {"input": [turn]})
    sources = [{"type": "image", "source": {"type": "file", "file_id": id}} for id in ids]
    turn = {"role": "user", "content": [*sources, TEXT]}
    messaged = post(client, "/v1/messages", more | {"max_tokens": 8, "messages": [turn]})
    words = replied["choices"][0]["message"]["content"]
    assert responded["output"][0]["content"][0]["text"] == messaged["content"][0]["text"] == words
    linked = replied["kv_transfer_params"]["emblema"]["linked_tokens"]
    assert linked == replied["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert responded["usage"]["input_tokens_details"]["cached_tokens"] == linked
    assert messaged["usage"]["cache_read_input_tokens"] == linked
    counting = post(client, "/v1/messages/count_tokens", {"model": "reference", "messages": [turn]})
    assert counting["input_tokens"] == replied["usage"]["prompt_tokens"]
    for path, body in (
        ("/v1/responses", {"input": [{"role": "user", "content": [pictures[0]]}]}),
        ("/v1/messages", {"max_tokens": 8, "messages": [{"role": "user", "content": [sources[0]]}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": [sources[0]]}]}),
    ):
        answer = http["two"].post(path, json={"model": "reference"} | body)
        assert answer.status_code == 404 and "no file" in answer.json()["error"]["message"]


def test_a_deleted_file_leaves_no_rows(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    three = http["three"]
    id = upload(three, pngs[0])
    until_linked(three, [{"role": "user", "content": [{"type": "file", "file": {"file_id": id}}, TEXT]}])
    until_linked(three, asked(pngs[:2]))
    assert three.delete(f"/v1/files/{id}").status_code == 200
    quiet = BLIND | {"messages": asked(pngs[:2]), "kv_transfer_params": {"emblema": {"capture": False}}}
    told = post(three, "/v1/chat/completions", quiet)["kv_transfer_params"]["emblema"]
    # The other picture stays known.
    assert 0 < told["linked_tokens"] < told["media_tokens"] and not told["stored"]


def test_tenants_reach_none_of_vllm_s_other_routes(server: ServedEngine, http: dict[str, httpx.Client]) -> None:
    routes = httpx.get(f"{server.address}/openapi.json").json()["paths"]
    offered = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/v1/models")
    open = ("/health", "/livez", "/readyz", "/ping", "/version", "/load", "/metrics")
    assert {*offered, "/v1/files", "/v1/completions", "/tokenize", "/invocations"} <= set(routes)
    for path, methods in routes.items():
        for method in methods:
            place = path.replace("{", "").replace("}", "")
            without = httpx.request(method, f"{server.address}{place}")
            assert (without.status_code != 401) == (path in open), path
            if path not in (*open, *offered) and not path.startswith(("/v1/files", "/v1/caches")):
                assert http["one"].request(method, place).status_code == 404, path


def test_the_log_tells_why_pictures_were_computed(server: ServedEngine, http: dict[str, httpx.Client]) -> None:
    pixels = np.random.default_rng().integers(0, 256, (224, 224, 3), dtype=np.uint8)
    told = linking(http["three"], asked([png_of(Image.fromarray(pixels))]))
    assert told["misses"] == [[0, told["media_tokens"], MissReason.NEW, ""]]
    with server.log.open("rb") as log:
        summary = summarize(log)
    assert summary.broken_lines == 0 and summary.requests > 1
    assert summary.missed[MissReason.NEW] >= told["media_tokens"] and summary.rows > summary.missed.total()
    lines = [line for line in server.log.read_text(errors="replace").splitlines() if "misses" in line]
    assert not [line for line in lines if QUESTION in line]

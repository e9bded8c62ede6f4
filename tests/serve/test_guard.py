"""What stands before the routes: sizes, shapes, pages of others."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from emblema.serve.faults import ServeError
from emblema.serve.guard import Guard
from emblema.serve.keys import KeyRing
from emblema.serve.settings import ServeSettings
from tests.serve.servers import Running, serving

CHAT = "/v1/chat/completions"


def test_bodies_are_bounded_before_they_are_read(server: Running) -> None:
    most = int(server.settings.body_bytes)
    with server.http() as http:
        answer = http.post(CHAT, content=b" " * (most + 1))
        assert answer.status_code == 413

        def drip() -> object:
            for _ in range(most // 2**20 + 2):
                yield b" " * 2**20

        answer = http.post(CHAT, content=drip())  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("length", "status"), [("0", 200), ("-1", 413), ("1e9", 413), ("²", 413), ("", 413), ("9" * 400, 413)]
)
def test_a_length_that_is_no_number_is_refused(length: str, status: int) -> None:
    """Whatever the HTTP parser in front lets through."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    def loading() -> None:
        raise ServeError(503, "the model is being loaded", "loading")

    server = Starlette()
    server.state.host = loading
    headers = [(b"host", b"127.0.0.1:8000"), (b"content-length", length.encode("latin-1"))]
    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "headers": headers,
        "app": server,
        "query_string": b"",
    }
    asyncio.run(Guard(application, ServeSettings())(scope, receive, send))
    assert sent[0]["status"] == status


def test_who_is_kept_out_is_told_the_way_in(server: Running) -> None:
    with server.http() as http:
        page = http.get("/health", headers={"origin": "http://localhost:3000"}).json()["error"]
        container = http.get("/health", headers={"host": "host.docker.internal"}).json()["error"]
    assert page["code"] == "foreign_origin" and "--set allowed_origins=" in page["message"]
    assert container["code"] == "foreign_host" and "emblema keys add" in container["message"]
    assert "--host" in container["message"] and "--set host_names=" in container["message"]


def test_a_page_is_the_servers_own_by_its_whole_address(server: Running) -> None:
    """Neither another port of the machine, nor a longer name that begins alike."""
    host = server.address.removeprefix("http://")
    name, port = host.split(":")
    foreign = [
        f"http://{name}", f"http://{name}:{port}1", f"http://{name}:{port[:-1]}", f"http://{name}:1",
        f"http://{host}.evil.example", f"http://{name}.evil.example", f"http://evil.{host}", f"http://{host}@evil.example",
        f"http://evil.example/{host}", f"http://x@{host}", "null", "", "http://", f"http://[{host}",
    ]  # fmt: skip
    with server.http() as http:
        for origin in foreign:
            assert http.get("/health", headers={"origin": origin}).status_code == 403, origin
        assert http.get("/health", headers={"origin": f"http://{host}"}).status_code == 200


def test_a_request_has_an_id_and_a_line(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "emblema.serve"), server.http() as http:
        answer = http.get("/v1/models/none")
        http.get("/v1/nothing")
    lines = [json.loads(record.message) for record in caplog.records if record.name == "emblema.serve"]
    assert answer.status_code == 404 and answer.headers["x-request-id"] in {line["request"] for line in lines}
    assert {"method", "path", "status", "seconds", "bytes", "lane"} <= set(lines[0])
    assert all(0 <= line["seconds"] < 60 for line in lines), "not the time of day"


def test_a_client_s_own_id_comes_back(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "emblema.serve"), server.http() as http:
        for path in ("/health", "/v1/models/none"):
            assert http.get(path, headers={"X-Request-ID": "trace/17"}).headers.get_list("x-request-id") == ["trace/17"]
        for odd in ("", "two words", "x" * 129):
            assert http.get("/health", headers={"X-Request-ID": odd}).headers["x-request-id"].startswith("req_")
    assert sum('"request": "trace/17"' in record.message for record in caplog.records) == 2


def test_counters_have_no_tenants(server: Running) -> None:
    with server.http() as http:
        http.get("/v1/nothing/at/all")
        text = http.get("/metrics").text
    assert 'path="other",status="404"' in text and "tenant" not in text and "nothing" not in text


def test_a_key_may_come_as_azure_s_clients_send_it(tmp_path: Path) -> None:
    key = KeyRing(tmp_path / "serve").add("one")
    with serving(tmp_path) as running, running.http() as http:
        for headers, status in (
            ({"api-key": key}, 200),
            ({"x-api-key": key}, 200),
            ({"api-key": "none"}, 401),
            ({}, 401),
        ):
            assert http.get("/v1/models", headers=headers).status_code == status, headers


def test_named_pages_and_hosts_are_let_in(tmp_path: Path) -> None:
    own, names = "http://localhost:3000", {"host": "host.docker.internal:8000"}
    KeyRing(tmp_path / "serve").add("one")
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    with serving(tmp_path, allowed_origins=own, host_names="host.docker.internal") as running, running.http() as http:
        for path, status in (("/health", 200), ("/v1/models", 401)):
            answer = http.get(path, headers={"origin": own})
            assert answer.status_code == status and answer.headers["access-control-allow-origin"] == own
        ahead = http.options(CHAT, headers={"origin": own} | asking)
        assert ahead.status_code == 200 and ahead.headers["access-control-allow-origin"] == own
        assert "authorization" in ahead.headers["access-control-allow-headers"].lower()
        for foreign in ("http://localhost:3001", "https://localhost:3000", "http://localhost:3000.evil.example"):
            answer = http.get("/health", headers={"origin": foreign})
            assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
            assert http.options(CHAT, headers={"origin": foreign} | asking).status_code == 400
        assert http.get("/health", headers=names).status_code == 200
        assert http.get("/health", headers={"host": "docker.internal"}).status_code == 403

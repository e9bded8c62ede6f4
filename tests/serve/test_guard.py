"""What stands before the routes: sizes, shapes, pages of others."""

import json
import logging

import pytest

from tests.serve.servers import Running

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"\xff\xfe{}", b'{"model": "reference", "messages": ' + b"[" * 100_000, b"null", b"1"],
)
def test_what_is_no_request_is_refused(server: Running, body: bytes) -> None:
    with server.http() as http:
        answer = http.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]


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


def test_many_parts_are_refused(server: Running) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,x"}}
    body = {"model": "reference", "messages": [{"role": "user", "content": [part] * 10_000}]}
    with server.http() as http:
        answer = http.post(CHAT, json=body)
    assert answer.status_code == 400 and "10000 parts" in answer.text


def test_pages_of_others_are_kept_out(server: Running) -> None:
    with server.http() as http:
        assert http.get("/health", headers={"origin": "https://elsewhere.example"}).status_code == 403
        assert http.get("/health", headers={"origin": server.address}).status_code == 200
        assert http.get("/health", headers={"host": "elsewhere.example"}).status_code == 403


def test_a_request_has_an_id_and_a_line(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "emblema.serve"), server.http() as http:
        answer = http.get("/v1/models/none")
        http.get("/v1/nothing")
    lines = [json.loads(record.message) for record in caplog.records if record.name == "emblema.serve"]
    assert answer.status_code == 404 and answer.headers["x-request-id"] in {line["request"] for line in lines}
    assert {"method", "path", "status", "seconds", "bytes", "lane"} <= set(lines[0])


def test_counters_have_no_tenants(server: Running) -> None:
    with server.http() as http:
        http.get("/v1/nothing/at/all")
        text = http.get("/metrics").text
    assert 'path="other",status="404"' in text and "tenant" not in text and "nothing" not in text

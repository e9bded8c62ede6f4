"""The service in front of an engine: keys, salts, files, and what goes no further."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import generate_latest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from emblema import Engine, Store
from emblema.errors import EmblemaError
from emblema.kv.chunk import Chunk
from emblema.serve import media_reading
from emblema.serve.caches import CacheStore
from emblema.serve.files import FileStore
from emblema.serve.front.app import make_front
from emblema.serve.front.body_media import FORMS
from emblema.serve.front.engine import EngineClient
from emblema.serve.front.front import Front
from emblema.serve.keys import LOCAL, KeyRing, store_salts
from emblema.serve.settings import ServeSettings
from emblema.store.warm_parts import WarmParts
from tests.serve.conftest import data_url
from tests.serve.front.engine_double import EngineDouble, listening

DEMO = Path(__file__).parents[3] / "src" / "emblema" / "assets" / "demo"
PNG = (DEMO / "map-01.png").read_bytes()
CHAT = "/v1/chat/completions"


class Fronted:
    """The service in front of a double of an engine.

    Attributes:
        engine: the double.
        front: of the client that was opened last.
    """

    front: Front

    def __init__(self, folder: Path, *own_keys: str, owner: str = "vllm", key: str | None = None, **settings: Any):
        self.settings = ServeSettings.read(store=folder, allowed_origins=("https://friend.example",), **settings)
        self.engine, self._own_keys, self._key = EngineDouble(owner), own_keys, key

    def made(self, address: str) -> Any:
        self.front = Front(self.settings, EngineClient(f"{address}/v1", self._key), self._own_keys)
        return make_front(self.front)

    @contextmanager
    def client(self, key: str | None = None) -> Iterator[TestClient]:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        with (
            listening(self.engine.app) as address,
            TestClient(self.made(address), base_url="http://127.0.0.1", headers=headers) as client,
        ):
            yield client

    @contextmanager
    def http(self) -> Iterator[httpx.Client]:
        """A client on a socket."""
        with (
            listening(self.engine.app) as address,
            listening(self.made(address)) as own,
            httpx.Client(base_url=own, timeout=60) as client,
        ):
            yield client


def shown(id: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": id}}]}]}


def upload(client: TestClient) -> str:
    answer = client.post("/v1/files", files={"file": ("map.png", PNG)}, data={"purpose": "user_data"})
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def test_without_keys_files_are_resolved_and_nothing_is_named(tmp_path: Path) -> None:
    with Fronted(tmp_path).client() as client:
        id = upload(client)
        given = client.post(CHAT, json=shown(id) | {"strategy": "blind", "survivors": "keep"}).json()
        [part] = given["messages"][0]["content"]
        assert part["image_url"]["url"].startswith("data:") and "uuid" not in part and "cache_salt" not in given
        assert given["kv_transfer_params"] == {"emblema": {"strategy": "blind", "survivors": "keep"}}
        for wrong in ({"strategi": "blind"}, "blind", {"strategy": "magic"}, {"survivors": "all"}):
            refused = client.post(CHAT, json=shown(id) | {"kv_transfer_params": {"emblema": wrong}})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "emblema"
            other = client.post("/v1/completions", json={"prompt": "a", "kv_transfer_params": {"emblema": wrong}})
            assert other.status_code == 400 and other.json() == refused.json()
        assert client.post("/v1/completions", json={"prompt": "x"}).json() == {"prompt": "x"}
        assert client.get("/v1/models").status_code == client.get("/health").status_code == 200
        for path, form in FORMS.items():
            refused = client.post(path, json={"model": form, "cache_salt": "mine"})
            assert refused.status_code == 400 and "cache_salt" in refused.json()["error"]["message"]


def test_a_key_is_a_salt_and_pictures_have_names_by_tenant(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path / "serve")
    one, two = ring.add("one"), ring.add("two")
    server = Fronted(tmp_path, host="0.0.0.0")
    bodies = {}
    for key in (one, two):
        with server.client(key) as client:
            id = upload(client)
            body = client.post(CHAT, json=shown(id)).json()
            assert body == client.post(CHAT, json=shown(id)).json()
            bodies[key] = (id, body["cache_salt"], body["messages"][0]["content"][0]["uuid"])
            for path in FORMS:
                assert client.post(path, json={}).json()["cache_salt"] == body["cache_salt"]
    assert all(mine != theirs for mine, theirs in zip(bodies[one], bodies[two], strict=True))
    tenant = ring.tenant(one)
    assert tenant is not None and tenant.salt.hex() not in bodies[one][1], "a salt does not give the secret away"
    with server.client(two) as client:
        id = bodies[one][0]
        for answer in (
            client.post(CHAT, json=shown(id)),
            client.get(f"/v1/files/{id}"),
            client.get(f"/v1/files/{id}/content"),
            client.delete(f"/v1/files/{id}"),
        ):
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "file_not_found"
        assert client.post("/v1/responses", json={"previous_response_id": "resp_1"}).status_code == 400


def test_what_one_tenant_showed_is_read_again_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time that it takes would tell what others showed."""
    ring, decoded = KeyRing(tmp_path / "serve"), list[bytes]()
    keys = [ring.add(name) for name in ("one", "two")]
    monkeypatch.setattr(media_reading, "load_media", lambda data, *given, **options: decoded.append(data))
    server = Fronted(tmp_path, host="0.0.0.0")
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_url(PNG)}}]}]}
    with server.client() as client:
        for key in (*keys, *keys):
            assert client.post(CHAT, json=body, headers={"x-api-key": key}).status_code == 200
    assert decoded == [PNG, PNG]


def test_with_keys_nothing_is_answered_without_one_and_little_with(tmp_path: Path) -> None:
    key = KeyRing(tmp_path / "serve").add("one")
    server = Fronted(tmp_path)
    with server.client() as client:
        for path in (*FORMS, "/v1/completions", "/tokenize", "/v1/files"):
            assert client.post(path, json={}).status_code == 401, path
        assert client.get("/v1/models").status_code == 401 and client.get("/health").status_code == 200
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
            pass
        assert client.post("/v1/messages", json={}, headers={"x-api-key": key}).status_code == 200
        counted = generate_latest(server.front.registry).decode()
        assert 'emblema_requests_total{path="/v1/messages",status="200"} 1.0' in counted
    with server.client(key) as client:
        for path in ("/v1/completions", "/tokenize", "/v1/unheard-of"):
            assert client.post(path, json={}).status_code == 404, path
        with pytest.raises(WebSocketDisconnect), client.websocket_connect("/v1/realtime"):
            pass


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'"x"', b"null", b"\xff\xfe{}", b'{"messages": ' + b"[" * 100_000, b'{"a": "\\ud800"}',
     b'{"a": ' + b"9" * 5_000 + b"}"],
)  # fmt: skip
def test_what_is_no_request_is_refused(tmp_path: Path, body: bytes) -> None:
    with Fronted(tmp_path).client() as client:
        answer = client.post(CHAT, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_bodies_texts_and_media_are_bounded(tmp_path: Path) -> None:
    server = Fronted(tmp_path, body_bytes=200_000, text_bytes=10_000, parts=2)
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\1\0\0\0\1\0\0\x08\x02\0\0\0"
    with server.client() as client:
        id = upload(client)
        part = shown(id)["messages"][0]["content"][0]
        assert client.post(CHAT, content=b" " * 200_001).status_code == 413
        for content in ("x" * 10_001, [part] * 3, [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]):
            answer = client.post(CHAT, json={"messages": [{"role": "user", "content": content}]})
            assert answer.status_code == 400, answer.text
        assert client.post(CHAT, json={"messages": [{"role": "user", "content": [part] * 2}]}).status_code == 200
        bad = client.post("/v1/files", files={"file": ("bomb.png", bomb)}, data={"purpose": "user_data"}).json()["id"]
        assert client.post(CHAT, json=shown(bad)).status_code == 400
        until = time.monotonic() + 30
        while client.get(f"/v1/files/{bad}").json()["status"] != "error":
            assert time.monotonic() < until
            time.sleep(0.02)
        while (found := client.get(f"/v1/files/{id}").json())["emblema"]["kind"] != "image":
            assert time.monotonic() < until
            time.sleep(0.02)
        assert found["status"] == "uploaded"


def test_pages_of_others_stay_out_unless_the_operator_lets_them_in(tmp_path: Path) -> None:
    with Fronted(tmp_path).client() as client:
        for origin, status in (("http://evil.example", 403), ("http://[", 403), ("https://friend.example", 200)):
            assert client.get("/v1/models", headers={"origin": origin}).status_code == status


@pytest.mark.parametrize(("expired", "cached"), [(False, False), (True, False), (True, True)])
def test_a_file_takes_the_embedded_engine_s_chunks_along(
    tmp_path: Path, reference: Engine, expired: bool, cached: bool
) -> None:
    """Both engines may share a folder: what one made of a file ends when the other deletes it, or has its time over.

    What one of its caches holds is left.
    """
    ring = KeyRing(tmp_path / "serve")
    key = ring.add("one")
    tenant = ring.tenant(key)
    assert tenant is not None
    now = [0.0]
    files = FileStore(tmp_path / "serve", 2**20, clock=lambda: now[0])
    entry = files.add(tenant, PNG, "a.png", "user_data", 10.0)
    with Store(tmp_path) as store:
        chunk = reference.on(store.tenant(tenant.salt)).add(PNG)
        store.flush()
    assert isinstance(chunk, Chunk)
    files.note(tenant, entry.id, "processed", None, "image", [chunk.id])
    if cached:
        caches = CacheStore(tmp_path / "serve", 1, 2**30, lambda *pieces: None)
        caches.fill(tenant, caches.open(tenant, [("text", "x")], None, 1_000).id, WarmParts(1, {chunk.id: 1}))
    server = Fronted(tmp_path)
    with server.client(key) as client:
        if not expired:
            # By the real clock its time is over long ago.
            files.keep_until(tenant, [entry.id], 2.0**40)
            assert client.delete(f"/v1/files/{entry.id}").json()["deleted"]
        assert client.get("/v1/files").json()["data"] == []
    with Store(tmp_path) as store:
        assert (chunk.id in store.tenant(tenant.salt)) == cached


def test_a_cache_stands_for_its_parts_until_its_time_is_over(tmp_path: Path) -> None:
    server, now = Fronted(tmp_path), [1_000.0]
    caches = CacheStore(tmp_path / "serve", 9, 2**30, lambda *pieces: None, clock=lambda: now[0])
    with server.client() as client:
        id = upload(client)
        now[0] = time.time()
        cache = caches.open(LOCAL, [("text", "x"), ("file", id)], None, 1_000)
        used = {"type": "cache", "cache": {"cache_id": cache.id}}
        body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "y"}, used]}]}
        parts = client.post(CHAT, json=body).json()["messages"][0]["content"]
        assert [part["type"] for part in parts] == ["text", "text", "image_url"] and parts[1]["text"] == "x"
        for path in ("/v1/responses", "/v1/messages"):
            turns = {"input": body["messages"], **body}
            assert client.post(path, json=turns).status_code == 400
        for wrong in ({"type": "cache"}, {"type": "cache", "cache": {"cache_id": 3}}, {"type": "cache", "cache": []}):
            assert client.post(CHAT, json={"messages": [{"role": "user", "content": [wrong]}]}).status_code == 400
        bounded = {"messages": [{"role": "user", "content": [used] * 600}]}
        assert client.post(CHAT, json=bounded).status_code == 400, "its parts count"
        now[0] -= 2_000
        caches.extend(LOCAL, cache.id, 1_000)
        assert client.post(CHAT, json=body).status_code == 404


def test_others_need_keys_of_one_kind(tmp_path: Path) -> None:
    with pytest.raises(EmblemaError, match="emblema keys add"):
        Fronted(tmp_path, host="0.0.0.0").made("http://127.0.0.1:1")
    with Fronted(tmp_path, "theirs", "mine", host="0.0.0.0").client() as client:
        for key, status in ((None, 401), ("other", 401), ("mine", 200), ("theirs", 200)):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            for path in ("/v1/models", "/v1/files"):
                assert client.get(path, headers=headers).status_code == status
            assert client.post("/tokenize", json={}, headers=headers).status_code == status
    KeyRing(tmp_path / "serve").add("one")
    with pytest.raises(EmblemaError, match="--api-key"):
        Fronted(tmp_path, "mine").made("http://127.0.0.1:1")


def test_a_deleted_file_takes_rows_along_that_requests_made_of_it(tmp_path: Path, reference: Engine) -> None:
    ring = KeyRing(tmp_path / "serve")
    keys = [ring.add("one"), ring.add("two")]
    salts = [store_salts(tenant)[-1] for tenant in map(ring.tenant, keys) if tenant is not None]
    with Store(tmp_path) as store:
        mine, theirs = (reference.on(store.tenant(salt)).add(PNG).id for salt in salts)
        store.flush()
    server = Fronted(tmp_path)
    with server.client(keys[0]) as client:
        id = upload(client)
        server.engine.chunks, server.engine.status = [mine], 503
        assert client.delete(f"/v1/files/{id}").status_code == 503
        assert client.get(f"/v1/files/{id}").status_code == 200, "it can be deleted again"
        server.engine.status = 200
        assert client.delete(f"/v1/files/{id}").json()["deleted"]
        assert client.get(f"/v1/files/{id}").status_code == 404
    with Store(tmp_path) as store:
        assert [held in store.tenant(salt) for salt, held in zip(salts, (mine, theirs), strict=True)] == [False, True]


def left(engine: EngineDouble, count: int) -> None:
    """Wait until the engine knows of so many replies that nobody waits for them."""
    until = time.monotonic() + 10
    while engine.left < count:
        assert time.monotonic() < until, "the engine goes on for a client that has left"
        time.sleep(0.02)


def test_a_stream_comes_as_it_is_made_and_ends_with_its_client(tmp_path: Path) -> None:
    server = Fronted(tmp_path)
    body = {"messages": [], "stream": True}
    with server.http() as client:
        with client.stream("POST", CHAT, json=body | {"events": 3, "seconds": 0.5}) as reply:
            began, moments = time.monotonic(), []
            for line in reply.iter_lines():
                moments += [time.monotonic() - began] if line else []
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert len(moments) == 4 and moments[0] < 0.4 and moments[-1] > 1.4, "nothing is held back"
        with client.stream("POST", CHAT, json=body | {"events": 1_000, "seconds": 0.05}) as reply:
            next(reply.iter_lines())
        left(server.engine, 1)
        server.engine.broken = True
        with pytest.raises(httpx.RemoteProtocolError), client.stream("POST", CHAT, json=body) as reply:
            list(reply.iter_lines())


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_reply_that_nobody_waits_for_is_given_up(tmp_path: Path, path: str) -> None:
    server = Fronted(tmp_path, deadline=1.5)
    with server.http() as client:
        late = client.post(path, json={"messages": [], "seconds": 60})
        assert late.status_code == 504 and "deadline" in late.json()["error"]["message"]
        left(server.engine, 1)
        with pytest.raises(httpx.ReadTimeout):
            client.post(path, json={"messages": [], "seconds": 60}, timeout=0.3)
        left(server.engine, 2)


def test_an_engine_that_closes_or_says_nothing_is_told_of(tmp_path: Path) -> None:
    """A request gets a line in time, whatever the engine does with its connection."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as closing:

        def close() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = closing.accept()
                    connection.recv(65_536)
                    connection.close()

        thread = threading.Thread(target=close, daemon=True)
        thread.start()
        for engine, status, said in ((closing, 502, "broke off"), (silent, 504, "deadline")):
            server = Fronted(tmp_path, deadline=0.5)
            address = f"http://127.0.0.1:{engine.getsockname()[1]}"
            with TestClient(server.made(address), base_url="http://127.0.0.1") as client:
                answer = client.post("/v1/completions", json={"prompt": "x"})
                assert answer.status_code == status and said in answer.json()["error"]["message"], answer.text
        closing.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_request_has_one_id_on_both_sides(tmp_path: Path) -> None:
    server = Fronted(tmp_path)
    with server.client() as client:
        for path in (CHAT, "/v1/completions"):
            for given in ({"x-request-id": "mine-1"}, {"x-request-id": "two words"}, {}):
                answer = client.post(path, json={"messages": []}, headers=given)
                [id] = answer.headers.get_list("x-request-id")
                assert server.engine.asked[-1]["x-request-id"] == id
                assert (id == "mine-1") == (given.get("x-request-id") == "mine-1")


def test_the_engine_s_refusals_and_failures_are_told(tmp_path: Path) -> None:
    server = Fronted(tmp_path)
    with server.client() as client:
        assert client.get("/health").json() == {"status": "ok", "model": "reference"}
        assert "engine_steps 1.0" in client.get("/metrics").text and "emblema_requests" in client.get("/metrics").text
        paths = client.get("/openapi.json").json()["paths"]
        assert {CHAT, "/v1/files", "/tokenize"} <= paths.keys()
        for status in (400, 429, 500):
            server.engine.status = status
            assert client.post(CHAT, json={"messages": [], "model": "x"}).status_code == status
        assert client.get("/health").status_code == client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
        assert client.get("/away").status_code == 502 and client.get("/heavy").status_code == 502
        answer = client.get("/cookie")
        assert answer.headers["x-other"] == "c" and "set-cookie" not in answer.headers
        assert client.get("/v1/models/%2e%2e/away").status_code == 404
    with TestClient(server.made("http://127.0.0.1:1"), base_url="http://127.0.0.1") as client:
        for answer in (client.get("/health"), client.post(CHAT, json={"messages": []}), client.get("/v1/models")):
            assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
        assert client.get("/livez").status_code == client.get("/metrics").status_code == 200


def test_the_engine_gets_its_own_key_and_no_client_s(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = KeyRing(tmp_path / "serve").add("one")
    server = Fronted(tmp_path, key="engine-secret")
    with server.client(key) as client:
        given = {"cookie": "a=b", "x-api-key": key, "openai-organization": "o", "anthropic-version": "1"}
        assert client.post("/v1/messages", json={}, headers=given).status_code == 200
        assert client.get("/v1/models").status_code == 200
    for headers in server.engine.asked:
        assert headers["authorization"] == "Bearer engine-secret"
        assert not {"cookie", "x-api-key", "openai-organization"} & headers.keys()
    assert server.engine.asked[-2]["anthropic-version"] == "1" and "engine-secret" not in caplog.text


def test_another_engine_gets_what_openai_s_interface_has(tmp_path: Path) -> None:
    key = KeyRing(tmp_path / "serve").add("one")
    server = Fronted(tmp_path, owner="openai")
    with server.client(key) as client:
        id = upload(client)
        given = client.post(CHAT, json=shown(id)).json()
        assert given.keys() == {"messages"}
        [part] = given["messages"][0]["content"]
        assert part["image_url"]["url"].startswith("data:image/png;base64,") and part.keys() == {"type", "image_url"}
        refused = client.post(CHAT, json=shown(id) | {"strategy": "blind"})
        assert refused.status_code == 400 and "strategy" in refused.json()["error"]["message"]
        content = [{"type": "file", "file": {"file_id": id}}]
        assert client.post("/v1/caches?wait=true", json={"content": content}).status_code == 404
        assert "engine_steps" not in client.get("/metrics").text
        assert client.delete(f"/v1/files/{id}").json()["deleted"]


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1:8001", "ftp://a", "http://", "http://u:p@a", "http://a:x", "http://a?b"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(EmblemaError, match="no address of an engine"):
        EngineClient(address)

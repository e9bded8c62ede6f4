"""`emblema sglang-serve` as users start it: keys, files, limits, tenants that never meet, and deletions."""

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from emblema.serve.keys import KeyRing
from tests.serve.conftest import QUESTION, asked, data_url, pngs
from tests.serve.engines import ServedEngine, served

__all__ = ["pngs"]
pytestmark = pytest.mark.slow
CHAT = "/v1/chat/completions"
BLIND = {"model": "reference", "temperature": 0, "max_tokens": 4, "strategy": "blind", "return_meta_info": True}
LINKING_SECONDS = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EMBLEMA_FILE_BYTES", str(2**20))
        patch.setenv("EMBLEMA_BODY_BYTES", str(2**21))
        patch.setenv("EMBLEMA_PARTS", "20")
        folder = tmp_path_factory.mktemp("service")
        options = ["--disable-radix-cache", "--max-running-requests", "8"]
        with served("sglang-serve", folder, *options) as running:
            yield running


@pytest.fixture(scope="module")
def http(server: ServedEngine) -> Iterator[dict[str, httpx.Client]]:
    """A client of each of four tenants."""
    ring = KeyRing(server.store / "serve")
    clients = {tenant: server.http(ring.add(tenant)) for tenant in ("one", "two", "three", "four")}
    yield clients
    for client in clients.values():
        client.close()


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def chat(client: httpx.Client, messages: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    """The words of a reply, and the plugin's report."""
    reply = post(client, CHAT, BLIND | more | {"messages": messages})
    [choice] = reply["choices"]
    [report] = [report for report in choice["meta_info"]["emblema"] if report]
    # There is no radix tree here.
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == report["linked_tokens"]
    return choice["message"]["content"], report


def until_linked(client: httpx.Client, messages: Any) -> tuple[str, dict[str, Any]]:
    until = time.monotonic() + LINKING_SECONDS
    while True:
        words, told = chat(client, messages)
        if told["linked_tokens"] >= told["media_tokens"] > 0:
            return words, told
        assert time.monotonic() < until, told
        time.sleep(0.1)


def upload(client: httpx.Client, png: bytes) -> str:
    answer = client.post("/v1/files", files={"file": ("a.png", png)}, data={"purpose": "user_data"})
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def pictures(pngs: list[bytes]) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": data_url(png)}} for png in pngs]


def by_id(*ids: str) -> list[dict[str, Any]]:
    parts = [{"type": "file", "file": {"file_id": id}} for id in ids]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": QUESTION}]}]


def test_the_log_says_what_is_linked(server: ServedEngine) -> None:
    lines = [line for line in server.log.read_text(errors="replace").splitlines() if "is linked by lanes" in line]
    assert len(lines) == 1 and "lanes leading, patch; auto links" in lines[0]


@pytest.mark.parametrize("options", ["blind", {"strategi": 1}, {"margin": 7}])
def test_wrong_options_are_refused_everywhere(server: ServedEngine, options: Any) -> None:
    """These tests come before there are keys, with which `/generate` is not offered."""
    custom, turns = {"custom_params": {"emblema": options}}, [{"role": "user", "content": "a"}]
    bodies: dict[str, Any] = {
        CHAT: custom | {"model": "reference", "messages": turns},
        "/v1/completions": custom | {"model": "reference", "prompt": "a"},
        "/generate": {"text": "a", "sampling_params": custom},
    }
    with server.http() as client:
        for path, body in bodies.items():
            answer = client.post(path, json=body)
            assert answer.status_code == 400, f"{path}: {answer.text}"
            assert "emblema" in answer.text or "margin" in answer.text


def test_only_keys_let_in(server: ServedEngine, http: dict[str, httpx.Client]) -> None:
    for key in (None, "emb-none"):
        with server.http(key) as client:
            assert client.get("/health").status_code == 200
            for path in ("/v1/models", "/v1/files", "/server_info"):
                assert client.get(path).status_code == 401, path
            for path in (CHAT, "/generate"):
                assert client.post(path, json={}).status_code == 401, path
    assert http["one"].get("/v1/models").json()["data"][0]["id"] == "reference"


def test_tenants_reach_none_of_sglang_s_other_routes(server: ServedEngine, http: dict[str, httpx.Client]) -> None:
    routes = httpx.get(f"{server.address}/openapi.json").json()["paths"]
    offered = (CHAT, "/v1/responses", "/v1/models")
    open = ("/health", "/livez", "/readyz", "/ready", "/ping", "/metrics")
    assert {*offered, "/v1/files", "/v1/caches", "/generate", "/v1/completions", "/flush_cache"} <= set(routes)
    for path, methods in routes.items():
        for method in methods:
            place = path.replace("{", "").replace("}", "").replace(":path", "")
            if path not in open:
                assert httpx.request(method, f"{server.address}{place}").status_code == 401, path
            if path not in (*open, *offered) and not path.startswith(("/v1/files", "/v1/caches", "/v1/models")):
                assert http["one"].request(method, place).status_code == 404, path


def test_nothing_is_linked_across_tenants(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    one, two = http["one"], http["two"]
    words, first = chat(one, asked(pngs))
    assert first["linked_tokens"] == 0
    _, mine = until_linked(one, asked(pngs))
    theirs, told = chat(two, asked(pngs))
    assert told["linked_tokens"] == 0 and not told["stored"] and theirs == words
    for name in ("cache_salt", "salt", "extra_key", "session_id", "rid"):
        refused = two.post(CHAT, json=BLIND | {"messages": asked(pngs), name: "x"})
        assert refused.status_code == 400 and name in refused.json()["error"]["message"]
    # What is one's own is found.
    assert until_linked(two, asked(pngs))[1]["linked_tokens"] == mine["linked_tokens"]


def test_a_file_is_shown_by_its_id_to_its_owner_alone(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    one = http["one"]
    ids = [upload(one, png) for png in pngs]
    until_linked(one, by_id(*ids))
    assert chat(one, by_id(*ids), strategy="full") == chat(one, asked(pngs), strategy="full")
    refused = http["two"].post(CHAT, json=BLIND | {"messages": by_id(*ids)})
    assert refused.status_code == 404 and "no file" in refused.json()["error"]["message"]
    assert one.delete(f"/v1/files/{ids[0]}").status_code == 200
    assert one.post(CHAT, json=BLIND | {"messages": by_id(ids[0])}).status_code == 404


def test_a_deleted_file_leaves_no_rows(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    four, quiet = http["four"], {"custom_params": {"emblema": {"capture": False}}}
    id = upload(four, pngs[0])
    until_linked(four, by_id(id))
    until_linked(four, asked(pngs[:2]))
    assert four.delete(f"/v1/files/{id}").status_code == 200
    # The other picture stays known.
    _, told = chat(four, asked(pngs[:2]), **quiet)
    assert 0 < told["linked_tokens"] < told["media_tokens"] and not told["stored"]
    # What waits to be stored is not stored later either.
    fresh = upload(four, pngs[2])
    assert chat(four, by_id(fresh))[1]["linked_tokens"] == 0
    assert four.delete(f"/v1/files/{fresh}").status_code == 200
    for _ in range(10):
        time.sleep(0.2)
        assert not chat(four, asked(pngs[2:]), **quiet)[1]["stored"]
    assert four.delete(f"/v1/files/{id}").status_code == 404


def test_a_cache_is_taken_and_ends(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    three = http["three"]
    content = [{"type": "text", "text": "here are two pages ."}, *pictures(pngs[:2])]
    cache = post(three, "/v1/caches?wait=true", {"content": content, "ttl": 600})
    assert cache["tokens"] > 0 and cache["bytes"] > 0
    use = {"type": "cache", "cache": {"cache_id": cache["id"]}}
    question = {"type": "text", "text": QUESTION}
    by_cache, written = (
        [{"role": "user", "content": [use, question]}],
        [{"role": "user", "content": [*content, question]}],
    )
    # The first question: its pictures' rows are there, and so are the patches of their order.
    words, told = chat(three, by_cache, strategy="patch-25%")
    assert told["strategy"] == "patch-25%" and told["linked_tokens"] == told["media_tokens"] == cache["tokens"] > 0
    assert chat(three, written, strategy="patch-25%")[0] == words
    assert http["one"].post(CHAT, json=BLIND | {"messages": by_cache}).status_code == 404
    assert three.patch(f"/v1/caches/{cache['id']}", json={"ttl": 1200}).json()["expires_at"] > cache["expires_at"]
    assert post(three, "/v1/caches?wait=true", {"content": content, "ttl": 600})["id"] == cache["id"]
    # It was made twice.
    assert [three.delete(f"/v1/caches/{cache['id']}").json()["holders"] for _ in range(2)] == [1, 0]
    assert three.post(CHAT, json=BLIND | {"messages": by_cache}).status_code == 404
    assert chat(three, written, strategy="blind")[1]["linked_tokens"] == told["media_tokens"], "rows go by use"


def test_a_part_with_a_breakpoint_is_kept(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    three = http["three"]
    [part] = pictures(pngs[2:])
    part["prompt_cache_breakpoint"] = {"mode": "explicit", "ttl": "30m"}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}]
    first = post(three, CHAT, BLIND | {"messages": messages})
    [told] = [report for report in first["choices"][0]["meta_info"]["emblema"] if report]
    assert first["usage"]["prompt_tokens_details"]["cache_write_tokens"] == told["media_tokens"] > 0
    assert told["linked_tokens"] == told["media_tokens"], "it was shown alone before the answer"
    again = post(three, CHAT, BLIND | {"messages": messages})
    assert again["usage"]["prompt_tokens_details"]["cache_write_tokens"] == 0


def test_media_and_bodies_have_limits(http: dict[str, httpx.Client], pngs: list[bytes]) -> None:
    one = http["one"]
    large = {"file": ("a.png", bytes(2**20 + 1))}
    assert one.post("/v1/files", files=large, data={"purpose": "user_data"}).status_code == 413
    assert one.post(CHAT, content=bytes(2**21 + 1)).status_code == 413
    many = one.post(CHAT, json=BLIND | {"messages": asked(pngs[:1] * 21)})
    assert many.status_code == 400 and "21 parts" in many.json()["error"]["message"]
    for address in ("file:///etc/passwd", "/etc/passwd", "http://127.0.0.1:1/a.png", "data:image/png;base64,AAAA"):
        part = {"type": "image_url", "image_url": {"url": address}}
        refused = one.post(CHAT, json=BLIND | {"messages": [{"role": "user", "content": [part]}]})
        assert refused.status_code == 400, address

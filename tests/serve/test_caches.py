"""Caches: parts kept with the patches of their order, used by id, nobody else's, gone when their time is over."""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from emblema.serve.caches import CacheEntry, CachePart, CacheStore
from emblema.serve.faults import ServeError
from emblema.serve.files import FileStore
from emblema.serve.keys import LOCAL, Tenant
from emblema.serve.messages import ChatRequest
from emblema.store.identity import owner_digest
from emblema.store.warm_parts import WarmParts
from tests.serve.conftest import QUESTION, data_url
from tests.serve.sent import settled
from tests.serve.servers import Running, serving

ONE, OTHER = Tenant("one", b"one"), Tenant("other", b"other")
FILE = {"type": "file", "file": {"file_id": "file-1"}}
PARTS: list[CachePart] = [("text", "a"), ("file", "file-1")]


class Pins:
    """The pins that a store of caches sets."""

    def __init__(self) -> None:
        self.held: set[tuple[str, str]] = set()

    def __call__(self, owner: str, tenant: str, ids: Iterable[str], pinned: bool) -> None:
        named = {(tenant, id) for id in ids}
        self.held = self.held | named if pinned else self.held - named


@pytest.fixture
def pins() -> Pins:
    return Pins()


def put(
    caches: CacheStore, tenant: Tenant, parts: list[CachePart], name: str | None, seconds: float, made: WarmParts
) -> CacheEntry:
    """A cache that is made."""
    id = caches.open(tenant, parts, name, seconds).id
    try:
        return caches.fill(tenant, id, made)
    except ServeError:
        caches.release(tenant, id)
        raise


def pictures(pngs: list[bytes]) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": data_url(png)}} for png in pngs]


def made(http: httpx.Client, content: list[dict[str, Any]], **body: Any) -> dict[str, Any]:
    answer = http.post("/v1/caches?wait=true", json={"content": content} | body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def reply_to(client: OpenAI, content: list[dict[str, Any]], **options: Any) -> Any:
    return client.chat.completions.create(model="reference", messages=[{"role": "user", "content": content}], **options)  # type: ignore[call-overload]


def test_a_miss_is_told_by_its_place_in_the_messages(server: Running, pngs: list[bytes]) -> None:
    """A part of a cache may be several pictures; other interfaces have other messages, and tell the number alone."""
    with server.http() as http:
        cache = made(http, pictures(pngs[:2]))
        used = {"type": "cache", "cache": {"cache_id": cache["id"]}}
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": [{"type": "text", "text": "the pages :"}, used]},
            {"role": "assistant", "content": "sand"},
            {"role": "user", "content": [*pictures(pngs[2:3]), {"type": "text", "text": QUESTION}]},
        ]
        asked = {"model": "reference", "strategy": "full"}
        reply = http.post("/v1/chat/completions", json=asked | {"messages": turns}).json()
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(pngs[2]).decode()}
        content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
        other = asked | {"max_tokens": 8, "messages": [{"role": "user", "content": content}]}
        told = http.post("/v1/messages", json=other).json()
    missed = [(number, detail) for number, _, _, detail in reply["emblema"]["misses"]]
    first, last = "messages[0].content[1]: full", "messages[2].content[0]: full"
    assert missed == [(0, first), (1, first), (2, last)]
    assert [detail for *_, detail in told["emblema"]["misses"]] == ["full"]


def test_the_first_question_to_a_cache_computes_text_alone(server: Running, client: OpenAI, pngs: list[bytes]) -> None:
    order = [pngs[2], pngs[0], pngs[1]]
    with server.http() as http:
        cache = made(http, [{"type": "text", "text": "the pages :"}, *pictures(order)], ttl=600, name="pages")
        assert cache["object"] == "cache" and cache["name"] == "pages" and cache["tokens"] > 0 and cache["bytes"] > 0
        assert cache["expires_at"] - cache["created_at"] == 600
        assert http.get(f"/v1/caches/{cache['id']}").json() == cache
        assert cache["id"] in [each["id"] for each in http.get("/v1/caches").json()["data"]]
        assert {part["type"] for part in cache["content"]} == {"text", "file"}
    used = {"type": "cache", "cache": {"cache_id": cache["id"]}}
    # One whose answer is sure, so that it stands over patched rows.
    question = {"type": "text", "text": "which colour lies under the key ?"}
    full = reply_to(client, [*pictures(order), question], extra_body={"strategy": "full"})
    for opening in ([], [{"type": "text", "text": "here are more pages ."}]):
        reply = reply_to(client, [*opening, used, question])
        assert reply.usage.prompt_tokens_details.cached_tokens >= cache["tokens"]
        assert reply.usage.prompt_tokens_details.cache_write_tokens == 0
        assert reply.choices[0].message.content == full.choices[0].message.content
    assert reply.model_extra["emblema"]["patched_tokens"] == cache["tokens"]
    for part in cache["content"][1:]:
        assert client.files.retrieve(part["file"]["file_id"]).status == "processed"


def test_a_cache_is_answered_at_once_and_made_behind_it(server: Running, client: OpenAI, pngs: list[bytes]) -> None:
    content = [{"type": "text", "text": "made later :"}, *pictures(pngs[:3])]
    question = {"type": "text", "text": "which colour lies under the key ?"}
    with server.http() as http:
        first = http.post("/v1/caches", json={"content": content})
        cache = first.json()
        assert first.status_code == 202 and cache["status"] == "uploaded" and cache["bytes"] == cache["tokens"] == 0
        # Its parts are answered whether it is made or not.
        early = reply_to(client, [{"type": "cache", "cache": {"cache_id": cache["id"]}}, question])
        path = f"/v1/caches/{cache['id']}"
        found = settled(http, path)
        assert found["status"] == "processed" and found["bytes"] > 0 and found["tokens"] > 0
        again = http.post("/v1/caches?wait=true", json={"content": content})
        assert again.status_code == 200 and again.json()["id"] == cache["id"] and again.json()["holders"] == 2
        assert http.delete(path).json()["holders"] == 1 and http.get(path).json()["status"] == "processed"
        assert http.delete(path).json()["holders"] == 0 and http.get(path).status_code == 404
    whole = reply_to(client, [*content, question])
    assert early.choices[0].message.content == whole.choices[0].message.content


def test_what_a_server_left_unmade_the_next_one_makes(tmp_path: Path, pngs: list[bytes]) -> None:
    folder = tmp_path / "serve"
    file = FileStore(folder, 2**20).add(LOCAL, pngs[0], "a.png", "user_data", None)
    left = CacheStore(folder, 9, 2**30, lambda *pieces: None).open(LOCAL, [("file", file.id)], None, 1_000)
    with serving(tmp_path) as running, running.http() as http:
        found = settled(http, f"/v1/caches/{left.id}")
    assert found["status"] == "processed" and found["tokens"] > 0


def test_holders_are_counted(tmp_path: Path, pins: Pins) -> None:
    caches = CacheStore(tmp_path, 9, 100, pins)
    made = [put(caches, ONE, PARTS, "a", 1_000.0, WarmParts(4, {"x": 40})) for _ in range(3)]
    assert [entry.holders for entry in made] == [1, 2, 3] and len({entry.id for entry in made}) == 1
    assert [caches.release(ONE, made[0].id) for _ in range(2)] == [2, 1] and pins.held == {("one", "x")}
    assert caches.release(ONE, made[0].id) == 0 and not pins.held and caches.entries(ONE) == ()
    put(caches, ONE, PARTS, "a", 1_000.0, WarmParts(4, {"x": 40}))
    caches.open(ONE, PARTS, "a", 1_000.0)
    caches.delete(ONE, made[0].id)
    assert not pins.held and caches.entries(ONE) == (), "with its file it goes, whoever holds it"


def test_files_of_a_cache_stay_as_long_as_it(server: Running, client: OpenAI, pngs: list[bytes]) -> None:
    after = {"anchor": "created_at", "seconds": 3_600}
    short = client.files.create(file=("a.png", pngs[0]), purpose="user_data", expires_after=after)  # type: ignore[arg-type]
    with server.http() as http:
        content = [{"type": "file", "file": {"file_id": short.id}}, *pictures([pngs[1]])]
        cache = made(http, content, ttl=7_200)
        ids = [part["file"]["file_id"] for part in cache["content"]]
        assert ids[0] == short.id
        for id in ids:
            expires = client.files.retrieve(id).expires_at
            assert expires is None or expires >= cache["expires_at"]
        longer = http.patch(f"/v1/caches/{cache['id']}", json={"ttl": 9_000}).json()
        assert longer["expires_at"] >= cache["expires_at"] + 1_790
        assert (client.files.retrieve(short.id).expires_at or 0) >= longer["expires_at"]
        assert made(http, content, ttl=60)["id"] == cache["id"], "the same parts are the same cache"
        assert http.get(f"/v1/caches/{cache['id']}").json()["expires_at"] >= longer["expires_at"]
        client.files.delete(ids[1])
        used = {"type": "cache", "cache": {"cache_id": cache["id"]}}
        answer = http.post("/v1/chat/completions", json=asking([used]))
        assert answer.status_code == 404 and ids[1] in answer.text, "a deleted file is gone from a cache too"


def asking(content: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    question = {"type": "text", "text": QUESTION}
    return {"model": "reference", "messages": [{"role": "user", "content": [*content, question]}]} | more


def test_a_part_with_a_breakpoint_is_kept_wherever_it_stands(tmp_path: Path, pngs: list[bytes]) -> None:
    part = pictures(pngs[:1])[0] | {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}}
    question = {"type": "text", "text": QUESTION}
    with serving(tmp_path) as running, running.http() as http:
        client = running.client()
        first = reply_to(client, [part, question], prompt_cache_key="k", prompt_cache_options={"ttl": "30m"})
        written = first.usage.prompt_tokens_details.cache_write_tokens
        assert written > 0 and first.model_extra["emblema"]["remark"] is None
        again = reply_to(client, [{"type": "text", "text": "elsewhere :"}, part, question])
        assert again.usage.prompt_tokens_details.cache_write_tokens == 0
        blind = reply_to(client, [*pictures(pngs[:1]), question], extra_body={"strategy": "blind"})
        assert blind.usage.prompt_tokens_details.cached_tokens >= written
        assert http.get("/v1/caches").json()["data"] == [] and list(client.files.list()) == []


@pytest.mark.parametrize(
    ("own", "whole", "seconds"),
    [({}, {}, 1_800), ({}, {"ttl": "2d"}, 172_800), ({"ttl": "12h"}, {"ttl": "30m"}, 43_200), ({"ttl": "9s"}, {}, 9)],
)
def test_a_breakpoint_lasts_as_it_or_the_request_says(own: dict[str, str], whole: dict[str, str], seconds: int) -> None:
    part = pictures([b"x"])[0] | {"prompt_cache_breakpoint": {"mode": "explicit"} | own}
    body = ChatRequest.model_validate(asking([part], prompt_cache_options=whole))
    assert [body.kept_seconds(each) for each in body.media] == [seconds]


def test_what_has_no_room_is_served_and_not_kept(tmp_path: Path, pngs: list[bytes]) -> None:
    with serving(tmp_path, cache_bytes=1_000, caches=1) as running, running.http() as http:
        refused = http.post("/v1/caches?wait=true", json={"content": pictures(pngs[:2])})
        assert refused.status_code == 413 and "1000" in refused.text
        assert http.get("/v1/caches").json()["data"] == [], "who was told of an error holds nothing"
        later = http.post("/v1/caches", json={"content": pictures(pngs[:2])})
        assert later.status_code == 202
        told = settled(http, f"/v1/caches/{later.json()['id']}")
        assert told["status"] == "error" and "1000" in told["status_details"] and told["bytes"] == 0
        part = pictures([pngs[0]])[0] | {"prompt_cache_breakpoint": {"mode": "explicit"}}
        answer = http.post("/v1/chat/completions", json=asking([part])).json()
        assert answer["choices"] and "not kept" in answer["emblema"]["remark"]


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"ttl": -1}, 400, "ttl"),
        ({"ttl": 0}, 400, "ttl"),
        ({"ttl": 10**9}, 400, "ttl"),
        ({"ttl": "soon"}, 400, "ttl"),
        ({"content": []}, 400, "content"),
        ({"content": "text"}, 400, "content"),
        ({"content": None}, 400, "content"),
        ({"content": [{"type": "text", "text": "alone"}]}, 400, "media"),
        ({"content": [{"type": "cache", "cache": {"cache_id": "cache-1"}}]}, 400, "content"),
        ({"content": [FILE]}, 404, "file-1"),
        ({"content": [{"type": "file", "file": {"file_id": 7}}]}, 400, "file_id"),
        ({"content": [{"type": "file", "file": {}}]}, 400, "file_id"),
        ({"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}, 400, "http"),
        ({"content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/a.png"}}]}, 400, "127.0.0.1"),
        ({"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,UEsDBA=="}}]}, 400, ""),
        ({"content": [FILE] * 10_000}, 400, "10000 parts"),
        ({"content": [FILE] * 10_001}, 400, "content"),
        ({"content": [FILE, {"type": "text", "text": "x" * 30_000}]}, 400, "characters"),
        ({"model": "other"}, 404, "other"),
        ({"name": "x" * 500}, 400, "name"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_cache_is_said(server: Running, change: dict[str, Any], status: int, word: str) -> None:
    with server.http() as http:
        answer = http.post("/v1/caches", json={"content": [FILE], "ttl": 60} | change)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert word in error["message"] and set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("part", "status"),
    [
        ({"type": "cache", "cache": {"cache_id": "cache-" + "0" * 32}}, 404),
        ({"type": "cache", "cache": {"cache_id": "part-" + "0" * 32}}, 404),
        ({"type": "cache", "cache": {"cache_id": "x" * 300}}, 400),
        ({"type": "cache", "cache": "cache-1"}, 400),
        ({"type": "cache"}, 400),
        *(
            ({"type": "image_url", "image_url": {"url": "data:,x"}, "prompt_cache_breakpoint": wrong}, 400)
            for wrong in (
                {"mode": "implicit"}, {"mode": "explicit", "ttl": "-30m"}, {"mode": "explicit", "ttl": "31d"},
                {"mode": "explicit", "ttl": "m"}, {"mode": "explicit", "ttl": 30}, {}, "explicit", [],
            )
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_part_is_said(server: Running, part: dict[str, Any], status: int) -> None:
    with server.http() as http:
        answer = http.post("/v1/chat/completions", json=asking([part]))
    assert answer.status_code == status and answer.json()["error"]["message"], answer.text


@pytest.mark.slow
def test_parts_of_caches_count(tmp_path: Path, pngs: list[bytes]) -> None:
    with serving(tmp_path, parts=4) as running, running.http() as http:
        cache = made(http, pictures(pngs[:3]))
        part = {"type": "cache", "cache": {"cache_id": cache["id"]}}
        assert http.post("/v1/chat/completions", json=asking([part])).status_code == 200
        answer = http.post("/v1/chat/completions", json=asking([part, part]))
        assert answer.status_code == 400 and "6 parts" in answer.text


def test_pins_are_those_of_the_caches(tmp_path: Path, pins: Pins) -> None:
    now = [1_000.0]
    caches = CacheStore(tmp_path, 3, 100, pins, clock=lambda: now[0])
    first = put(caches, ONE, PARTS, "a", 50.0, WarmParts(4, {"x": 40, "y": 40}))
    second = put(caches, ONE, [*PARTS, ("text", "b")], None, 500.0, WarmParts(4, {"x": 40, "z": 10}))
    put(caches, OTHER, PARTS, "a", 50.0, WarmParts(4, {"x": 40}))
    assert caches.held(owner_digest(ONE.salt)) == {"x", "y", "z"}
    assert pins.held == {("one", "x"), ("one", "y"), ("one", "z"), ("other", "x")}
    with pytest.raises(ServeError, match="110 bytes of 100"):
        put(caches, ONE, [("file", "f")], None, 50.0, WarmParts(4, {"w": 20}))
    caches.keep_part(ONE, 40.0, WarmParts(4, {"x": 40}), fresh=True)
    pins.held.remove(("one", "x"))
    now[0] += 5
    caches.keep_part(ONE, 40.0, WarmParts(4, {"x": 40}), fresh=False)
    assert ("one", "x") not in pins.held, "what is kept for long enough is left as it is"
    caches.keep_part(ONE, 40.0, WarmParts(4, {"x": 40}), fresh=True)
    assert ("one", "x") in pins.held
    assert {entry.id for entry in caches.entries(ONE)} == {first.id, second.id}, "a kept part is not listed"
    with pytest.raises(ServeError, match="3 caches"):
        put(caches, ONE, [("file", "g")], None, 50.0, WarmParts(1, {"x": 40}))
    now[0] += 60
    caches.expire()
    assert pins.held == {("one", "x"), ("one", "z")} and [entry.id for entry in caches.entries(ONE)] == [second.id]
    again = CacheStore(tmp_path, 3, 100, pins, clock=lambda: now[0])
    assert again.entry(ONE, second.id) == second, "another process says the same"
    again.delete(ONE, second.id)
    assert not pins.held


def test_what_is_kept_says_nothing_of_salts(tmp_path: Path, pins: Pins) -> None:
    caches = CacheStore(tmp_path, 3, 100, pins)
    entry = put(caches, ONE, PARTS, None, 50.0, WarmParts(1, {"x": 1}))
    assert entry.id != put(caches, OTHER, PARTS, None, 50.0, WarmParts(1, {"x": 1})).id
    for call in (caches.entry, caches.delete, caches.release):
        with pytest.raises(ServeError) as refused:
            call(OTHER, entry.id)
        assert refused.value.status == 404 and json.dumps(owner_digest(ONE.salt)) not in str(refused.value)


def test_a_damaged_cache_holds_up_nothing_but_itself(tmp_path: Path, pins: Pins) -> None:
    now = [1_000.0]
    caches = CacheStore(tmp_path, 10, 1_000, pins, lambda: now[0])
    broken = put(caches, ONE, PARTS, "a", 10.0, WarmParts(1, {"x": 1}))
    put(caches, OTHER, PARTS, "b", 10.0, WarmParts(1, {"y": 1}))
    caches._table.change("UPDATE caches SET pieces = 'no json' WHERE owner = ? AND id = ?", ONE.owner, broken.id)
    now[0] += 20
    caches.expire()
    assert ("other", "y") not in pins.held and ("one", "x") in pins.held
    assert put(caches, OTHER, PARTS, "c", 10.0, WarmParts(1, {"z": 1})).name == "c"

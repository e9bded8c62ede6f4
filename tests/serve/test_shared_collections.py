"""Collections of two servers with folders of their own: what is written to one, both have, media and versions alike."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from emblema.serve.collection_items import CollectionItem, Collections
from emblema.serve.keys import LOCAL
from emblema.serve.redis_files import RedisFileStore
from emblema.serve.shared_collections import MEDIA, SharedCollections
from tests.serve.conftest import QUESTION
from tests.serve.servers import Running, serving
from tests.store.remote.servers import RedisServer

SECONDS = 1.0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def servers(redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Running]]:
    shared: dict[str, Any] = {"redis": redis.url, "files_redis": redis.url, "deletion_seconds": SECONDS}
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    with serving(folders[0], **shared) as first, serving(folders[1], **shared) as second:
        yield first, second


class EmptyCollections(Collections):
    """A server's own collections, of which there are none."""


def items_of(http: httpx.Client, pngs: list[bytes]) -> list[dict[str, str]]:
    files = [http.post("/v1/files", files={"file": ("a.png", png)}).json()["id"] for png in pngs]
    return [{"name": f"page {number}", "file_id": id} for number, id in enumerate(files)]


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait for a condition; machines are busy, so the time is many times the stated one."""
    end = time.monotonic() + 20 * seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_what_one_writes_both_have(servers: tuple[Running, Running], pngs: list[bytes]) -> None:
    with servers[0].http() as ours, servers[1].http() as theirs:
        items = [*items_of(ours, pngs[:2]), {"name": "a text", "text": "the moon stands on the meadow ."}]
        made = ours.post("/v1/collections", json={"name": "atlas", "items": items}).json()
        assert made["count"] == 3
        within(SECONDS, lambda: theirs.get("/v1/collections/atlas").status_code == 200)
        assert theirs.get("/v1/collections/atlas").json() == made
        assert theirs.post("/v1/collections", json={"name": "atlas", "items": items}).status_code == 409
        # It outlives the files that it was made of, and each may write the next version.
        for item in items[:2]:
            assert ours.delete(f"/v1/files/{item['file_id']}").status_code == 200
        later = theirs.put("/v1/collections/atlas", json={"items": [*items_of(theirs, pngs[2:3]), items[2]]}).json()
        assert later["version"] == made["version"] + 1
        within(SECONDS, lambda: ours.get("/v1/collections/atlas").json() == later)
        body = {"model": "reference", "collections": ["atlas"], "messages": [{"role": "user", "content": QUESTION}]}
        assert ours.post("/v1/chat/completions", json=body).status_code == 200
        assert ours.delete("/v1/collections/atlas").status_code == 200
        within(SECONDS, lambda: theirs.get("/v1/collections/atlas").status_code == 404)
        again = theirs.post("/v1/collections", json={"name": "atlas", "items": items[2:]}).json()
        assert again["version"] == later["version"] + 2
        within(SECONDS, lambda: ours.get("/v1/collections").json() == theirs.get("/v1/collections").json())


@pytest.mark.slow
def test_what_cannot_be_read_is_nobodys(servers: tuple[Running, Running], pngs: list[bytes]) -> None:
    with servers[0].http() as ours, servers[1].http() as theirs:
        broken = ours.post("/v1/files", files={"file": ("x.png", b"PK\x03\x04 a zip")}).json()["id"]
        bad = {"name": "bad", "items": [*items_of(ours, pngs[:1]), {"name": "broken", "file_id": broken}]}
        assert ours.post("/v1/collections", json=bad).status_code == 400
        assert (
            ours.post("/v1/collections", json=bad | {"items": [{"name": "a", "file_id": "file-none"}]}).status_code
            == 404
        )
        time.sleep(2 * SECONDS)
        assert [http.get("/v1/collections/bad").status_code for http in (ours, theirs)] == [404, 404]


@pytest.mark.slow
def test_a_server_that_comes_later_has_all(
    servers: tuple[Running, Running], redis: RedisServer, pngs: list[bytes], tmp_path: Path
) -> None:
    with servers[0].http() as ours:
        ours.post("/v1/collections", json={"name": "old", "items": items_of(ours, pngs[:1])})
        made = ours.get("/v1/collections/old").json()
    shared = {"redis": redis.url, "files_redis": redis.url, "deletion_seconds": SECONDS}
    with serving(tmp_path, **shared) as third, third.http() as http:
        within(SECONDS, lambda: http.get("/v1/collections/old").status_code == 200)
        assert http.get("/v1/collections/old").json() == made


def test_media_that_no_version_names_go_after_a_while(
    servers: tuple[Running, Running], redis: RedisServer, pngs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RedisFileStore(redis.url, 10**6)
    own = SharedCollections(EmptyCollections(), files, redis.url)
    with servers[0].http() as ours:
        kept, loose = items_of(ours, pngs[1:3])
        ours.post("/v1/collections", json={"name": "kept", "items": [kept]})
        left = own.kept(LOCAL, CollectionItem(name="a", file_id=loose["file_id"], text=None))
    there = {entry.id for entry in files.entries(MEDIA)}
    own.drop_unused()
    assert {entry.id for entry in files.entries(MEDIA)} == there, "a version may come that names it"
    monkeypatch.setattr("emblema.serve.shared_collections._UNUSED_SECONDS", -60.0)
    own.drop_unused()
    assert left.file_id in there - {entry.id for entry in files.entries(MEDIA)}
    with servers[1].http() as theirs:
        within(SECONDS, lambda: theirs.get("/v1/collections/kept").status_code == 200)

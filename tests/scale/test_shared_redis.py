"""Two servers with folders of their own share a Redis: what one made the other takes, and without it answers go on."""

import time

import pytest

from tests.serve.servers import serving
from tests.store.remote.servers import RedisServer

pytestmark = pytest.mark.slow
QUESTION = {"type": "text", "text": "on which land does the moon stand ?"}


def ask(client, pngs):
    parts = [{"type": "file", "file": {"file_id": upload(client, png)}} for png in pngs]
    reply = client.chat.completions.create(
        model="reference", messages=[{"role": "user", "content": [*parts, QUESTION]}], extra_body={"strategy": "blind"}
    )
    return reply.choices[0].message.content, reply.usage.prompt_tokens_details.cached_tokens


def upload(client, png):
    file = client.files.create(file=("a.png", png), purpose="user_data")
    while client.files.retrieve(file.id).status == "uploaded":
        time.sleep(0.02)
    return file.id


def test_redis_that_is_gone_makes_slower_and_nothing_wrong(tmp_path, pngs):
    redis = RedisServer(tmp_path)
    try:
        shared = {"redis": redis.url, "deletion_seconds": 1.0}
        with serving(tmp_path / "a", **shared) as first, serving(tmp_path / "b", **shared) as second:
            told = [ask(server.client(), pngs) for server in (first, second)]
            assert told[0] == told[1]
            ids = [upload(first.client(), png) for png in pngs]
            redis.stop()
            time.sleep(1.0)
            # Both compute what they may not take any more.
            assert [ask(server.client(), pngs)[0] for server in (first, second)] == [told[0][0]] * 2
            with first.http() as http:
                assert http.delete(f"/v1/files/{ids[0]}").status_code >= 500
                assert http.get(f"/v1/files/{ids[0]}").status_code == 200
            redis.start()
            deadline = time.monotonic() + 30
            with first.http() as http:
                while http.delete(f"/v1/files/{ids[0]}").status_code != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.2)
                assert http.get(f"/v1/files/{ids[0]}").status_code == 404
            assert [ask(server.client(), pngs)[0] for server in (first, second)] == [told[0][0]] * 2
    finally:
        redis.stop()

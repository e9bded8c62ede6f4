"""A server whose tier beyond its disk is a bucket, named by a setting."""

from pathlib import Path

import pytest
import redis

from emblema.errors import EmblemaError
from emblema.serve.service import open_store
from emblema.serve.settings import ServeSettings
from emblema.store import Store
from tests.serve.conftest import QUESTION, data_url
from tests.serve.servers import Running, serving
from tests.serve.test_files import settled
from tests.store.remote.servers import RedisServer, s3_server


def test_what_one_server_stored_another_finds_in_the_bucket(
    tmp_path: Path, pngs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    picture = {"type": "image_url", "image_url": {"url": data_url(pngs[0])}} | kept
    messages = [{"role": "user", "content": [picture, {"type": "text", "text": QUESTION}]}]

    def asked_of(server: Running) -> tuple[str, int]:
        """The reply, and the rows that were prefilled to keep its picture."""
        body = {"model": "reference", "messages": messages, "strategy": "full"}
        with server.http() as http:
            answer = http.post("/v1/chat/completions", json=body).json()
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"][
            "cache_write_tokens"
        ]

    with s3_server() as endpoint:
        for name, value in {"ENDPOINT_URL": endpoint, "REGION": "us-east-1", "ACCESS_KEY_ID": "a"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        with serving(tmp_path / "one", bucket="s3://emblema-test/rows") as one:
            file = one.client().files.create(file=("p.png", pngs[0]), purpose="user_data")
            settled(one.client(), file.id)
            said, made = asked_of(one)
            assert made == 0
        with serving(tmp_path / "two", bucket="s3://emblema-test/rows") as two:
            assert asked_of(two) == (said, 0), "what the first server made of its files is found, and not made again"
        with serving(tmp_path / "three", bucket="s3://emblema-test/other") as three:
            answer, made = asked_of(three)
            assert answer == said and made > 0


def test_with_a_redis_rows_are_in_the_bucket_and_deletions_in_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        store = open_store(ServeSettings.read(store=tmp_path / "store", bucket=tmp_path.as_uri(), redis=server.url))
        assert isinstance(store, Store)
        store.flush()
        store.close()
        with redis.Redis(port=server.port) as client:
            assert client.keys() == [b"emblema/deletions"]
    finally:
        server.stop()


@pytest.mark.parametrize("bucket", ["http://127.0.0.1/bucket", "somewhere", "s3://user:word@bucket"])
def test_what_is_no_bucket_is_refused(tmp_path: Path, bucket: str) -> None:
    with pytest.raises(EmblemaError, match="address of the bucket") as caught:
        open_store(ServeSettings.read(store=tmp_path, bucket=bucket))
    assert "word" not in str(caught.value)

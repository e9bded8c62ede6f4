"""Files of several servers: in one folder, in Redis, or in Redis with bytes in a bucket: they keep to the same."""

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emblema.errors import EmblemaError, StoreError
from emblema.serve.faults import ServeError
from emblema.serve.file_bytes import S3FileBytes
from emblema.serve.files import FileStore
from emblema.serve.folder_files import FolderFileStore
from emblema.serve.host import open_files
from emblema.serve.keys import Tenant
from emblema.serve.redis_files import RedisFileStore
from emblema.serve.service import open_store
from emblema.serve.settings import ServeSettings
from emblema.session.fidelity_logs import FidelityLogs
from emblema.session.redis_fidelity_logs import RedisFidelityLogs
from emblema.store.remote import CallPolicy
from tests.store.remote.servers import FaultyProxy, RedisServer, s3_server

ONE, OTHER = Tenant("one", b"one"), Tenant("other", b"other")
QUICK = CallPolicy(reply_seconds=1.0, retries=1, pause_seconds=0.01, total_seconds=2.0, failures=100)
Open = Callable[..., FileStore]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    with s3_server() as endpoint:
        yield {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}


@pytest.fixture(params=["folder", "redis", "redis and s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens files as one more server of the same ones does; a test has its own."""
    prefix = f"files-{random.getrandbits(40)}"
    if request.param == "folder":
        return lambda quota=1_000, **options: FolderFileStore(tmp_path, quota, **options)
    url = request.getfixturevalue("redis").url
    named = request.getfixturevalue("bucket") if request.param == "redis and s3" else None

    def make(quota: int = 1_000, **options: Any) -> FileStore:
        held = None if named is None else S3FileBytes("s3://emblema-test", prefix, named)
        return RedisFileStore(url, quota, bytes=held, prefix=prefix, part_bytes=4_096, **options)

    return make


def test_what_one_server_keeps_all_have(opened: Open) -> None:
    first, second = opened(10**6), opened(10**6)
    data = random.Random(1).randbytes(50_000)
    entry = first.add(ONE, data, "a.png", "vision", None)
    assert second.entry(ONE, entry.id) == entry
    assert (entry.name, entry.purpose, entry.bytes, entry.status, entry.chunks) == (
        "a.png",
        "vision",
        50_000,
        "uploaded",
        (),
    )
    assert second.read(ONE, entry.id) == data
    assert [found.id for found in second.entries(ONE)] == [entry.id] and second.entries(OTHER) == ()
    assert second.unprocessed() == [(ONE.owner, "one", entry.id)]
    assert second.note(ONE, entry.id, "processed", None, "image", ["chunk"])
    noted = first.entry(ONE, entry.id)
    assert (noted.status, noted.kind, noted.chunks, noted.detail) == ("processed", "image", ("chunk",), None)
    assert first.unprocessed() == []
    assert second.delete(ONE, noted)
    for call in (first.entry, first.read):
        with pytest.raises(ServeError) as refused:
            call(ONE, entry.id)
        assert refused.value.status == 404
    assert not first.delete(ONE, noted) and not first.note(ONE, entry.id, "processed", None, "image", ["chunk"])


def test_the_same_bytes_are_one_file_with_what_was_made_of_it(opened: Open) -> None:
    first, second = opened(100), opened(100)
    id = first.add(ONE, b"x" * 60, "a", "user_data", None).id
    first.note(ONE, id, "processed", None, "image", ["chunk"])
    again = second.add(ONE, b"x" * 60, "b", "vision", 50.0)
    assert (again.id, again.name, again.status, again.chunks) == (id, "b", "processed", ("chunk",))
    assert again.expires is not None and again.expires - again.created == pytest.approx(50.0, abs=1e-3)
    kept = second.add(ONE, b"x" * 60, "c", "vision", 1.0, renew=False)
    assert (kept.name, kept.expires) == ("b", again.expires)
    assert second.add(ONE, b"x" * 60, "d", "vision", None).expires is None
    assert second.add(OTHER, b"x" * 60, "e", "vision", None).id != id


def test_files_are_listed_with_the_newest_first(opened: Open) -> None:
    files = opened()
    for number in range(5):
        files.add(ONE, str(number).encode(), str(number), "user_data", None)
        time.sleep(0.01)
    assert [entry.name for entry in files.entries(ONE)] == ["4", "3", "2", "1", "0"]


def test_a_quota_holds_to_one_file_whoever_uploads_at_once(opened: Open) -> None:
    """Half of what is uploaded comes twice, to different servers; each file counts once."""
    servers = [opened(7 * 100 + 99) for _ in range(4)]

    def put(number: int) -> str | None:
        try:
            return servers[number % 4].add(ONE, b"%03d" % (number // 2) + b"x" * 97, "a", "user_data", None).id
        except ServeError as error:
            assert error.status == 413
            return None

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(put, range(60)))
    kept = {id for id in answers if id is not None}
    assert len(kept) == 7 == len(servers[0].entries(ONE))
    assert all(len(servers[1].read(ONE, id)) == 100 for id in kept)
    gone = servers[2].entries(ONE)[0]
    assert servers[2].delete(ONE, gone)
    assert [put(number) is not None for number in (1_000, 1_002)] == [True, False]
    own = Tenant("one", b"one", quota=10_000)
    assert servers[3].add(own, b"more", "a", "user_data", None), "a key's own quota counts before the server's"


@pytest.mark.slow
def test_uploads_and_deletions_at_once_leave_no_file_without_bytes(opened: Open) -> None:
    servers = [opened(10**6) for _ in range(4)]

    def turn(number: int) -> None:
        files, data = servers[number % 4], b"%d" % (number % 3)
        entry = None
        try:
            entry = files.add(ONE, data, "a", "user_data", None)
            assert files.read(ONE, entry.id) == data
        except ServeError as error:
            assert error.status == 404
        if entry is not None and number % 2:
            files.delete(ONE, entry)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(turn, range(90)))
    left = servers[0].entries(ONE)
    assert all(servers[1].read(ONE, entry.id) in (b"0", b"1", b"2") for entry in left)
    for entry in left:
        assert servers[2].delete(ONE, entry)
    # What is counted is what there is: a full quota fits again.
    assert opened(10).add(ONE, b"x" * 10, "a", "user_data", None)


def test_a_file_that_is_deleted_and_sent_again_while_it_is_read_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = FolderFileStore(tmp_path, 10**6)
    entry, read, turns = files.add(ONE, b"page", "a", "user_data", None), Path.read_bytes, 2

    def late(path: Path) -> bytes:
        nonlocal turns
        if turns:
            turns -= 1
            files.delete(ONE, entry)
            try:
                return read(path)
            finally:
                files.add(ONE, b"page", "a", "user_data", None)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", late)
    assert files.read(ONE, entry.id) == b"page" and turns == 0
    files.path(ONE, entry.id).unlink()
    with pytest.raises(ServeError, match="lost") as refused:
        files.read(ONE, entry.id)
    assert refused.value.status == 410
    files.delete(ONE, entry)
    with pytest.raises(ServeError) as refused:
        files.read(ONE, entry.id)
    assert refused.value.status == 404


@pytest.mark.slow
def test_a_time_to_live_is_honoured_by_all(opened: Open) -> None:
    gone = list[tuple[str, str, list[str]]]()
    first, second = opened(100), opened(100, forget=lambda *given: gone.append((given[0], given[1], list(given[2]))))
    short, long = (first.add(ONE, data * 50, "a", "user_data", 0.5).id for data in (b"s", b"l"))
    first.note(ONE, short, "processed", None, "image", ["chunk"])
    second.keep_until(ONE, [long, "file-none"], time.time() + 60)
    second.keep_until(OTHER, [short], time.time() + 60)
    second.keep_until(ONE, [long], time.time() + 1)
    with pytest.raises(ServeError, match="quota"):
        second.add(ONE, b"x", "a", "user_data", None)
    time.sleep(0.6)
    for call in (first.entry, second.read):
        with pytest.raises(ServeError):
            call(ONE, short)
    assert [entry.id for entry in second.entries(ONE)] == [long]
    assert gone == [(ONE.owner, "one", ["chunk"])]
    assert second.add(ONE, b"y" * 50, "a", "user_data", None)


def test_a_file_whose_chunks_cannot_be_forgotten_is_tried_again(opened: Open) -> None:
    def refuse(owner: str, tenant: str, chunks: object) -> None:
        raise StoreError("not now")

    files = opened(100, forget=refuse)
    id = files.add(ONE, b"a", "a", "user_data", 0.1).id
    time.sleep(0.2)
    files.expire()
    gone = list[str]()
    again = opened(100, forget=lambda owner, tenant, chunks: gone.append(tenant))
    with pytest.raises(ServeError):
        again.entry(ONE, id)
    again.expire()
    again.expire()
    assert gone == ["one"]


def test_chunks_that_were_begun_are_forgotten_unless_their_file_is_there(opened: Open) -> None:
    gone = list[tuple[str, list[str]]]()
    files = opened(forget=lambda owner, tenant, chunks: gone.append((tenant, list(chunks))))
    kept, lost, done = (files.add(ONE, data, "a", "user_data", None) for data in (b"kept", b"lost", b"done"))
    for entry in (kept, lost, done):
        files.begin(ONE, entry.id, [f"chunk of {entry.id}"])
    assert files.note(ONE, done.id, "processed", None, "image", [f"chunk of {done.id}"])
    assert not files.delete(ONE, done), "others were made of it meanwhile"
    assert files.delete(ONE, lost) and files.delete(ONE, files.entry(ONE, done.id))
    for _ in range(2):
        files.forget_begun()
    assert gone == [("one", [f"chunk of {lost.id}"])]


def test_ids_and_other_tenants_lead_nowhere(opened: Open) -> None:
    files = opened()
    mine = files.add(ONE, b"picture", "a", "user_data", None)
    for id in ("../../secret", "/etc/passwd", "", "\0", "file-" + "0" * 32, f"../{ONE.owner}/{mine.id}", mine.id):
        for call in (files.entry, files.read):
            with pytest.raises(ServeError) as refused:
                call(OTHER, id)
            assert refused.value.status == 404
    assert not files.delete(OTHER, mine) and files.read(ONE, mine.id) == b"picture"


def clocked(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + shift)


@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_no_servers_clock_counts_for_files_in_redis(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    right = RedisFileStore(redis.url, 100, prefix=f"clock{shift}")
    with monkeypatch.context() as patch:
        clocked(patch, shift)
        wrong = RedisFileStore(redis.url, 100, prefix=f"clock{shift}")
        short = wrong.add(ONE, b"short", "a", "user_data", 0.4)
        long = right.add(ONE, b"long", "a", "user_data", 50.0)
        assert {entry.id for entry in wrong.entries(ONE)} == {short.id, long.id}
        assert right.read(ONE, short.id) == b"short" and wrong.read(ONE, long.id) == b"long"
        time.sleep(0.5)
        assert [entry.id for entry in right.entries(ONE)] == [entry.id for entry in wrong.entries(ONE)] == [long.id]


def test_an_upload_whose_answer_is_lost_is_made_again_as_one_file(redis: RedisServer) -> None:
    """Whichever answer it is that is cut off; nothing is left of bytes that no file names."""
    proxy = FaultyProxy(redis.port)
    sound = RedisFileStore(redis.url, 10**6, prefix="lost")
    try:
        for number in range(1, 8):
            data = b"%d" % number * 100
            files = RedisFileStore(f"redis://127.0.0.1:{proxy.port}/0", 10**6, prefix="lost", policy=QUICK)
            calls, run = [0], files._client.connection_pool.get_connection
            cut_at = number

            def cutting(*given: Any, calls: list[int] = calls, run: Any = run, cut_at: int = cut_at) -> Any:
                calls[0] += 1
                proxy.drop_after = 0 if calls[0] == cut_at else None
                return run(*given)

            files._client.connection_pool.get_connection = cutting
            entry = files.add(ONE, data, "a", "user_data", None)
            proxy.heal()
            files.close()
            assert files._caller.statistics.retries == 1
            assert sound.read(ONE, entry.id) == data
        entries = sound.entries(ONE)
        assert len(entries) == 7
        for entry in entries:
            sound.delete(ONE, entry)
        assert sound._client.keys("lost/*") in ([], [b"lost/files/1/used/" + ONE.owner.encode()])
        assert RedisFileStore(redis.url, 10, prefix="lost").add(ONE, b"x" * 10, "a", "user_data", None)
    finally:
        proxy.close()


def test_bytes_that_no_file_names_are_deleted_once_they_are_old(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RedisFileStore(redis.url, 100, prefix="orphans")
    put = files._bytes.put

    def ending(place: str, data: bytes) -> None:
        put(place, data)
        raise StoreError("the server ended here")

    monkeypatch.setattr(files._bytes, "put", ending)
    with pytest.raises(StoreError):
        files.add(ONE, b"x" * 100, "a", "user_data", None)
    assert len(files._client.keys("orphans/files/1/bytes/*")) == 1
    files.expire()
    assert len(files._client.keys("orphans/files/1/bytes/*")) == 1, "another server may be writing them right now"
    monkeypatch.setattr("emblema.serve.redis_files._ARRIVING_SECONDS", 0.0)
    files.expire()
    assert files._client.keys("orphans/*") == []
    monkeypatch.undo()
    entry = RedisFileStore(redis.url, 100, prefix="orphans").add(ONE, b"x" * 100, "a", "user_data", None)
    monkeypatch.setattr(files._bytes, "delete", lambda place: ending(place, b""))
    with pytest.raises(StoreError):
        files.delete(ONE, entry)
    monkeypatch.undo()
    with pytest.raises(ServeError):
        files.read(ONE, entry.id)
    files.expire()
    assert files._client.keys("orphans/files/1/bytes/*") == []


@pytest.mark.parametrize("damage", ["other", "cut", "gone"])
def test_bytes_that_are_not_the_files_are_lost(redis: RedisServer, damage: str) -> None:
    files = RedisFileStore(redis.url, 10**6, prefix=f"damage-{damage}", part_bytes=4_096)
    entry = files.add(ONE, b"x" * 10_000, "a", "user_data", None)
    (key,) = files._client.keys(f"damage-{damage}/files/1/bytes/*")
    if damage == "other":
        files._client.hset(key, "1", b"y" * 4_096)
    elif damage == "cut":
        files._client.hdel(key, "2")
    else:
        files._client.delete(key)
    with pytest.raises(ServeError) as refused:
        files.read(ONE, entry.id)
    assert refused.value.status == 410
    files.note(ONE, entry.id, "processed", None, "image", ["chunk"])
    again = files.add(ONE, b"x" * 10_000, "a", "user_data", None)
    assert files.read(ONE, again.id) == b"x" * 10_000 and again.chunks == ("chunk",)
    files.expire()
    assert len(files._client.keys(f"damage-{damage}/files/1/bytes/*")) == 1
    assert files.delete(ONE, again)
    assert files._client.get(f"damage-{damage}/files/1/used/{ONE.owner}") == b"0"


def test_a_server_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        files = RedisFileStore(server.url, 100, policy=QUICK)
        entry = files.add(ONE, b"kept", "a", "user_data", None)
        server.stop()
        calls = (
            lambda: files.entry(ONE, entry.id), lambda: files.read(ONE, entry.id), lambda: files.entries(ONE),
            lambda: files.add(ONE, b"new", "a", "user_data", None), lambda: files.delete(ONE, entry),
            lambda: RedisFileStore(server.url, 100, policy=QUICK),
        )  # fmt: skip
        for call in calls:
            with pytest.raises(ServeError) as refused:
                call()
            assert refused.value.status == 503
    finally:
        server.stop()


def test_a_server_that_would_evict_files_is_refused(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(EmblemaError, match="would lose files"):
            RedisFileStore(server.url, 100)
    finally:
        server.stop()


def test_a_bucket_alone_is_no_place_for_files(tmp_path: Path) -> None:
    with pytest.raises(EmblemaError, match="files_redis"):
        open_files(ServeSettings.read(store=tmp_path, files_bucket="s3://bucket"), lambda *given: None)


def test_a_server_opens_what_its_settings_name(
    tmp_path: Path, redis: RedisServer, bucket: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (bucket | {"endpoint_url": bucket["endpoint"], "allow_http": "true"}).items():
        monkeypatch.setenv(f"AWS_{name.upper()}", value)
    settings = ServeSettings.read(store=tmp_path, files_redis=redis.url, files_bucket="s3://emblema-test/here")
    files = open_files(settings, lambda *given: None)
    entry = files.add(ONE, b"data in a bucket", "a", "user_data", None)
    assert isinstance(files, RedisFileStore) and files.read(ONE, entry.id) == b"data in a bucket"
    held = S3FileBytes("s3://emblema-test/here", options=bucket)
    assert len(held._objects.list(held._bucket, "emblema/files/1").collect()) == 1
    assert files.delete(ONE, entry)
    assert held._objects.list(held._bucket, "emblema/files/1").collect() == []
    files.close()


def test_measurements_are_shared_where_files_are(tmp_path: Path, redis: RedisServer) -> None:
    with open_store(ServeSettings.read(store=tmp_path / "shared", files_redis=redis.url)) as store:
        assert isinstance(FidelityLogs.of_store(store), RedisFidelityLogs)
